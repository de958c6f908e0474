package files

import (
	"context"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/linux/filecopy"
)

// fillFile copies what is left of one regular file to another. done: there was nothing more to do, or nothing at all for us.
func fillFile(ctx context.Context, to, from *os.File) (done bool, err error) {
	info, err := from.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false, nil // a pipe, perhaps: reading will tell
	}
	source, err := from.SyscallConn()
	if err != nil {
		return false, nil
	}
	for {
		if err := ctx.Err(); err != nil {
			return true, err
		}
		var n int64
		// The source is held meanwhile: should somebody close it, its number is not another file's.
		if held := source.Control(func(fd uintptr) { n, err = filecopy.Within(int(to.Fd()), int(fd), chunk) }); held != nil {
			return true, held
		}
		if err != nil || n < chunk {
			return true, err
		}
	}
}
