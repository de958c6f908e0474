package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The names by which a layer removes files of lower layers.
const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // metadata of an old file system
)

// attributes are the properties of an entry beside its content.
type attributes struct {
	mode     uint32 // permissions, and the set-uid, set-gid and sticky bits
	uid, gid int
	time     time.Time
}

const xattrPrefix = "SCHILY.xattr."

// sandboxUser is the only id of programs in a sandbox, independent of the image.
const sandboxUser = 1000

func attributesOf(h *tar.Header) (attributes, error) {
	const largest = 1<<32 - 2 // the next value means "no change" to the kernel
	if h.Uid < 0 || h.Gid < 0 || h.Uid > largest || h.Gid > largest {
		return attributes{}, fmt.Errorf("%w: it belongs to %d:%d", ErrInvalid, h.Uid, h.Gid)
	}
	return attributes{mode: uint32(h.Mode) & 0o7777, uid: h.Uid, gid: h.Gid, time: h.ModTime}, nil
}

// entry unpacks one entry of an archive.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := u.cleanName(h.Name)
	if err != nil {
		return err
	}
	a, err := attributesOf(h)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the root can be nothing but a directory", ErrInvalid)
		}
		return u.mark("", a)
	}
	if base := path.Base(name); strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(path.Dir(name), base)
	}
	at, err := u.parent(name)
	if err != nil {
		return err
	}
	u.note(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(at, name, h, a)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return u.file(at, path.Base(name), h, a, content)
	case tar.TypeSymlink:
		return u.symlink(at, path.Base(name), h.Linkname, a)
	case tar.TypeLink:
		return u.hardLink(at, name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		// A sandbox has its own devices. The entry still replaces a file of a lower layer.
		return u.clear(at, path.Base(name))
	}
	return fmt.Errorf("%w: entries of type %q are not known", ErrInvalid, h.Typeflag)
}

