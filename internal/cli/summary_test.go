package cli

import (
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
