package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/filecopy"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/etc"
)

// skeleton is a small file system in memory that is filled through its descriptor, before it is mounted anywhere.
type skeleton struct {
	fd      int
	owner   int            // host id of the owner of all files; -1 is this process's
	parents map[string]int // directories opened so far
}

// newSkeleton makes an empty one. Its mount is writable until seal.
func newSkeleton() (*skeleton, error) {
	fd, err := NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOATIME, [2]string{"mode", "0755"}, [2]string{"size", "64m"})
	if err != nil {
		return nil, err
	}
	return &skeleton{fd: fd, owner: -1, parents: map[string]int{}}, nil
}

// Mountable makes a mount like those of roots, and drops it: a user namespace may be available and yet not permit
// mounts.
func Mountable() error {
	s, err := newSkeleton()
	if err == nil {
		s.close()
	}
	return err
}

func (s *skeleton) close() {
	s.closeParents()
	_ = unix.Close(s.fd)
}

func (s *skeleton) closeParents() {
	for _, fd := range s.parents {
		_ = unix.Close(fd)
	}
	clear(s.parents)
}

// parent opens the directory of a path, which it makes if needed, and returns the last component. It follows no link:
// those of a skeleton lead to unrelated places of the host (F6).
func (s *skeleton) parent(p string) (fd int, name string, err error) {
	dir, name := path.Split(rel(p))
	if dir == "" {
		return s.fd, name, nil
	}
	dir = path.Clean(dir)
	if fd, ok := s.parents[dir]; ok {
		return fd, name, nil
	}
	if err := s.dir(dir); err != nil {
		return -1, "", err
	}
	if fd, err = beneath(s.fd, dir); err != nil {
		return -1, "", named(p, err)
	}
	s.parents[dir] = fd
	return fd, name, nil
}

// sealTimeout is how long seal waits for copies of descriptors it has written through.
const sealTimeout = 10 * time.Second // on a busy machine a child may take long to reach its exec

// seal makes the mount read-only, with further attributes. A process that was cloned while a file of
// the skeleton was open for writing holds it until it executes, and that keeps the mount busy.
func (s *skeleton) seal(attrs uint64) error {
	for end := time.Now().Add(sealTimeout); ; time.Sleep(100 * time.Microsecond) {
		err := unix.MountSetattr(s.fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | attrs})
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// rel is a path relative to the descriptor.
func rel(p string) string {
	if p = strings.TrimPrefix(path.Clean(p), "/"); p == "" {
		return "."
	}
	return p
}

// dir makes a directory and those above it.
func (s *skeleton) dir(p string) error {
	if rel(p) == "." {
		return nil
	}
	at, name, err := s.parent(p)
	if err != nil {
		return err
	}
	switch err = unix.Mkdirat(at, name, 0o755); {
	case err == nil:
		if err = unix.Fchmodat(at, name, 0o755, 0); err == nil { // with any umask
			err = s.give(at, name)
		}
	case errors.Is(err, unix.EEXIST):
		var st unix.Stat_t
		if err = unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = unix.ELOOP
		}
	}
	return named(p, err)
}

// give changes the owner of an entry.
func (s *skeleton) give(at int, name string) error {
	if s.owner < 0 {
		return nil
	}
	return unix.Fchownat(at, name, s.owner, s.owner, unix.AT_SYMLINK_NOFOLLOW)
}

func (s *skeleton) symlink(target, p string) error {
	at, name, err := s.parent(p)
	if err != nil {
		return err
	}
	return named(p, unix.Symlinkat(target, at, name))
}

func (s *skeleton) file(p, content string) error {
	return s.fill(p, func(f *os.File) error {
		_, err := f.WriteString(content)
		return err
	})
}

// fill makes a file, and calls write for its content.
func (s *skeleton) fill(p string, write func(*os.File) error) error {
	at, name, err := s.parent(p)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return named(p, err)
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	if err := unix.Fchmod(fd, 0o644); err != nil {
		return named(p, err)
	}
	if err := write(f); err != nil {
		return named(p, err)
	}
	return named(p, s.give(at, name))
}

