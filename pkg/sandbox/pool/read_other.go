//go:build !linux

package pool

import "io"

// unread is unknown on this system.
func unread(io.Writer) (int, bool) { return 0, false }
