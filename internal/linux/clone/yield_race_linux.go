//go:build linux && (amd64 || arm64) && race

package clone

// The race detector keeps its state per processor: instrumented code needs one.

//go:nosplit
func entersyscallblock() {}

//go:nosplit
func exitsyscall() {}
