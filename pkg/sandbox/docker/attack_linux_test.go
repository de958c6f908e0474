package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// victimVariable makes the test binary a supervisor that W6 kills. It holds the mark and the attacker's path.
const victimVariable = "SANDBOXTEST_DOCKER_VICTIM"

// beVictim runs something that wants to stay until it is killed.
func beVictim(plan string) int {
	mark, exe, _ := strings.Cut(plan, " ")
	b, err := New(Options{Host: os.Getenv(hostVariable), Image: testImage, StateDir: os.Getenv(stateVariable)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	spec := sandbox.Spec{Volumes: []sandbox.Volume{{Source: exe, Target: "/victim"}}, Env: map[string]string{hostile.Variable: mark}}
	id, err := m.Create(context.Background(), spec)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = m.Run(context.Background(), id, sandbox.Process{Args: hostile.Args("/victim", mark, "fork", "sessions", "4", "1m"),
		Limits: sandbox.Limits{Wall: time.Minute}}, sandbox.IO{})
	return 0
}

// attackerPath is a static executable that plays attackers: the full command.
var attackerPath = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "sandbox-rund"), nil
	}
	exe := filepath.Join(engines.dir, "attacker")
	cmd := exec.Command("go", "build", "-tags", "thin", "-buildvcs=false", "-o", exe, "github.com/sandbox-run/sandbox-run/cmd/sandbox-rund")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return exe, os.Chmod(engines.dir, 0o755)
})

// printable leaves out what could steer a terminal; the command's own way is tested with the command.
func printable(r rune) rune {
	if r == '\n' || r == '\t' || r >= 0x20 && r < 0x7f {
		return r
	}
	return '?'
}

// Every attack is carried out against containers of either engine; see docs/THREAT_MODEL.md for what does not apply.
func TestAttackSuite(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		if e.name == "podman" {
			testenv.NeedAll(t, "Docker Engine")
		}
		var only []string
		if !testenv.All() { // a few, of each kind
			only = []string{"F2", "F7", "F11", "F12", "F13", "S1", "S6", "R1", "R4", "R11", "N1", "W1", "W6"}
		}
		attackOn(t, e, e.backend(t), only)
	})
}

func attackOn(t *testing.T, e *engine, b *Backend, only []string) {
	t.Helper()
	exe, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	r, err := attack.Run(context.Background(), attack.Options{
		Backend: b, Executable: exe, Only: only, Within: 15 * time.Minute,
		Escape: func(s string) string { return strings.Map(printable, strings.ToValidUTF8(s, "?")) },
		Victim: func(mark string) *exec.Cmd {
			self, _ := os.Executable()
			cmd := exec.Command(self)
			cmd.Stderr = os.Stderr
			cmd.Env = append(os.Environ(), victimVariable+"="+mark+" "+exe, hostVariable+"="+e.host, stateVariable+"="+b.registration.dir)
			return cmd
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range r.Results {
		t.Logf("%-4s %s (%.2f s, %.0f ms late): %s", res.ID, res.Outcome, res.Seconds, res.Health.Lateness, res.Detail)
		if res.ID == "S8" && strings.Contains(res.Detail, "node") { // the small image has no Node
			continue
		}
		// each with its attempts, in package attack
		if res.Outcome == attack.Known && (slices.Contains([]string{"F7", "F11", "F12", "F13", "R11"}, res.ID) || res.ID == "F15" &&
			e.name == "podman") {
			continue
		}
		if res.Outcome != attack.Held && res.Outcome != attack.NotApplicable {
			var through []string
			for _, p := range res.Probes {
				if !p.Held {
					through = append(through, p.Name+": "+p.Got)
				}
			}
			t.Errorf("%s %s: %s: %q", res.ID, res.Outcome, res.Detail, through)
		}
	}
	if r.Counts.Breached > 0 || len(only) > 0 && (!r.OK || r.Grade != attack.GradeB) { // Landlock is missing
		t.Errorf("grade %s, %+v", r.Grade, r.Counts)
	}
	refused := []string{"N2", "N3", "N4", "N5", "N6", "N7", "N8", "N9"} // networks with rules
	for _, res := range r.Results {                                     // no other row is left out
		if res.Outcome == attack.NotApplicable && !slices.Contains(append(refused, "F3", "F4", "F5", "F6", "R13", "W3"), res.ID) {
			t.Errorf("%s does not apply: %s", res.ID, res.Detail)
		}
	}
	if len(only) == 0 && len(r.Results) != len(attack.IDs()) ||
		slices.ContainsFunc(only, func(id string) bool { return !slices.Contains(attack.IDs(), id) }) {
		t.Errorf("%d cases were carried out", len(r.Results))
	}
}
