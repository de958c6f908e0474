package executor

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

func tryLock(f *os.File, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

func removeTree(ctx context.Context, dir string) error { return removal.Tree(ctx, dir) }
