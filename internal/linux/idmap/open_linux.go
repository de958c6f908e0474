package idmap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is wrapped when a file system, or one mounted below it, can not show its files under another id. A caller
// may do without a mapping for reading, and must refuse for writing.
var ErrUnsupported = errors.New("the file system does not support id-mapped mounts")

// ErrSource is wrapped when the source is neither a directory nor a regular file.
var ErrSource = errors.New("not a directory or regular file")

// Mapping shows files that belong to From on the file system as belonging to To, and makes files that To creates belong to
// From. All ids are the host's.
type Mapping struct {
	FromUID, ToUID, FromGID, ToGID uint32
	// Keep is a user and a group whose files are shown, and made, with their own ids; 0 is none. The process that makes a file
	// and then changes its owner to To needs it.
	Keep uint32
}

// identity reports that the mapping changes nothing and needs no support by the file system.
func (m *Mapping) identity() bool { return m == nil || m.FromUID == m.ToUID && m.FromGID == m.ToGID }

// Options says how a source is shown. The zero value is read-only, without a mapping.
type Options struct {
	Writable bool
	Map      *Mapping // nil is none
	// Owner shows files of the source's own owner and group as belonging to these ids. It replaces Map.
	Owner *Owner
}

// Owner is a user and a group of the host.
type Owner struct {
	UID, GID uint32
	Keep     uint32 // as in Mapping
}

// Open clones the mount tree at source, an absolute path without symlinks and dots. The descriptor is for move_mount; it is
// opened with O_PATH, and the caller closes it. isFile says that source is a regular file, so that the mount point has
// to be one too. Errors wrap ErrUnsupported, ErrSource or the errno.
func Open(source string, o Options) (mount *os.File, isFile bool, err error) {
	path, st, err := openPath(source)
	if err != nil {
		return nil, false, err
	}
	defer unix.Close(path)
	isFile = st.Mode&unix.S_IFMT == unix.S_IFREG
	if o.Owner != nil {
		o.Map = &Mapping{FromUID: st.Uid, ToUID: o.Owner.UID, FromGID: st.Gid, ToGID: o.Owner.GID, Keep: o.Owner.Keep}
	}
	const flags = unix.AT_EMPTY_PATH | unix.AT_RECURSIVE
	fd, err := unix.OpenTree(path, "", flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, false, fmt.Errorf("idmap: clone the mount at %s: %w%s", source, err, hint(err))
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if !o.Writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if o.Map.identity() {
		err = unix.MountSetattr(fd, "", flags, &attr)
	} else {
		err = namespaces.with(*o.Map, func(userns int) error {
			attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
			attr.Userns_fd = uint64(userns)
			err := unix.MountSetattr(fd, "", flags, &attr)
			// EPERM: the mount has a mapping already, or belongs to another user namespace.
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) {
				err = fmt.Errorf("%w: %w%s; use a directory on ext4, xfs, btrfs or tmpfs without other mounts in it", ErrUnsupported, err, kindOf(path))
			}
			return err
		})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, false, fmt.Errorf("idmap: set the attributes of the mount of %s: %w%s", source, err, hint(err))
	}
	return os.NewFile(uintptr(fd), source), isFile, nil
}

// openPath opens the directory or file at a path without following links, reading it or triggering automounts.
func openPath(source string) (fd int, st *unix.Stat_t, err error) {
	if !filepath.IsAbs(source) || filepath.Clean(source) != source || strings.ContainsRune(source, 0) {
		return -1, nil, fmt.Errorf("idmap: open %q: not an absolute path in its shortest form: %w", source, unix.EINVAL)
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	for range 100 {
		if fd, err = unix.Openat2(unix.AT_FDCWD, source, &how); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break // EAGAIN: a component was renamed meanwhile
		}
	}
	if errors.Is(err, unix.ELOOP) {
		return -1, nil, fmt.Errorf("idmap: open %s: %s is a symlink, which is never followed: %w; name its target", source, symlinkIn(source),
			err)
	}
	if err != nil {
		return -1, nil, fmt.Errorf("idmap: open %s: %w", source, err)
	}
	st = new(unix.Stat_t)
	if err := unix.Fstat(fd, st); err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("idmap: stat %s: %w", source, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		return fd, st, nil
	}
	_ = unix.Close(fd)
	return -1, nil, fmt.Errorf("idmap: open %s: %s: %w", source, kindName(st.Mode), ErrSource)
}

// symlinkIn finds the component that is a symlink, for the message only.
func symlinkIn(path string) string {
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if info, err := os.Lstat(path[:i]); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return path[:i]
		}
	}
	return "a part of it"
}

func kindName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return "of an unknown kind"
}

// kindOf names the file system by its magic number: its name would need a read of mountinfo.
func kindOf(fd int) string {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return ""
	}
	return fmt.Sprintf(" (statfs type %#x)", uint64(st.Type))
}

func hint(err error) string {
	switch {
	case errors.Is(err, ErrUnsupported):
	case errors.Is(err, unix.EPERM):
		return "; CAP_SYS_ADMIN is needed"
	case errors.Is(err, unix.ENOSYS):
		return "; Linux 5.12 or later is needed"
	}
	return ""
}
