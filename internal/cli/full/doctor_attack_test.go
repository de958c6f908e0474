package full

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A report that is not ok sets the exit code.
func TestAttackReport(t *testing.T) {
	for _, test := range []struct {
		held, json bool
		code       int
	}{{true, false, 0}, {false, false, cli.CodeUnhealthy}, {true, true, 0}, {false, true, cli.CodeUnhealthy}} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = out.Close() })
		c := &cli.Invocation{Std: cli.Streams{Out: out, Err: out}, JSON: test.json}
		suite := func(_ context.Context, o attack.Options) (*attack.Report, error) {
			victim, want := o.Victim("mark").Args, []string{"exec", "--backend", app.Process}
			if o.Backend.Name() != app.Process || !slices.Equal(victim[1:4], want) {
				t.Errorf("%s, %q", o.Backend.Name(), victim)
			}
			return &attack.Report{OK: test.held}, nil
		}
		if err := attackBackendWith(t.Context(), suite, c, app.Process, "", ""); err != nil || c.Code != test.code {
			t.Errorf("%+v: exit code %d, %v", test, c.Code, err)
		}
		text, err := os.ReadFile(out.Name())
		if err != nil || json.Valid(text) != test.json {
			t.Errorf("%+v: %v, wrote %q", test, err, text)
		}
	}
	gaps := []sandbox.Gap{{Control: sandbox.ControlSwap, Reason: "a \x1b reason"}, {Control: sandbox.ControlDisk, Reason: "a \x1b reason"}}
	if got := cli.MissingLines(gaps); strings.ContainsRune(got, 0x1b) || !strings.HasPrefix(got, "missing: swap, disk: a ") {
		t.Errorf("%q", got)
	}
}
