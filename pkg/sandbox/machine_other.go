//go:build !linux

package sandbox

import (
	"runtime"
	"strconv"
)

// thisMachine has placeholders: this system runs no sandboxes. Backends with a Linux elsewhere apply its own limits.
func thisMachine() Machine { return Machine{CPUs: runtime.NumCPU(), Memory: 16 * TiB} }

// SignalName names a signal of Linux by its number; empty for 0.
func SignalName(n int) string {
	if n == 0 {
		return ""
	}
	return "signal " + strconv.Itoa(n)
}
