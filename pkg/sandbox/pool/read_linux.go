package pool

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// unread is how many bytes of a pipe are unread; false where that is unknown.
func unread(in io.Writer) (int, bool) {
	c, ok := in.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	left := 0
	if cerr := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); cerr != nil || err != nil {
		return 0, false
	}
	return left, true
}