// device makes a device node by number: its behaviour does not depend on the host's file of that name (F4).
func (s *skeleton) device(p string, major, minor uint32) error {
	if err := unix.Mknodat(s.fd, rel(p), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return named(p, err)
	}
	return named(p, unix.Fchmodat(s.fd, rel(p), 0o666, 0)) // with any umask
}

// opaque makes an overlay hide the lower layers of a directory.
func (s *skeleton) opaque(p string) error {
	return named(p, unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d/%s", s.fd, rel(p)), "trusted.overlay.opaque", []byte("y"), 0))
}

func named(p string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	return nil
}

// baseDirs are the mount points of the init in every sandbox.
var baseDirs = []string{"/proc", "/sys", "/dev", sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir}

// configFiles are files of the host that a root of host paths shows, where they exist, in addition to sandbox.HostDirs.
// Of /etc it shows only the files that programs need to start: the rest is private to the host.
var configFiles = []string{"/etc/fonts/fonts.conf", "/etc/ld.so.cache", "/etc/localtime", "/etc/matplotlibrc", "/etc/mime.types",
	"/etc/protocols", "/etc/services", "/etc/ssl/openssl.cnf"}

// maxConfigFile bounds a file that is copied into a root in memory.
const maxConfigFile = 4 << 20

// identity writes the files from which programs learn their user and host name.
func (s *skeleton) identity(spec *sandbox.Spec) error {
	return s.files(map[string]string{
		"/etc/passwd":        string(etc.Passwd(nil, spec.User)),
		"/etc/group":         string(etc.Group(nil, spec.User)),
		"/etc/hosts":         etc.Hosts(spec.Hostname),
		"/etc/hostname":      spec.Hostname + "\n",
		"/etc/nsswitch.conf": etc.Switch,
		"/etc/resolv.conf":   etc.Resolver,
	})
}

func (s *skeleton) files(all map[string]string) error {
	for p, content := range all {
		if err := s.file(p, content); err != nil {
			return err
		}
	}
	return nil
}

// copyConfig copies a small file of the host, if it exists.
func (s *skeleton) copyConfig(p string) error {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxConfigFile {
		return nil
	}
	return s.fill(p, func(to *os.File) error {
		_, err := filecopy.Within(int(to.Fd()), int(f.Fd()), maxConfigFile)
		return err
	})
}

// Device is a device node.
type Device struct {
	Name         string
	major, minor uint32
}

// Devices are the devices that every program may expect, by number.
var Devices = []Device{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

// layDev makes /dev: devices, and the links that programs expect. Only the machine's root can make a device; a confined
// helper shows those of the host, after a check of their numbers (F4).
func (l *layout) layDev() error {
	s, err := newSkeleton()
	if err != nil {
		return err
	}
	l.parts = append(l.parts, part{at: "/dev", mount: s.fd})
	for _, d := range Devices {
		switch {
		case err != nil:
		case !l.confined:
			err = s.device(d.Name, d.major, d.minor)
		default:
			var mount int
			if mount, err = hostDevice("/dev/"+d.Name, d.major, d.minor); err == nil {
				l.parts = append(l.parts, part{at: "/dev/" + d.Name, mount: mount})
				err = s.file(d.Name, "")
			}
		}
	}
	for _, link := range [][2]string{
		{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
		{"pts/ptmx", "ptmx"},
	} {
		if err == nil {
			err = s.symlink(link[0], link[1])
		}
	}
	for _, d := range []string{"shm", "pts"} {
		if err == nil {
			err = s.dir(d)
		}
	}
	if err == nil {
		err = s.seal(unix.MOUNT_ATTR_NOEXEC)
	}
	s.closeParents() // the layout owns the mount now
	return err
}

// hostDevice is a detached mount of a device of the host.
func hostDevice(p string, major, minor uint32) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, named(p, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(major, minor)) {
		err = errors.New("is not the device of that name")
	}
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, named(p, err)
	}
	return fd, nil
}
