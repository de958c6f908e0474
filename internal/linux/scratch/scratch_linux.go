package scratch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is the error of Close while another process still keeps the disk: by another descriptor, a mount in a living
// namespace, or an open file. The kernel frees the space when that process releases it.
var ErrHeld = errors.New("the scratch is still held by another process")

// Options describe the size of a scratch.
type Options struct {
	// Bytes that files may hold together. 0 is an error, never "without limit"; a disk has at least 256 KiB.
	Bytes uint64
	// Inodes that an unprivileged user may make, the root directory not counted. 0 is an error.
	Inodes uint64
	// CacheDir has the formatted image files, and the files behind disks; DefaultCacheDir when empty. Only Disk uses it.
	CacheDir string
	// Floor is the free space that the file system of CacheDir is to keep, in bytes; 0 is the smaller of 1 GiB and 5 % of it.
	// Only Disk uses it.
	Floor uint64
}

// Usage is the fill level of a scratch, as an unprivileged user sees it.
type Usage struct {
	BytesUsed, BytesTotal   uint64
	InodesUsed, InodesTotal uint64
	// Full: no inode is left, or so few bytes that a large write has failed: less than 2 MiB and less than 1/64 of the
	// disk. The kernel reserves space for as much of a write at once as it can, up to 2 MiB, and if there is not that
	// much the write fails, though a smaller one would not.
	Full bool
}

// Scratch is the writable disk of one sandbox: a detached mount.
type Scratch struct {
	file *os.File
	loop *loopDevice // nil for memory
	// emptyBytes and emptyInodes are the free space of the new disk, without the file system's own needs.
	emptyBytes, emptyInodes uint64

	// For a disk only. The loop device stays open because it reports failed writes.
	device *os.File
	host   *hostDisk
	share  *share
	lost   atomic.Bool // the backing store has reported an error

	mu     sync.RWMutex // guards closed; read-locked while the descriptor is in use, so that its number is not reused
	closed bool
}

// The mount's flags. A scratch must not grant privileges, and a temporary disk needs no access times.
const mountAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// Memory makes a scratch of memory (tmpfs). Its pages are charged to the memory cgroup of the writing process, so it is
// a limit beside the memory limit only as long as it is the smaller of the two.
func Memory(o Options) (*Scratch, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("scratch: memory: %w", err)
	}
	fd, err := mount("tmpfs", []option{
		{"size", strconv.FormatUint(o.Bytes, 10)},
		{"nr_inodes", strconv.FormatUint(o.Inodes+1, 10)}, // the root directory is one
		{"mode", "0755"},
	})
	if err != nil {
		return nil, fmt.Errorf("scratch: mount tmpfs: %w; mounting needs CAP_SYS_ADMIN in the user namespace", err)
	}
	return newScratch(fd)
}

// Mounted wraps a scratch of memory that a mount helper has made with these options, directories included. It owns the
// descriptor.
func Mounted(fd int, o Options) (*Scratch, error) {
	s, err := newScratch(fd)
	if err == nil {
		s.emptyInodes = o.Inodes
	}
	return s, err
}

// Disk makes a scratch on the host's disk: a loop device over an unnamed sparse file with an ext4. The limit is
// independent of memory limits. See DiskAvailable for the requirements.
func Disk(o Options) (*Scratch, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("scratch: disk: %w", err)
	}
	if o.Bytes > maxDiskBytes || o.Inodes > maxDiskInodes {
		return nil, fmt.Errorf("scratch: disk: %d bytes and %d inodes asked for; at most %d and %d are possible: %w",
			o.Bytes, o.Inodes, uint64(maxDiskBytes), uint64(maxDiskInodes), unix.EFBIG)
	}
	dir, err := cacheDirs.get(o.CacheDir)
	if err != nil {
		return nil, err
	}
	t, err := dir.template(o.Bytes, o.Inodes)
	if err != nil {
		return nil, err
	}
	backing, err := dir.unnamed()
	if err != nil {
		return nil, err
	}
	host, share, err := admit(backing, t.size, t.used(), o.Floor) // a write to the device does not report a full disk: see template.copyTo
	if err != nil {
		_ = backing.Close()
		return nil, fmt.Errorf("scratch: make a disk below %s: %w%s", dir.path, err, hintFor(err))
	}
	if err := unix.Ftruncate(int(backing.Fd()), int64(t.size)); err != nil {
		host.leave(share)
		return nil, fmt.Errorf("scratch: size a file of %d bytes below %s: %w%s", t.size, dir.path, err, hintFor(err))
	}
	s, err := mountLoop(backing, t.copyTo)
	if err != nil {
		host.leave(share)
		return nil, err
	}
	s.host, s.share = host, share
	return s, nil
}