func (u *unpacker) directory(at int, name string, h *tar.Header, a attributes) error {
	base := path.Base(name)
	err := unix.Mkdirat(at, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err = unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err = u.clear(at, base); err == nil {
				err = unix.Mkdirat(at, base, 0o700)
			}
		}
	}
	if err != nil {
		return err
	}
	if hasRecord(h, xattrPrefix) {
		fd, err := unix.Openat(at, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = setXattrs(fd, h)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return u.mark(name, a)
}

// replace makes an entry, after it has removed one of that name.
func (u *unpacker) replace(at int, base string, create func() error) error {
	err := create()
	if errors.Is(err, unix.EEXIST) {
		if err = u.clear(at, base); err == nil {
			err = create()
		}
	}
	return err
}

// file makes a new file: a hard link to the file that it replaces keeps the old content.
func (u *unpacker) file(at int, base string, h *tar.Header, a attributes, content io.Reader) (err error) {
	if u.bytes += h.Size; u.bytes > u.limits.Bytes || h.Size > u.limits.Bytes {
		return fmt.Errorf("%w: its files have more than %d bytes, the limit or what the disk has left", ErrTooLarge, u.limits.Bytes)
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd := -1
	if err := u.replace(at, base, func() (err error) { fd, err = unix.Openat(at, base, flags, 0o600); return err }); err != nil {
		return err
	}
	defer func() {
		if closing := unix.Close(fd); err == nil {
			err = closing
		}
	}()
	if isSparse(h) {
		err = u.writeSparse(fd, content, h.Size)
	} else {
		err = u.write(fd, content, h.Size)
	}
	if err != nil {
		return err
	}
	if hasRecord(h, xattrPrefix) {
		if err := setXattrs(fd, h); err != nil {
			return err
		}
	}
	if u.owners && (a.uid != 0 || a.gid != 0) {
		if err := unix.Fchown(fd, a.uid, a.gid); err != nil {
			return err
		}
	}
	if mode := u.mode(a) &^ (unix.S_ISUID | unix.S_ISGID); mode != 0o600 {
		if err := unix.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	return a.setTime(at, base)
}

func (u *unpacker) write(fd int, content io.Reader, size int64) error {
	for left := size; left > 0; {
		n, err := io.ReadFull(content, u.buf[:min(left, int64(len(u.buf)))])
		if err != nil {
			return broken(err)
		}
		if err := writeAll(fd, u.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}

// isSparse is whether an entry has holes.
func isSparse(h *tar.Header) bool {
	return h.Typeflag == tar.TypeGNUSparse || hasRecord(h, "GNU.sparse.")
}

// hasRecord reports whether an entry has an extended record whose key begins so.
func hasRecord(h *tar.Header, prefix string) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

const holeSize = 4096

var zeros [holeSize]byte

// writeSparse skips zeros.
func (u *unpacker) writeSparse(fd int, content io.Reader, size int64) error {
	if err := unix.Ftruncate(fd, size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		n, err := io.ReadFull(content, u.buf[:min(size-at, int64(len(u.buf)))])
		if err != nil {
			return broken(err)
		}
		for block := u.buf[:n]; len(block) > 0; {
			m := min(len(block), holeSize)
			if !bytes.Equal(block[:m], zeros[:m]) {
				if _, err := unix.Pwrite(fd, block[:m], at); err != nil {
					return err
				}
			}
			block, at = block[m:], at+int64(m)
		}
	}
	return nil
}

func (u *unpacker) symlink(at int, base, target string, a attributes) error {
	if target == "" || len(target) > maxPath || strings.IndexByte(target, 0) >= 0 {
		return fmt.Errorf("%w: the target of the link has %d bytes, or a zero one", ErrInvalid, len(target))
	}
	if err := u.replace(at, base, func() error { return unix.Symlinkat(target, at, base) }); err != nil {
		return err
	}
	if err := u.own(at, base, a); err != nil {
		return err
	}
	return a.setTime(at, base)
}

// hardLink gives a file of the image a second name.
func (u *unpacker) hardLink(at int, name, target string) error {
	to, err := u.cleanName(target)
	if err == nil && to == "" {
		err = fmt.Errorf("%w: it is the root", ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", shorten(target), err)
	}
	// The lookup is repeated without creating directories: parent returns a descriptor that the next call may close.
	from, err := u.within(path.Dir(to), unix.O_PATH)
	if err != nil {
		return fmt.Errorf("%w: hard link to %q, which is not in the image", ErrInvalid, shorten(target))
	}
	defer unix.Close(from)
	base, source := path.Base(name), path.Base(to)
	var there, here unix.Stat_t
	if err := unix.Fstatat(from, source, &there, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%w: hard link to %q, which is not in the image", ErrInvalid, shorten(target))
	}
	if kind := there.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return fmt.Errorf("%w: hard link to %q, which is not a file", ErrInvalid, shorten(target))
	}
	if unix.Fstatat(at, base, &here, unix.AT_SYMLINK_NOFOLLOW) == nil && here.Ino == there.Ino && here.Dev == there.Dev {
		return nil // both names are the same file
	}
	err = u.replace(at, base, func() error { return unix.Linkat(from, source, at, base, 0) })
	if errors.Is(err, unix.EMLINK) {
		return fmt.Errorf("%w: hard link to %q: it has too many names", ErrInvalid, shorten(target))
	}
	if errors.Is(err, unix.ENOENT) { // its own name was behind another one, which was removed
		return fmt.Errorf("%w: hard link to %q, which it replaces", ErrInvalid, shorten(target))
	}
	return err
}

// whiteout hides entries of lower layers, never those of this layer.
func (u *unpacker) whiteout(dir, base string) error {
	if dir == "." {
		dir = ""
	}
	switch {
	case base == whiteoutOpaque:
		return u.hideBelow(dir)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return fmt.Errorf("%w: it hides nothing that could be there", ErrInvalid)
	}
	if !u.lower {
		return nil
	}
	name := path.Join(dir, hidden)
	if u.isNew(name) {
		return u.hideBelow(name)
	}
	at, err := u.within(dir, unix.O_PATH)
	if err != nil {
		return notThere(err)
	}
	defer unix.Close(at)
	return u.clear(at, hidden)
}

// notThere ignores a whiteout of a missing entry.
func notThere(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

// hideBelow removes the entries of lower layers from a directory, once per directory: the rest belongs to this layer.
func (u *unpacker) hideBelow(dir string) error {
	if !u.lower {
		return nil
	}
	if _, done := u.cleared[dir]; done {
		return nil
	}
	if u.names += int64(len(dir)); u.names > maxNames {
		return fmt.Errorf("%w: the names of its directories have more than %d bytes", ErrTooLarge, maxNames)
	}
	u.cleared[dir] = struct{}{}
	fd, err := u.within(dir, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return notThere(err)
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, base := range names {
		name := path.Join(dir, base)
		if !u.isNew(name) {
			if err := u.clear(fd, base); err != nil {
				return err
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := u.hideBelow(name); err != nil {
			return err
		}
	}
	return nil
}

// own sets the owner of an entry. For an ordinary user, that user owns all entries.
func (u *unpacker) own(at int, base string, a attributes) error {
	if !u.owners || a.uid == 0 && a.gid == 0 {
		return nil
	}
	return unix.Fchownat(at, base, a.uid, a.gid, unix.AT_SYMLINK_NOFOLLOW)
}

// mode returns the permissions of an entry, so that the user in the sandbox has the rights that the image gives to id 1000. An
// ordinary user owns all files, and is that user: the owner also gets the rights of group and others. The sandboxes of root have
// ids that own no file: others get the rights of id 1000.
func (u *unpacker) mode(a attributes) uint32 {
	if !u.owners {
		return a.mode | a.mode&0o070<<3 | a.mode&0o007<<6
	}
	mode := a.mode
	if a.uid == sandboxUser {
		mode |= a.mode & 0o700 >> 6
	}
	if a.gid == sandboxUser {
		mode |= a.mode & 0o070 >> 3
	}
	return mode
}

// setTime sets the modification time of an entry, which compilers and interpreters compare.
func (a attributes) setTime(at int, base string) error {
	const latest = 1 << 34 // some five hundred years, which file systems can store
	sec := min(max(a.time.Unix(), 0), latest)
	t := unix.Timespec{Sec: sec, Nsec: int64(a.time.Nanosecond())}
	return unix.UtimesNanoAt(at, base, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

// setXattrs keeps the attributes of programs (user.*) and drops the others: file capabilities and security labels have no effect
// in a sandbox, and overlay attributes would let an image redirect files below it.
func setXattrs(fd int, h *tar.Header) error {
	for key, value := range h.PAXRecords {
		name, is := strings.CutPrefix(key, xattrPrefix)
		if !is || !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		err := unix.Fsetxattr(fd, name, []byte(value), 0)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue // this file system has no attributes
		}
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("%w: attribute %q with %d bytes: %w", ErrInvalid, shorten(name), len(value), err)
		}
		if err != nil {
			return fmt.Errorf("attribute %q: %w", shorten(name), err)
		}
	}
	return nil
}
