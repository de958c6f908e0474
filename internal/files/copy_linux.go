package files

import (
	"context"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/linux/filecopy"
)

// fillFile copies the rest of one regular file to another in the kernel. done is false if the caller has to copy the rest.
func fillFile(ctx context.Context, to, from *os.File) (done bool, err error) {
	info, err := from.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false, nil // the caller's read shows what it is, perhaps a pipe
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
		// Control keeps the source open meanwhile: its number can not become another file's.
		if held := source.Control(func(fd uintptr) { n, err = filecopy.Within(int(to.Fd()), int(fd), chunk) }); held != nil {
			return true, held
		}
		if err != nil || n < chunk {
			return true, err
		}
	}
}