// mountLoop mounts a file with an ext4. If fill is not nil, mountLoop first calls it to write the file system to the
// device. The caller still owns backing.
func mountLoop(backing *os.File, fill func(device int) error) (*Scratch, error) {
	loop, device, err := attachLoop(int(backing.Fd()))
	if err != nil {
		return nil, err
	}
	// The mount keeps the device, and so does this descriptor. The kernel removes the device when both are closed, even
	// by a crash.
	s := &Scratch{loop: loop, device: os.NewFile(uintptr(device), loop.path())}
	if fill != nil {
		if err := fill(device); err != nil {
			_ = s.device.Close()
			return nil, fmt.Errorf("scratch: write a file system to %s: %w", loop.path(), err)
		}
	}
	fd, err := mount("ext4", append([]option{{"source", loop.path()}}, ext4Options...))
	if err != nil {
		_ = s.device.Close()
		return nil, fmt.Errorf("scratch: mount %s as ext4: %w", loop.path(), err)
	}
	if err := s.open(fd); err != nil {
		_ = s.device.Close()
		return nil, err
	}
	return s, nil
}

// ext4Options are for a temporary disk: options that only serve to survive a crash are off. Delayed allocation stays on:
// without it 500 MB under a memory limit of 128 MB take three times as long.
var ext4Options = []option{
	{"noinit_itable", ""},   // the tables are holes, thus zero: no kernel thread has to clear them
	{"nobarrier", ""},       // fsync ends in the host's page cache: 0.17 ms instead of 0.4 or the host's disk's time
	{"noauto_da_alloc", ""}, // no flush on rename over a file
	{"nodiscard", ""},       // the backing file is dropped as a whole
	{"errors", "continue"},  // overrides the superblock: a sandbox could trigger its "panic"
}

func (o Options) check() error {
	switch {
	case o.Bytes == 0:
		return fmt.Errorf("the size is 0: %w; ask for at least one byte", unix.EINVAL)
	case o.Inodes == 0:
		return fmt.Errorf("the number of inodes is 0: %w; ask for at least one", unix.EINVAL)
	case o.Bytes > 1<<60 || o.Inodes > 1<<60:
		return fmt.Errorf("%d bytes, %d inodes: %w", o.Bytes, o.Inodes, unix.EFBIG)
	}
	return nil
}

func newScratch(fd int) (*Scratch, error) {
	s := &Scratch{}
	if err := s.open(fd); err != nil {
		return nil, err
	}
	return s, nil
}

// open takes ownership of the descriptor of a new mount.
func (s *Scratch) open(fd int) error {
	s.file = os.NewFile(uintptr(fd), "scratch")
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		_ = s.file.Close()
		return fmt.Errorf("scratch: statfs of the new mount: %w", err)
	}
	s.emptyBytes, s.emptyInodes = st.Bavail*uint64(st.Bsize), st.Ffree
	return nil
}

// File is the mount's descriptor, opened with O_PATH: for move_mount, for the *at calls, for a message to the init. s
// owns it, and Close closes it.
func (s *Scratch) File() *os.File { return s.file }

// Use calls f with the mount's descriptor, which stays valid until f returns. After Close it returns os.ErrClosed.
func (s *Scratch) Use(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("scratch: %w", os.ErrClosed)
	}
	return f(int(s.file.Fd()))
}

// InMemory reports whether its files take memory.
func (s *Scratch) InMemory() bool { return s.loop == nil }

// Mkdir makes a directory in the scratch's root, with exactly that mode and owner (host ids). An existing file or
// directory of that name is an error.
func (s *Scratch) Mkdir(name string, mode uint32, uid, gid int) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("scratch: mkdir %q: not a name of one component: %w", name, unix.EINVAL)
	}
	return s.Use(func(at int) error { return mkdir(at, name, mode, uid, gid) })
}

func mkdir(at int, name string, mode uint32, uid, gid int) error {
	fail := func(op string, err error) error { return fmt.Errorf("scratch: %s %q: %w", op, name, err) }
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return fail("mkdir", err)
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return fail("chown", err)
	}
	if err := unix.Fchmod(fd, mode&0o7777); err != nil { // after the chown, which may clear bits
		return fail("chmod", err)
	}
	return nil
}

// Usage returns the fill level of the scratch. It costs one system call.
func (s *Scratch) Usage() (Usage, error) {
	var u Usage
	err := s.Use(func(int) (err error) {
		u, err = s.usage()
		return err
	})
	return u, err
}

