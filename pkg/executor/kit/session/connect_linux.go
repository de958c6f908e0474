package session

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Connect moves the socket from standard input to its own descriptor.
func Connect() (*protocol.Conn, error) {
	if err := unix.Dup3(0, protocol.Descriptor, unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("dup3", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	if err := unix.Dup3(null, 0, 0); err != nil {
		return nil, os.NewSyscallError("dup3", err)
	}
	_ = unix.Close(null) // nothing was written
	return protocol.NewConn(os.NewFile(protocol.Descriptor, "session")), nil
}
