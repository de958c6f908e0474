//go:build cover && !windows

package cli

import (
	"os"
	"runtime/coverage"
)

// lastWords leaves the counters of a build that measures coverage: what is replaced never exits.
func lastWords() {
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		_ = coverage.WriteCountersDir(dir) // not counted, then
	}
}
