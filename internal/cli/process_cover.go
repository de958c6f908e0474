//go:build cover && !windows

package cli

import (
	"os"
	"runtime/coverage"
)

// A process that becomes another executable never exits: it leaves the counters of a build that measures coverage before.
func init() {
	beforeReplace = func() {
		if dir := os.Getenv("GOCOVERDIR"); dir != "" {
			_ = coverage.WriteCountersDir(dir) // not counted, then
		}
	}
}
