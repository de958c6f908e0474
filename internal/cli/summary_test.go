package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestSuggestMemory(t *testing.T) {
	s := &outcome{machine: sandbox.Machine{Memory: 4 * sandbox.GiB}}
	for limit, want := range map[sandbox.Size]string{
		64 * sandbox.MiB: " 128m", 100 * sandbox.MiB: " 128m", 512 * sandbox.MiB: " 1g", 3 * sandbox.GiB: " 4g", 4 * sandbox.GiB: "",
	} {
		if got := s.suggestMemory(limit); got != want {
			t.Errorf("%v: %q, want %q", limit, got, want)
		}
	}
}

// A log says that the network's process ended: the verdict has only the signal.
func TestWarnsOfEndedNetwork(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := &Invocation{Std: Streams{Err: log}}
	c.printWarnings(&sandbox.Result{Verdict: sandbox.VerdictSignaled, Notes: []string{sandbox.NetworkNote + "it ended", "other"}}, &outcome{})
	text, _ := os.ReadFile(log.Name())
	if got := string(text); !strings.Contains(got, "it ended") || strings.Contains(got, "other") {
		t.Errorf("%q", got)
	}
}
