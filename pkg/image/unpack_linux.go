package image

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unpacker unpacks the layers of one image over each other into one directory. It works relative to the descriptor of that
// directory, to which no other process writes; it follows links as programs of the image do, with that directory as their root.
//
// While it works, every directory is 0700 and belongs to this process: seal sets modes, owners and times of directories at the
// end.
type unpacker struct {
	root   int // descriptor of tree/root
	trash  int // directories that later layers have replaced are moved there
	limits Limits
	owners bool // as root: files get the owners of the image

	bytes, entries int64
	stream         int64 // unpacked bytes of archives, headers and padding included
	names          int64 // bytes of names that are kept
	trashed        int
	moved          bool // names may lead to other places than before

	dirs    []dirMark      // in the order in which they came
	dirMark map[string]int // the last of each name in dirs
	open    map[string]int // descriptors of directories, by name
	lower   bool           // there are layers below this one
	made    map[uint64]struct{}
	cleared map[string]struct{} // directories of which lower layers were hidden
	seed    maphash.Seed
	buf     []byte
}

// dirMark has the final attributes of a directory, if it is still the same one.
type dirMark struct {
	name  string
	inode uint64
	attributes
}

const (
	// maxOpen is the number of directories that stay open.
	maxOpen = 64
	// maxNames is the number of bytes of names in memory.
	maxNames = 256 << 20
	// copyBuffer is the size of one write to a file.
	copyBuffer = 512 << 10
)

// newUnpacker prepares dir/tree/root and dir/trash.
func (s *Store) newUnpacker(dir string) (_ *unpacker, err error) {
	u := &unpacker{
		root: -1, trash: -1, limits: s.Limits.complete(), owners: os.Geteuid() == 0,
		dirMark: map[string]int{}, open: map[string]int{}, seed: maphash.MakeSeed(), buf: make([]byte, copyBuffer),
	}
	defer func() {
		if err != nil {
			u.close()
		}
	}()
	root, trash := filepath.Join(dir, treeName, rootName), filepath.Join(dir, trashName)
	for _, d := range []string{filepath.Dir(root), root, trash} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if u.root, err = unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if u.trash, err = unix.Open(trash, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(u.root, &disk); err != nil {
		return nil, err
	}
	u.limits.Bytes = min(u.limits.Bytes, int64(disk.Bavail)*disk.Bsize/10*9)
	u.stream = u.limits.Bytes + headroom(u.limits.Bytes)
	return u, u.mark("", attributes{mode: 0o755})
}

// headroom allows for the headers and the padding of archives: a quarter more, and a minimum for small limits.
func headroom(bytes int64) int64 { return bytes/4 + 64<<20 }

func (u *unpacker) close() {
	u.forgetDirs()
	for _, fd := range []int{u.root, u.trash} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	u.root, u.trash = -1, -1
}

// unpackPart unpacks a layer from its blob, checks its diff id if it has one, and returns diff id and size.
func (s *Store) unpackPart(ctx context.Context, u *unpacker, p part) (part, error) {
	p, err := s.readPart(ctx, p, u.stream, func(str *stream) error { return u.layer(ctx, str) })
	if err == nil {
		u.stream -= p.Unpacked
	}
	return p, err
}

// readPart calls read with the content of a layer, up to a limit; it checks the layer's diff id if it has one, and returns diff
// id and size.
func (s *Store) readPart(ctx context.Context, p part, limit int64, read func(*stream) error) (part, error) {
	blob, err := s.openBlob(p.Digest)
	if err != nil {
		return p, err
	}
	defer blob.Close()
	fail := func(err error) (part, error) { return p, fmt.Errorf("layer %s: %w", p.Digest, err) }
	known := p.DiffID == p.Digest // not compressed, and checked when it came
	str, err := newStream(ctx, blob, limit, !known)
	if err != nil {
		return fail(err)
	}
	defer str.close()
	if known && str.packed != Plain {
		return fail(fmt.Errorf("%w: its diff id is that of its compressed form", ErrInvalid))
	}
	if err := read(str); err != nil {
		return fail(err)
	}
	diffID, size, err := str.finish()
	if err != nil {
		return fail(broken(err))
	}
	if known {
		diffID = p.DiffID
	}
	if p.DiffID != "" && p.DiffID != diffID {
		return fail(fmt.Errorf("%w: it unpacks to %s, and the configuration says %s", ErrInvalid, diffID, p.DiffID))
	}
	p.DiffID, p.Unpacked = diffID, size
	return p, nil
}

// broken returns the error for an unreadable archive.
func broken(err error) error {
	var at *os.PathError
	for _, other := range []error{ErrInvalid, ErrTooLarge, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, other) {
			return err
		}
	}
	if errors.As(err, &at) {
		return err // of the blob's file
	}
	return fmt.Errorf("%w: archive: %w", ErrInvalid, err)
}

// layer unpacks one archive over the layers below.
func (u *unpacker) layer(ctx context.Context, r io.Reader) error {
	if u.lower {
		u.made, u.cleared = map[uint64]struct{}{}, map[string]struct{}{}
	}
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if u.entries++; u.entries > int64(u.limits.Entries) {
			return fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.limits.Entries)
		}
		if err := u.entry(h, archive); err != nil {
			return fmt.Errorf("entry %q: %w", shorten(h.Name), err)
		}
		if u.moved {
			u.forgetDirs()
			u.moved = false
		}
	}
	u.lower = true
	return nil
}

