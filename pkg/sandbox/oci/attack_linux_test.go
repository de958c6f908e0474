package oci

import (
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest/attack"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest/attack/hostile"
)

// otherwise are the cases that do not come out as held, by runtime, and why that is no breach of what the tier promises.
// docs/THREAT_MODEL.md says the same.
var otherwise = map[string]map[string]string{}

// Every attack is carried out against each runtime's sandboxes.
func TestAttackSuite(t *testing.T) {
	if !sandboxtest.All() {
		t.Skip("the whole suite is for SANDBOX_RUN_TEST_ALL")
	}
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			bin, err := binaries()
			if err != nil {
				t.Fatal(err)
			}
			exe := filepath.Join(bin, "sandbox-run")
			r, err := attack.Run(context.Background(), attack.Options{
				Backend: b, Executable: exe, Within: 15 * time.Minute,
				Escape: func(s string) string { return strings.Map(printable, strings.ToValidUTF8(s, "?")) },
				Victim: func(mark string) *exec.Cmd {
					args := []string{"exec", "--backend", "oci", "--runtime", runtime, "--require", string(b.Probe(context.Background()).Tier), "--timeout", "1m", "--quiet", "--volume", exe + ":/victim", "--env", hostile.Variable + "=" + mark, "--"}
					return exec.Command(exe, append(args, hostile.Args("/victim", mark, "fork", "sessions", "4", "1m")...)...)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			known := maps.Clone(otherwise[runtime])
			for _, res := range r.Results {
				t.Logf("%-4s %s (%.2f s, %.0f ms late): %s", res.ID, res.Outcome, res.Seconds, res.Health.Lateness, res.Detail)
				why, expected := known[res.ID]
				delete(known, res.ID)
				switch {
				case res.Outcome == attack.Held && expected:
					t.Errorf("%s held, though it is said not to: %s", res.ID, why)
				case res.Outcome != attack.Held && !expected:
					t.Errorf("%s %s: %s: %q", res.ID, res.Outcome, res.Detail, breaches(res))
				}
				if len(res.Health.Residue) > 0 {
					t.Errorf("%s left %q", res.ID, res.Health.Residue)
				}
			}
			if len(known) > 0 || len(r.Results) != len(attack.IDs()) {
				t.Errorf("%d of %d carried out; never seen: %v", len(r.Results), len(attack.IDs()), slices.Collect(maps.Keys(known)))
			}
			if r.Tier != byName(runtime).tier {
				t.Errorf("tier %s", r.Tier)
			}
		})
	}
}

func printable(r rune) rune {
	if r == '\n' || r == '\t' || r >= 0x20 && r < 0x7f {
		return r
	}
	return '?'
}

// breaches are the attempts of a case that got through, for the log.
func breaches(r attack.Result) (list []string) {
	for _, p := range r.Probes {
		if !p.Held {
			list = append(list, p.Name+": "+p.Got)
		}
	}
	return list
}
