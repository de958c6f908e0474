//go:build !linux

package sandbox

import (
	"runtime"
	"strconv"
)

// thisMachine knows little of machines it can not run sandboxes on itself; backends that reach a
// Linux elsewhere let that one decide.
func thisMachine() Machine { return Machine{CPUs: runtime.NumCPU(), Memory: 16 * TiB} }

// SignalName names a signal of Linux by its number; empty for 0.
func SignalName(n int) string {
	if n == 0 {
		return ""
	}
	return "signal " + strconv.Itoa(n)
}
