package prepared

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

// RemoveTree removes a directory with all it holds, following no links.
func RemoveTree(ctx context.Context, dir string) error { return removal.Tree(ctx, dir) }

// OpenRegular opens a regular file for reading. It follows no link and does not block on a FIFO.
func OpenRegular(name string) (*os.File, error) {
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

// CheckOwned returns an error if a user other than this process's may write to a directory. A directory that does not exist yet is fine.
func CheckOwned(dir string) error {
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
