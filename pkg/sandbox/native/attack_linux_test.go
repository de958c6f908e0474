package native

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var attackerDir string // made by attackerPath

// attackerPath is a static executable that plays attackers and victims: the full command.
var attackerPath = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "sandbox-rund"), nil
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-attacker-")
	if err != nil {
		return "", err
	}
	attackerDir = dir
	cmd := exec.Command("go", "build", "-tags", "thin", "-o", dir+"/", "../../../cmd/sandbox-run", "../../../cmd/sandbox-rund",
		"../../../cmd/sandbox-init", "../../../cmd/sandbox-net")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return filepath.Join(dir, "sandbox-rund"), os.Chmod(dir, 0o755)
})

func removeAttacker() {
	if attackerDir != "" {
		_ = os.RemoveAll(attackerDir)
	}
}

// attackOptions are those of an attack on a backend.
func attackOptions(t *testing.T, b sandbox.Backend, only ...string) attack.Options {
	t.Helper()
	exe, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(exe)+string(filepath.ListSeparator)+os.Getenv("PATH")) // of sandbox-net
	return attack.Options{
		Backend: b, Executable: exe, Only: only, Within: 10 * time.Minute, // with the race detector, perhaps emulated
		Escape:   func(s string) string { return strings.Map(printable, strings.ToValidUTF8(s, "?")) },
		Internet: func() *exec.Cmd { return exec.Command(exe, "doctor", "--attack", "--json") },
		Victim: func(mark string) *exec.Cmd {
			args := []string{"exec", "--require", string(b.Probe(context.Background()).Tier), "--timeout", "1m", "--quiet", "--volume", exe +
				":/victim", "--env", hostile.Variable + "=" + mark, "--"}
			return exec.Command(exe, append(args, hostile.Args("/victim", mark, "fork", "sessions", "4", "1m")...)...)
		},
	}
}

// printable removes characters that could control a terminal; the tests of the command cover its own filter.
func printable(r rune) rune {
	if r == '\n' || r == '\t' || r >= 0x20 && r < 0x7f {
		return r
	}
	return '?'
}

func carryOut(t *testing.T, o attack.Options) *attack.Report {
	t.Helper()
	r, err := attack.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// breaches lists the attempts of a case that succeeded, for the log.
func breaches(r attack.Result) (list []string) {
	for _, p := range r.Probes {
		if !p.Held {
			list = append(list, p.Name+": "+p.Got)
		}
	}
	return list
}

// Every attack runs against this machine's sandboxes, and fails.
func TestAttackSuite(t *testing.T) {
	needRoot(t)
	if os.Getenv("SANDBOXTEST_GUEST") == "" { // a guest that skips the tests of the command
		testenv.NeedAll(t, "TestAttackCommand (internal/cli), the same attacks by doctor --attack")
	}
	b, _ := managed(t, Options{})
	allHeld(t, b, attack.GradeA, attack.GradeB)
}

// The sandboxes of an ordinary user withstand them as well, in both tiers.
func TestPlainAttack(t *testing.T) {
	b, _, tier := plainManager(t)
	if r := allHeld(t, b, attack.GradeB); r.Tier != tier {
		t.Errorf("tier %s", r.Tier)
	}
}

func allHeld(t *testing.T, b sandbox.Backend, grades ...attack.Grade) *attack.Report {
	t.Helper()
	r := carryOut(t, attackOptions(t, b))
	for _, res := range r.Results {
		t.Logf("%-4s %s (%.2f s, %.0f ms late): %s", res.ID, res.Outcome, res.Seconds, res.Health.Lateness, res.Detail)
		if res.Outcome != attack.Held && !((res.ID == "S3" || res.ID == "N9") && res.Outcome == attack.NotApplicable) { // N9: doctor --attack
			t.Errorf("%s %s: %s: %q", res.ID, res.Outcome, res.Detail, breaches(res))
		}
	}
	if !r.OK || !slices.Contains(grades, r.Grade) {
		t.Errorf("grade %s, %+v", r.Grade, r.Counts)
	}
	if want := threatIDs(); !slices.Equal(attack.IDs(), want) || len(r.Results) != len(want) {
		t.Errorf("the cases are %q, want %q; %d were carried out", attack.IDs(), want, len(r.Results))
	}
	return r
}

// A suite without time for a case reports that, and does not call the case held.
func TestAttackOutOfTime(t *testing.T) {
	needRoot(t)
	b, _ := managed(t, Options{})
	o := attackOptions(t, b, "F12", "S2")
	o.Within = time.Nanosecond
	r := carryOut(t, o)
	if r.OK || r.Grade != attack.GradeC || r.Counts.Error != 2 || !strings.Contains(r.Results[0].Detail, "not tried") {
		t.Errorf("%+v", r)
	}
}

// threatIDs are the threats that have a case.
func threatIDs() (ids []string) {
	for _, group := range []struct {
		letter string
		count  int
	}{{"F", 15}, {"S", 10}, {"R", 13}} {
		for n := range group.count {
			ids = append(ids, group.letter+strconv.Itoa(n+1))
		}
	}
	return append(ids, "N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8", "N9", "A6", "A7", "W1", "W3", "W6")
}
