package app

import (
	"strings"
	"testing"
)

// A socket as core_pattern is the one that doctor warns of.
func TestCoreDumps(t *testing.T) {
	for pattern, want := range map[string]string{
		"@/run/dumps.sock": "also those of sandboxed programs", "|/usr/lib/handler %p": "behind a pipe; not", "core.%p": "to files; not",
		unknown: unknown,
	} {
		if got := coreDumps(pattern); !strings.Contains(got, want) {
			t.Errorf("%s: %q", pattern, got)
		}
	}
}
