package removal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// batch is how many entries are read at a time.
const batch = 256

// Tree removes the directory at path and everything in it. It blocks until that is done or ctx ends. A missing path is no error.
func Tree(ctx context.Context, path string) error {
	top, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	r := &remover{top: top}
	err = r.empty(ctx)
	_ = unix.Close(top)
	if err == nil {
		err = unix.Rmdir(path)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// remover empties a directory. It moves directories further down to the top, under generated names.
type remover struct {
	top   int
	moved int
}

// empty goes through the top until nothing is left: every pass removes files and moves directories one level up.
func (r *remover) empty(ctx context.Context) error {
	for {
		names, err := list(r.top, ".")
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.remove(ctx, name); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
}

// remove removes one entry of the top; of a directory, it first moves all that is in it to the top.
func (r *remover) remove(ctx context.Context, name string) error {
	err := unix.Unlinkat(r.top, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	for {
		if err := unix.Unlinkat(r.top, name, unix.AT_REMOVEDIR); err == nil || err == unix.ENOENT {
			return nil
		}
		dir, err := openHere(r.top, name)
		if errors.Is(err, unix.EACCES) { // the owner took the permissions away; this process is the owner, or root
			if err = unix.Fchmodat(r.top, name, 0o700, 0); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		err = r.lift(ctx, dir)
		_ = unix.Close(dir)
		if err != nil {
			return err
		}
	}
}

// openHere opens a directory that is no mount point: a mount there may be the machine's own /proc or
// /dev, and not even its mode may change.
func openHere(at int, name string) (int, error) {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.EXDEV) {
		return -1, fmt.Errorf("a file system is mounted there: %w; unmount it first", unix.EBUSY)
	}
	return fd, err
}

// lift empties a directory one level: files go, directories move to the top.
func (r *remover) lift(ctx context.Context, dir int) error {
	if err := unix.Fchmod(dir, 0o700); err != nil && err != unix.EPERM {
		return err
	}
	names, err := list(dir, ".")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := unix.Unlinkat(dir, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			if err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
				err = r.raise(dir, name)
				if errors.Is(err, unix.EEXIST) {
					continue // a name of an earlier, interrupted call: the next pass takes both
				}
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// raise moves a directory to the top. A move changes the directory's entry "..", so it needs write permission to it.
func (r *remover) raise(dir int, name string) error {
	r.moved++
	up := ".removing-" + strconv.Itoa(r.moved)
	err := unix.Renameat2(dir, name, r.top, up, unix.RENAME_NOREPLACE)
	if err == unix.EACCES {
		if err = unix.Fchmodat(dir, name, 0o700, 0); err == nil {
			err = unix.Renameat2(dir, name, r.top, up, unix.RENAME_NOREPLACE)
		}
	}
	return err
}

// list reads some entries of a directory.
func list(dir int, name string) ([]string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(batch)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return names, err
}
