package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
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

// openPlain opens a regular file to read. It follows no link and waits for no pipe's other end.
func openPlain(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// othersWrite says who besides us may write to a directory; nil if nobody, or if it does not exist yet.
func othersWrite(dir string) error {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "look at", Path: dir, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user (%d)", dir, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s can be written to by others; try: chmod go-w %s", dir, dir)
	}
	return nil
}

// openDefault is the backend of those who choose none.
func openDefault() (sandbox.Backend, error) {
	b, err := native.New(native.Options{})
	if err != nil {
		return nil, err // not the nil *native.Backend: in an interface it is not nil
	}
	return b, nil
}