func (s *Scratch) usage() (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.file.Fd()), &st); err != nil {
		return Usage{}, fmt.Errorf("scratch: statfs: %w", err)
	}
	u := Usage{BytesTotal: s.emptyBytes, InodesTotal: s.emptyInodes}
	u.BytesUsed = u.BytesTotal - min(u.BytesTotal, st.Bavail*uint64(st.Bsize))
	u.InodesUsed = u.InodesTotal - min(u.InodesTotal, st.Ffree)
	u.Full = st.Ffree == 0 || st.Bavail == 0 || st.Bavail*uint64(st.Bsize) < min(fullSlack, u.BytesTotal/64)
	return u, nil
}

const (
	// fullSlack is the size of the largest folio a file system writes into.
	fullSlack = 2 << 20
	// shutdownFrom is the use from which a disk is shut down before it is dropped: the kernel logs a line for a
	// shutdown, with a priority that reaches the console, which a small disk is not worth. Dropping 300 MB takes 10 ms
	// with it and 100 to 500 without.
	shutdownFrom = 16 << 20
	// heldWait is how long Close waits for the kernel to finish the unmount, and for a just forked process to reach its
	// exec, which closes its copy of the descriptor. Both need milliseconds, and seconds on a machine with 25 runnable
	// tasks on two processors. No other process should keep a disk that is being closed.
	heldWait = 10 * time.Second
	// heldPause is the longest pause between two checks.
	heldPause = 20 * time.Millisecond

	// FS_IOC_SHUTDOWN, with EXT4_GOING_FLAGS_NOLOGFLUSH: from here on nothing is written any more.
	fsIocShutdown     = 0x8004587d
	goingFlagsNoFlush = 2
)

// Close ends the disk: its data is lost, and a process that still uses it may see EIO. When Close returns nil, the space
// and the loop device are free; ErrHeld says that they will be when the other process releases them. Close may be called
// twice and does nothing the second time. File's descriptor is invalid afterwards.
func (s *Scratch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.share != nil {
		s.checkBacking(int(s.file.Fd())) // for a run that ends at the same time
	}
	if s.loop != nil {
		s.dropDirty()
	}
	if s.share != nil {
		defer s.host.leave(s.share) // last: the space is free when the file behind the disk is closed
	}
	err := s.file.Close()
	if s.loop == nil {
		return err
	}
	if err = errors.Join(err, s.device.Close()); err != nil {
		return fmt.Errorf("scratch: close the mount: %w", err)
	}
	pause := 50 * time.Microsecond
	for end := time.Now().Add(heldWait); s.loop.bound(); pause = min(2*pause, heldPause) {
		if time.Now().After(end) {
			return fmt.Errorf("scratch: drop %s: %w; end every process of the sandbox first", s.loop.path(), ErrHeld)
		}
		time.Sleep(pause)
	}
	return nil
}

// dropDirty keeps the kernel from writing the pages of a disk to a backing file that is about to be dropped: the unmount
// would wait for those writes.
func (s *Scratch) dropDirty() {
	if u, err := s.usage(); err != nil || u.BytesUsed < shutdownFrom {
		return
	}
	// An O_PATH descriptor takes no ioctl. Errors only slow the drop down.
	fd, err := unix.Openat(int(s.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, fsIocShutdown, goingFlagsNoFlush)
	_ = unix.Close(fd)
}

// option is one parameter of a file system; a flag has no value.
type option struct{ key, value string }

// mount makes a file system with a detached mount.
func mount(fsType string, options []option) (int, error) {
	fs, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fs, o.key)
		} else {
			err = unix.FsconfigSetString(fs, o.key, o.value)
		}
		if err != nil {
			return -1, fmt.Errorf("fsconfig %s=%s: %w%s", o.key, o.value, err, readMountError(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("fsconfig create: %w%s", err, readMountError(fs))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, mountAttrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w%s", err, readMountError(fs))
	}
	return fd, nil
}

// readMountError is the file system's own message about a failure.
func readMountError(fs int) string {
	var buf [512]byte
	n, err := unix.Read(fs, buf[:])
	if err != nil || n <= 2 {
		return ""
	}
	return " (" + strings.TrimSpace(string(buf[2:n])) + ")" // "e text", "w text" or "i text"
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "; the host's disk is full: free some space"
	case errors.Is(err, unix.EROFS):
		return "; use a cache directory on a writable file system"
	case errors.Is(err, unix.EFBIG):
		return "; the file system of the cache directory can't hold a file that large"
	}
	return ""
}
