//go:build !linux

package hostile

// Play does nothing on this system.
func Play() {}
