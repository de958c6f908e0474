package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// attackBackend runs the attack suite against a backend and shows what held.
func (c *cli) attackBackend(only, runtime, image string) error {
	if only == app.Auto {
		only = ""
	}
	if err := onlyWithRuntime(only, runtime); err != nil {
		return err
	}
	name := app.Native
	if only != "" {
		name = only
	}
	if err := app.Known(name); err != nil {
		return err
	}
	if (image != "") != (name == app.Docker) {
		return sandbox.Invalid("image", "containers of %s are attacked in one that has a shell; it goes with --attack --backend %s, and with no other", app.Docker, app.Docker)
	}
	b, err := app.Open(name, app.Options{Runtime: runtime, Image: image})
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, cancel := onSignals(func() {}) // a case ends with its context, and what it made with it
	defer cancel(nil)
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	tier := b.Probe(ctx).Tier
	show := &scoreboard{c: c, paint: c.palette(c.std.out), live: isTerminal(c.std.err) && !c.json}
	report, err := attack.Run(ctx, attack.Options{
		Backend: b, Executable: self, Escape: escaped,
		Victim:  func(mark string) *exec.Cmd { return victim(self, name, runtime, image, tier, mark) },
		OnStart: show.started, OnResult: show.ended, Only: weakenCases(),
	})
	show.clear()
	if err != nil {
		return err
	}
	return c.reportAttack(report, show.paint)
}

// victim is this very command as a supervisor that will be killed.
func victim(self, backend, runtime, image string, tier sandbox.Tier, mark string) *exec.Cmd {
	const inside = "/victim"
	args := []string{"exec", "--backend", backend}
	if runtime != "" {
		args = append(args, "--runtime", runtime)
	}
	if image != "" {
		args = append(args, "--image", image)
	}
	args = append(args, "--require", string(tier), "--timeout", "1m", "--quiet", "--volume", self+":"+inside, "--env", hostile.Variable+"="+mark, "--")
	cmd := exec.Command(self, append(args, hostile.Args(inside, mark, "fork", "sessions", "4", "1m")...)...)
	cmd.Env = []string{} // nobody's defaults
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

// reportAttack shows the conclusion, and makes a breach the exit code.
func (c *cli) reportAttack(r *attack.Report, paint palette) error {
	if !r.OK {
		c.code = codeUnhealthy
	}
	if c.json {
		return c.writeJSON(r)
	}
	_, err := fmt.Fprint(c.std.out, conclusion(r, paint))
	return err
}

// conclusion is the last lines of the text.
func conclusion(r *attack.Report, paint palette) string {
	var b strings.Builder
	late := 0.0
	residue := 0
	for _, res := range r.Results {
		late = max(late, res.Health.Lateness)
		residue += len(res.Health.Residue)
	}
	n := r.Counts
	known := ""
	if n.Known > 0 {
		known = fmt.Sprintf("%d known to be open, ", n.Known)
	}
	fmt.Fprintf(&b, "\n%s, tier %s: %d held, %d breached, %s%d not applicable, %d errors, in %.1f s\n", r.Backend, r.Tier, n.Held, n.Breached, known, n.NotApplicable, n.Error, r.Seconds)
	fmt.Fprintf(&b, "the host: at most %.0f ms late, %d things left behind\n", late, residue)
	for _, g := range together(r.Isolation.Missing) {
		fmt.Fprintf(&b, "missing: %s: %s\n", g.controls, escaped(g.Reason))
	}
	verdict := paint.green
	if !r.OK {
		verdict = paint.red
	}
	b.WriteString(verdict(fmt.Sprintf("grade %s: %s\n", r.Grade, r.Grade.Meaning())))
	return b.String()
}

// scoreboard shows cases as they end, and on a terminal the one that is under way.
type scoreboard struct {
	c     *cli
	paint palette
	live  bool
}

func (s *scoreboard) started(id, title string) {
	if !s.live {
		return
	}
	line := []rune(fmt.Sprintf("%-4s %s …", id, title))
	if cols, _, err := term.GetSize(int(s.c.std.err.Fd())); err == nil && cols > 0 && len(line) >= cols {
		line = line[:cols-1] // a line that wraps could not be cleared
	}
	fmt.Fprintf(s.c.std.err, "\r\x1b[K%s", string(line))
}

// clear removes the line of progress.
func (s *scoreboard) clear() {
	if s.live {
		fmt.Fprint(s.c.std.err, "\r\x1b[K")
	}
}

func (s *scoreboard) ended(r attack.Result) {
	s.clear()
	if !s.c.json {
		fmt.Fprint(s.c.std.out, resultLine(r, s.paint))
	}
}

// resultWidth is that of "not applicable".
const resultWidth = 14

// resultLine is one case, and the attempts that got through.
func resultLine(r attack.Result, paint palette) string {
	var b strings.Builder
	word := fmt.Sprintf("%-*s", resultWidth, strings.ReplaceAll(string(r.Outcome), "_", " "))
	switch r.Outcome {
	case attack.Held:
		word = paint.green(word)
	case attack.Breached, attack.Error:
		word = paint.red(word)
	}
	fmt.Fprintf(&b, "%-4s %s  %s", r.ID, word, r.Title)
	if r.Outcome != attack.NotApplicable {
		fmt.Fprintf(&b, " (%s; host %.0f ms late)", time.Duration(r.Seconds*float64(time.Second)).Round(10*time.Millisecond), r.Health.Lateness)
	}
	b.WriteByte('\n')
	if r.Detail != "" {
		fmt.Fprintf(&b, "     %s\n", escaped(r.Detail))
	}
	return b.String()
}
