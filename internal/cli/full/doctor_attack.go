package full

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// attackBackend runs the attack suite against a backend, for doctor --attack. A breach sets c.Code. The attacking programs are this
// executable as well.
func attackBackend(c *cli.Invocation, only, runtime, image string) error {
	ctx, cancel := cli.CancelOnSignals(func() {}) // a case cleans up when its context ends
	defer cancel(nil)
	return attackBackendWith(ctx, attack.Run, c, only, runtime, image)
}

type attackSuite func(context.Context, attack.Options) (*attack.Report, error)

func attackBackendWith(ctx context.Context, run attackSuite, c *cli.Invocation, only, runtime, image string) error {
	if only == app.Auto {
		only = ""
	}
	if err := cli.CheckRuntime(only, runtime); err != nil {
		return err
	}
	name := cmp.Or(only, app.Native)
	if err := app.CheckBackend(name); err != nil {
		return err
	}
	if (image != "") != (name == app.Docker) {
		return sandbox.Invalid("image", "containers of %s are attacked in one that has a shell; it goes with --attack --backend %s, and "+
			"with no other",
			app.Docker, app.Docker)
	}
	b, err := app.Open(name, app.Options{Runtime: runtime, Image: image})
	if err != nil {
		return err
	}
	defer b.Close()
	flags := []string{"--backend", name}
	if runtime != "" {
		flags = append(flags, "--runtime", runtime)
	}
	if image != "" {
		flags = append(flags, "--image", image)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	tier := string(b.Probe(ctx).Tier)
	show := attack.Display{
		Out: c.Std.Out, Err: c.Std.Err, Text: !c.JSON, Live: cli.IsTerminal(c.Std.Err) && !c.JSON, Colour: bool(c.Palette(c.Std.Out)),
		Escape: cli.EscapeText,
	}
	work, err := os.MkdirTemp("", "sandbox-run-attack-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() //nolint:forbidigo // its layers were unpacked within the bounds of the image store
	report, err := run(ctx, attack.Options{
		Backend: b, Executable: self, Escape: cli.EscapeText,
		Victim: func(mark string) *exec.Cmd { return newVictim(self, tier, mark, flags) },
		Internet: func() *exec.Cmd {
			return exec.Command(self, append([]string{"doctor", "--attack", "--json"}, flags...)...)
		},
		Install: installer(b, self, work), OnStart: show.Started, OnResult: show.Ended,
	})
	show.Clear()
	switch {
	case err != nil:
		return err
	case !report.OK:
		c.Code = cli.CodeUnhealthy
	}
	if c.JSON {
		return c.WriteJSON(report)
	}
	return show.Conclude(report, cli.MissingLines(report.Isolation.Missing))
}

// newVictim makes the command of a supervisor that the suite kills. flags select the backend.
func newVictim(self, tier, mark string, flags []string) *exec.Cmd {
	const inside = "/victim"
	args := append([]string{"exec"}, flags...)
	args = append(args, "--require", tier, "--timeout", "1m", "--quiet", "--volume", self+":"+inside, "--env", hostile.Variable+"="+mark, "--")
	cmd := exec.Command(self, append(args, hostile.Args(inside, mark, "fork", "sessions", "4", "1m")...)...)
	cmd.Env = []string{} // variables of the user must not change defaults
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT",
		"DOCKER_CONFIG"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}
