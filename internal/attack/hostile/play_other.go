//go:build !linux

package hostile

// Play has nobody to attack here.
func Play() {}