// cleanName returns the name of an entry relative to the root: "./usr/bin/", "/usr/bin" and "usr/bin" are equal. It never leaves
// the root.
func (u *unpacker) cleanName(name string) (string, error) {
	if len(name) > maxPath {
		return "", fmt.Errorf("%w: its name has %d bytes", ErrInvalid, len(name))
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("%w: its name has a zero byte", ErrInvalid)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: its name climbs out of its directory", ErrInvalid)
		}
		if len(part) > maxName {
			return "", fmt.Errorf("%w: a part of its name has %d bytes", ErrInvalid, len(part))
		}
	}
	name = path.Clean("/" + name)[1:]
	if depth := strings.Count(name, "/"); depth > u.limits.Depth {
		return "", fmt.Errorf("%w: it lies %d directories deep", ErrInvalid, depth)
	}
	return name, nil
}

// note records that a name and its parent directories belong to this layer.
func (u *unpacker) note(name string) {
	if u.made == nil {
		return
	}
	for name != "." && name != "" {
		key := maphash.String(u.seed, name)
		if _, known := u.made[key]; known {
			return
		}
		u.made[key] = struct{}{}
		name = path.Dir(name)
	}
}

func (u *unpacker) isNew(name string) bool {
	_, is := u.made[maphash.String(u.seed, name)]
	return is
}

// within opens a directory of the image, and follows links as if its root were that of the machine.
func (u *unpacker) within(name string, flags uint64) (int, error) {
	if name == "" || name == "." {
		name = "."
	}
	how := unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 1000 {
		fd, err := unix.Openat2(u.root, name, &how)
		// EAGAIN: a rename happened while a link led upwards, and the kernel can not guarantee the result.
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// parent opens the directory of an entry, and makes a missing one. The unpacker owns the descriptor.
func (u *unpacker) parent(name string) (int, error) {
	dir := path.Dir(name)
	if dir == "." {
		return u.root, nil
	}
	if fd, is := u.open[dir]; is {
		return fd, nil
	}
	fd, err := u.within(dir, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		if err = u.makeDir(dir); err == nil {
			fd, err = u.within(dir, unix.O_PATH)
		}
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOENT):
		return -1, fmt.Errorf("%w: %q on its way is not a directory", ErrInvalid, shorten(dir))
	case err != nil:
		return -1, err
	}
	if len(u.open) >= maxOpen {
		u.forgetDirs()
	}
	u.open[dir] = fd
	return fd, nil
}

// makeDir makes a directory without an entry.
func (u *unpacker) makeDir(name string) error {
	at, err := u.parent(name)
	if err != nil {
		return err
	}
	if u.entries++; u.entries > int64(u.limits.Entries) {
		return fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.limits.Entries)
	}
	if err := unix.Mkdirat(at, path.Base(name), 0o700); err != nil {
		return err
	}
	return u.mark(name, attributes{mode: 0o755})
}

// mark records the final attributes of a directory.
func (u *unpacker) mark(name string, a attributes) error {
	at, base := u.root, "."
	if name != "" {
		var err error
		if at, err = u.parent(name); err != nil {
			return err
		}
		base = path.Base(name)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	m := dirMark{name: name, inode: st.Ino, attributes: a}
	if i, known := u.dirMark[name]; known {
		u.dirs[i] = m
		return nil
	}
	if u.names += int64(len(name)); u.names > maxNames {
		return fmt.Errorf("%w: the names of its directories have more than %d bytes", ErrTooLarge, maxNames)
	}
	u.dirMark[name] = len(u.dirs)
	u.dirs = append(u.dirs, m)
	return nil
}

// forgetDirs closes the open directories.
func (u *unpacker) forgetDirs() {
	for name, fd := range u.open {
		_ = unix.Close(fd)
		delete(u.open, name)
	}
}

// clear removes the entry with a name. It moves directories away as a whole: they may be large, and the inode of a directory with
// a mark must not be reused.
func (u *unpacker) clear(at int, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	u.moved = u.moved || kind == unix.S_IFDIR || kind == unix.S_IFLNK
	if kind == unix.S_IFDIR {
		u.trashed++
		return unix.Renameat(at, base, u.trash, strconv.Itoa(u.trashed))
	}
	return unix.Unlinkat(at, base, 0)
}

// seal sets the attributes of directories, innermost first, because some become inaccessible. It refuses an image with links at
// the mount points of a sandbox.
func (u *unpacker) seal(ctx context.Context) error {
	for _, name := range []string{"proc", "dev", "sys", "dev/pts", "dev/shm"} {
		if err := u.plainDir(name); err != nil {
			return err
		}
	}
	slices.SortFunc(u.dirs, func(a, b dirMark) int { return cmp.Compare(b.name, a.name) })
	for _, d := range u.dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := u.sealDir(d); err != nil {
			return fmt.Errorf("directory %q: %w", shorten(d.name), err)
		}
	}
	u.dirs, u.dirMark = nil, map[string]int{}
	return nil
}

// plainDir refuses anything but a directory, or a missing entry, at a path.
func (u *unpacker) plainDir(name string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(u.root, name, &how)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%w: /%s is, or lies behind, something that is not a directory, and a sandbox mounts its own there", ErrInvalid, name)
}

func (u *unpacker) sealDir(d dirMark) error {
	fd, err := u.within(d.name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // a later layer has replaced it
		}
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != d.inode {
		return err // another directory has its name
	}
	if err := u.own(fd, ".", d.attributes); err != nil {
		return err
	}
	if err := d.setTime(fd, "."); err != nil {
		return err
	}
	mode := u.mode(d.attributes)
	if d.name == "" {
		mode |= 0o555 // only root could use an image without these bits
	}
	return unix.Fchmod(fd, mode)
}
