package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
)

// Opener opens entries of a directory, by paths that are relative to it and clean. The caller closes the descriptors.
type Opener interface {
	// Create makes a new file, replaces an entry of that name, and opens it for writing. If mode has unix.S_IFIFO, it makes a named pipe and
	// opens it for reading and writing, non-blocking.
	Create(p string, mode uint32) (fd int, err error)
	// Link makes a symbolic link, and replaces an entry of that name.
	Link(p, target string) error
	Remove(p string) error
	// Open opens a file or a directory for reading. It never waits.
	Open(p string) (fd int, err error)
	// WaitClosed returns when no process has a file open that was made here and closed.
	WaitClosed() error
}

// Dir opens beneath a directory.
type Dir struct {
	FD    int
	Owner int // of new files, user and group; -1: the calling process's
}

// maxTries is how often a call is repeated when a program changes the path meanwhile.
const maxTries = 100

// noFollow resolves every path: whatever a program has planted, the file is in this directory's own file system,
// beneath it.
const noFollow = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func openBeneath(dir int, p string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: noFollow}
	for range maxTries {
		fd, err = unix.Openat2(dir, p, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break // EAGAIN: a component was renamed meanwhile
		}
	}
	return fd, err
}

// Open opens a file or a directory for reading. It does not block: not for the other end of a FIFO, nor for the holder of a lease.
func (d Dir) Open(p string) (int, error) {
	return openBeneath(d.FD, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// Remove removes a file of any kind.
func (d Dir) Remove(p string) error {
	dir, name := path.Split(p)
	at, err := openBeneath(d.FD, path.Clean(dir), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Unlinkat(at, name, 0)
}

// Create makes a file that has no other name: an existing entry is removed first, so that nothing is written through a link,
// hard or symbolic.
func (d Dir) Create(p string, mode uint32) (int, error) {
	dir, name := path.Split(p)
	at, err := d.directory(path.Clean(dir))
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	fd := -1
	err = replace(at, name, func() (err error) {
		if mode&unix.S_IFMT == unix.S_IFIFO {
			fd, err = createPipe(at, name)
			return err
		}
		fd, err = unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	if err := d.chown(fd, mode); err != nil {
		_ = unix.Close(fd)
		_ = unix.Unlinkat(at, name, 0)
		return -1, err
	}
	return fd, nil
}

// createPipe makes a named pipe and opens it. A program may have replaced it meanwhile: with another pipe, which is its own, too.
func createPipe(at int, name string) (int, error) {
	if err := unix.Mknodat(at, name, unix.S_IFIFO|0o600, 0); err != nil {
		return -1, err
	}
	fd, err := openBeneath(at, name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = unix.EINVAL
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Link makes a symbolic link. The owner is set by descriptor: a program may have replaced the link meanwhile.
func (d Dir) Link(p, target string) error {
	dir, name := path.Split(p)
	at, err := d.directory(path.Clean(dir))
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := replace(at, name, func() error { return unix.Symlinkat(target, at, name) }); err != nil || d.Owner < 0 {
		return err
	}
	fd, err := openBeneath(at, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchownat(fd, "", d.Owner, d.Owner, unix.AT_EMPTY_PATH)
}

// replace makes an entry of a directory after it has removed the one that has the name.
func replace(at int, name string, create func() error) error {
	for range maxTries {
		err := create()
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.EEXIST // a program makes the name again and again
}

// WaitClosed waits for children of this process that have not executed yet: they have its descriptors.
func (d Dir) WaitClosed() error {
	clone.Settle()
	return nil
}

// chown sets the owner of a file, and then its mode: a change of owner may clear bits.
func (d Dir) chown(fd int, mode uint32) error {
	if d.Owner >= 0 {
		if err := unix.Fchown(fd, d.Owner, d.Owner); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode&0o777)
}

// directory opens a directory and makes it if it is missing.
func (d Dir) directory(p string) (int, error) {
	fd, err := openBeneath(d.FD, p, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	at := d.FD
	for name := range strings.SplitSeq(p, "/") {
		next, err := d.child(at, name)
		if at != d.FD {
			_ = unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// child opens one directory in another and makes it if it is missing.
func (d Dir) child(at int, name string) (fd int, err error) {
	for range maxTries {
		fd, err = openBeneath(at, name, unix.O_PATH|unix.O_DIRECTORY)
		if !errors.Is(err, unix.ENOENT) {
			return fd, err
		}
		err = unix.Mkdirat(at, name, 0o700)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return -1, err
		}
		fd, err = openBeneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			if err = d.chown(fd, 0o755); err != nil {
				_ = unix.Close(fd)
			}
		}
		return fd, err
	}
	return -1, err
}

// SharedDir is Dir for a directory that another goroutine may close at any time: Use calls its argument with the descriptor
// and keeps it open meanwhile. It does not call it once the directory is closed.
type SharedDir struct {
	Use   func(func(fd int) error) error
	Owner int // as for Dir
}

// Create is Dir.Create.
func (h SharedDir) Create(p string, mode uint32) (fd int, err error) {
	err = h.Use(func(dir int) (err error) { fd, err = Dir{dir, h.Owner}.Create(p, mode); return err })
	return fd, err
}

// Link is Dir.Link.
func (h SharedDir) Link(p, target string) error {
	return h.Use(func(dir int) error { return Dir{dir, h.Owner}.Link(p, target) })
}

// Open is Dir.Open.
func (h SharedDir) Open(p string) (fd int, err error) {
	err = h.Use(func(dir int) (err error) { fd, err = Dir{dir, h.Owner}.Open(p); return err })
	return fd, err
}

// Remove is Dir.Remove.
func (h SharedDir) Remove(p string) error {
	return h.Use(func(dir int) error { return Dir{dir, h.Owner}.Remove(p) })
}

// WaitClosed is Dir.WaitClosed.
func (h SharedDir) WaitClosed() error { return Dir{}.WaitClosed() }

// Tree is a directory as a Place.
type Tree struct {
	Opener
	// Shared: its file system has files outside of the scratch, and a name here may be a hard link to one of them.
	Shared bool
}

var _ Place = Tree{}

// Create makes a file.
func (t Tree) Create(p string, mode fs.FileMode) (io.WriteCloser, error) {
	fd, err := t.Opener.Create(p, uint32(mode.Perm()))
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p), nil
}

// Open opens a file or a directory and returns its state.
func (t Tree) Open(p string) (*Content, error) {
	fd, err := t.Opener.Open(p)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	c := &Content{ReadCloser: f, Mode: info.Mode(), Size: info.Size()}
	if t.Shared {
		var st unix.Stat_t
		c.Elsewhere = unix.Fstat(fd, &st) != nil || st.Nlink > 1
	}
	return c, nil
}

// List reads a directory, with the types in its entries: no entry has to be looked up.
func (t Tree) List(p string, want func(Entry) bool) error {
	fd, err := t.Opener.Open(p)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		if !eachEntry(buf[:n], want) {
			return nil
		}
	}
}

// eachEntry parses the kernel's records of a directory: inode and offset, the record's length, its type, the name.
func eachEntry(buf []byte, want func(Entry) bool) bool {
	const header = 8 + 8 + 2 + 1
	for len(buf) > header {
		length := int(binary.NativeEndian.Uint16(buf[16:]))
		if length <= header || length > len(buf) {
			return true
		}
		name, _, _ := bytes.Cut(buf[header:length], []byte{0})
		if s := string(name); s != "." && s != ".." && s != "" && !want(Entry{s, entryType(buf[18])}) {
			return false
		}
		buf = buf[length:]
	}
	return true
}

func entryType(t byte) fs.FileMode {
	switch t {
	case unix.DT_REG:
		return 0
	case unix.DT_DIR:
		return fs.ModeDir
	case unix.DT_LNK:
		return fs.ModeSymlink
	case unix.DT_FIFO:
		return fs.ModeNamedPipe
	case unix.DT_SOCK:
		return fs.ModeSocket
	case unix.DT_CHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.DT_BLK:
		return fs.ModeDevice
	}
	return fs.ModeIrregular
}
