//go:build linux || darwin

package userdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. Names are looked up in this directory even after its path is renamed or replaced.
type Dir struct {
	file *os.File
	path string
}

// OpenDir opens a directory. For Write and Append it makes a missing one, parents included. For any purpose but Read the
// directory must belong to this user or to root, and no other user may write to it.
func OpenDir(path string, purpose Purpose) (*Dir, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Open(path, flags, 0) })
	if errors.Is(err, unix.ENOENT) && purpose != Read && purpose != Trust {
		// The XDG standard wants each directory that is made to be private.
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("make %s: %w%s", path, plain(err), hint(err))
		}
		if err := unix.Mkdir(path, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make %s: %w%s", path, err, hint(err))
		}
		fd, err = retry(func() (int, error) { return unix.Open(path, flags, 0) })
	}
	if err != nil {
		if isLink(path) {
			return nil, fmt.Errorf("open %s: it is a symlink, which is not followed; give its target instead", path)
		}
		return nil, fmt.Errorf("open %s: %w%s", path, err, hint(err))
	}
	d := &Dir{file: os.NewFile(uintptr(fd), path), path: path}
	if err := d.check(purpose); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Dir) check(purpose Purpose) error {
	if purpose == Read {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.Fd(), &st); err != nil {
		return fmt.Errorf("stat %s: %w", d.path, err)
	}
	if uid := unix.Geteuid(); int(st.Uid) != uid && st.Uid != 0 {
		return fmt.Errorf("use %s: it belongs to user %d, not to %d: %w; use a directory of your own", d.path, st.Uid, uid, unix.EPERM)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("use %s: others can write to it (mode %04o): %w; chmod go-w it, or use another directory",
			d.path, st.Mode&0o7777, unix.EPERM)
	}
	return nil
}

// Fd returns the descriptor, valid until Close.
func (d *Dir) Fd() int { return int(d.file.Fd()) }

// Path returns the directory's name as it was opened.
func (d *Dir) Path() string { return d.path }

// Close closes the directory. It may be called twice.
func (d *Dir) Close() error { return d.file.Close() }

// Open opens a regular file in the directory; the caller closes it. A file to write is made when missing, with mode 0600.
// An existing one must belong to this user, have one name (no second hard link) and be closed to other users.
func (d *Dir) Open(name string, purpose Purpose) (*os.File, error) {
	path := filepath.Join(d.path, name)
	flags := unix.O_NOFOLLOW | unix.O_CLOEXEC
	switch purpose {
	case Read, Trust:
		flags |= unix.O_RDONLY | unix.O_NONBLOCK // a FIFO put in its place must not block the open
	case Write:
		flags |= unix.O_RDWR | unix.O_CREAT
	case Append:
		flags |= unix.O_RDWR | unix.O_CREAT | unix.O_APPEND
	}
	fd, err := retry(func() (int, error) { return unix.Openat(d.Fd(), name, flags, 0o600) })
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("open %s: it is a symlink, which is not followed: %w; remove it, or give its target instead", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w%s", path, err, hint(err))
	}
	if err := checkFile(fd, path, purpose); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func checkFile(fd int, path string, purpose Purpose) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	uid := unix.Geteuid()
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("open %s: not a regular file: %w; remove it", path, unix.EINVAL)
	case int(st.Uid) != uid && (purpose != Read || uid != 0):
		return fmt.Errorf("use %s: it belongs to user %d, not to %d: %w; remove it, or use another directory", path, st.Uid, uid, unix.EPERM)
	case purpose == Read, purpose == Trust:
	case st.Nlink > 1:
		return fmt.Errorf("use %s: it has a second name (hard link): %w; remove the other name", path, unix.EPERM)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("use %s: it is open to others (mode %04o): %w; chmod 0600 it", path, st.Mode&0o7777, unix.EPERM)
	}
	return nil
}

// Is reports whether name still refers to the open file f.
func (d *Dir) Is(name string, f *os.File) bool {
	var named, opened unix.Stat_t
	return unix.Fstatat(d.Fd(), name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(f.Fd()), &opened) == nil && named.Dev == opened.Dev && named.Ino == opened.Ino
}

// Rename renames a file and replaces an existing one.
func (d *Dir) Rename(from, to string) error {
	if err := unix.Renameat(d.Fd(), from, d.Fd(), to); err != nil {
		return fmt.Errorf("rename %s to %s: %w%s", filepath.Join(d.path, from), to, err, hint(err))
	}
	return nil
}

// Remove removes a file. A missing file is no error.
func (d *Dir) Remove(name string) error {
	if err := unix.Unlinkat(d.Fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w%s", filepath.Join(d.path, name), err, hint(err))
	}
	return nil
}

// Names returns the names in the directory, unsorted.
func (d *Dir) Names() ([]string, error) {
	// Use a new descriptor: a listing moves the read position of the shared one.
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.Fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// Sync writes the directory's entries to disk.
func (d *Dir) Sync() error { return d.file.Sync() }

func tryLock(f *os.File, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	_, err := retry(func() (int, error) { return 0, unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), ErrBusy)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w%s", f.Name(), err, hint(err))
	}
	return nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// plain strips the operation from an os.PathError; the caller's message has it already.
func plain(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Path, p.Err)
	}
	return err
}

func hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "; the disk is full: free some space"
	case errors.Is(err, unix.EROFS):
		return "; the file system is read-only: use a directory on another"
	case errors.Is(err, unix.EACCES):
		return "; use a directory of your own"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
		return "; use a directory on a local file system"
	}
	return ""
}
