//go:build unix

package repl

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// awaitInput waits until a file can be read. It returns false at the end of ctx: what is typed after that belongs to the next reader.
func awaitInput(ctx context.Context, f *os.File) bool {
	r, w, err := os.Pipe()
	if err != nil {
		return true // the read blocks
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer func() {
		if stop() {
			_ = w.Close()
		}
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true
		default:
			return fds[1].Revents == 0
		}
	}
}
