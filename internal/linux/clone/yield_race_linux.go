//go:build linux && (amd64 || arm64) && race

package clone

// The race detector counts by processor: code that it watches needs to have one.

//go:nosplit
func entersyscallblock() {}

//go:nosplit
func exitsyscall() {}
