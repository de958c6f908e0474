package process

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/attack"
)

// The attacks on the few controls of this backend fail; the other cases do not apply.
func TestAttackSuite(t *testing.T) {
	b := newBackend(t)
	defer b.Close()
	o := attack.Options{Backend: b, Within: 10 * time.Minute} // perhaps emulated
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		o.Executable = filepath.Join(dir, "sandbox-rund")
	}
	r, err := attack.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	claimed := []string{"F14", "R1", "R2", "R5", "R7", "R8", "R12", "A6", "A7"}
	for _, res := range r.Results {
		want := attack.NotApplicable
		if slices.Contains(claimed, res.ID) {
			want = attack.Held
		}
		if res.Outcome != want {
			t.Errorf("%s %s: %s: %+v", res.ID, res.Outcome, res.Detail, res.Probes)
		}
		if res.Detail == "" {
			t.Errorf("%s %s without a reason", res.ID, res.Outcome)
		}
	}
	if !r.OK || r.Grade != attack.GradeD || r.Counts.Held != len(claimed) {
		t.Errorf("%s %+v", r.Grade, r.Counts)
	}
}
