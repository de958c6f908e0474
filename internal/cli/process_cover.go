//go:build cover && !windows

package cli

import (
	"os"
	"runtime/coverage"
)

// Coverage counters are written at exit. A process that executes another executable does not exit, so it writes them before.
func init() {
	beforeReplace = func() {
		if dir := os.Getenv("GOCOVERDIR"); dir != "" {
			_ = coverage.WriteCountersDir(dir) // on failure, this part is not counted
		}
	}
}
