package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/cli"
)

// runAttack carries out the attack suite for doctor --attack. This executable is also the attacker.
func runAttack(ctx context.Context, a cli.Attack) (held bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("find own executable: %w", err)
	}
	tier := string(a.Backend.Probe(ctx).Tier)
	show := attack.Display{Out: a.Out, Err: a.Err, Text: a.WriteJSON == nil, Live: a.Live, Colour: a.Colour, Escape: a.Escape}
	report, err := attack.Run(ctx, attack.Options{
		Backend: a.Backend, Executable: self, Escape: a.Escape,
		Victim:  func(mark string) *exec.Cmd { return victim(self, tier, mark, a.Flags) },
		OnStart: show.Started, OnResult: show.Ended,
	})
	show.Clear()
	switch {
	case err != nil:
		return false, err
	case a.WriteJSON != nil:
		return report.OK, a.WriteJSON(report)
	}
	return report.OK, show.Conclude(report, a.Missing(report.Isolation.Missing))
}

// victim starts this executable as a supervisor that the suite kills. flags choose the backend.
func victim(self, tier, mark string, flags []string) *exec.Cmd {
	const inside = "/victim"
	args := append([]string{"exec"}, flags...)
	args = append(args, "--require", tier, "--timeout", "1m", "--quiet", "--volume", self+":"+inside, "--env", hostile.Variable+"="+mark, "--")
	cmd := exec.Command(self, append(args, hostile.Args(inside, mark, "fork", "sessions", "4", "1m")...)...)
	cmd.Env = []string{} // without the user's defaults
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT",
		"DOCKER_CONFIG"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}
