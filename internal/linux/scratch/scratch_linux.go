package scratch

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is what Close returns when somebody else still keeps the disk: another descriptor, a mount in a living
// namespace, an open file. The space comes back, by the kernel's own doing, when they let go.
var ErrHeld = errors.New("the scratch is still held by another process")

// Options says how large a scratch is.
type Options struct {
	// Bytes that files may hold together. 0 is an error, never "without limit"; a disk has at least 256 KiB.
	Bytes uint64
	// Inodes that an unprivileged user may make, the root directory not counted. 0 is an error.
	Inodes uint64
	// CacheDir keeps templates and backs disks while they exist; DefaultCacheDir when empty. Only Disk uses it.
	CacheDir string
}

// Usage is how full a scratch is, as an unprivileged user sees it.
type Usage struct {
	BytesUsed, BytesTotal   uint64
	InodesUsed, InodesTotal uint64
	// Full: not one more inode, or so few bytes that a large write has failed: less than 2 MiB and than 1/64 of the disk.
	// The kernel takes space for as much of a write at once as it can, up to 2 MiB, and when there is not that much the
	// write fails, though a smaller one would not.
	Full bool
}

// Scratch is the writable disk of one sandbox: a mount that is attached nowhere on the host.
type Scratch struct {
	file *os.File
	loop *loopDevice // nil for memory
	// emptyBytes and emptyInodes are what the disk offered when it was new; the file system's own needs are not in them.
	emptyBytes, emptyInodes uint64
	hostFree                uint64 // of the file system the disk lies on, when it was made

	mu     sync.RWMutex // guards closed; read-locked while the descriptor is in use, so that its number is not another's
	closed bool
}

// The mount's flags. Nothing here may lend privileges, and nobody asks a throw-away disk for access times.
const mountAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// Memory makes a scratch of memory (tmpfs). Its pages are charged to the memory cgroup of whoever writes them, so it is a
// limit beside the memory limit only as long as it is the smaller of the two.
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
	return newScratch(fd, nil)
}

// Mounted is a scratch of memory that somebody else has made with these options and put directories in. It takes over the
// descriptor.
func Mounted(fd int, o Options) (*Scratch, error) {
	s, err := newScratch(fd, nil)
	if err == nil {
		s.emptyInodes = o.Inodes
	}
	return s, err
}

// Disk makes a scratch on the host's disk: a loop device over an unnamed sparse file that holds an ext4. The limit is
// independent of memory limits. See DiskAvailable for what it needs.
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
	defer backing.Close() // the loop device keeps it
	fail := func(err error) (*Scratch, error) {
		return nil, fmt.Errorf("scratch: write a file system of %d bytes below %s: %w%s", t.size, dir.path, err, hintFor(err))
	}
	free := hostFree(int(backing.Fd()))
	if free < t.used() {
		return fail(unix.ENOSPC) // nobody else would say so: see template.copyTo
	}
	if err := unix.Ftruncate(int(backing.Fd()), int64(t.size)); err != nil {
		return fail(err)
	}
	s, err := mountLoop(backing, t.copyTo)
	if err == nil {
		s.hostFree = free
	}
	return s, err
}

// hostFree is the space below a file that an unprivileged user could take; all there could be when nobody knows.
func hostFree(fd int) uint64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return math.MaxUint64
	}
	return st.Bavail * uint64(st.Bsize)
}

// HostFree is what was free on the host's disk when this one was made there. The file behind it is sparse: when the host has
// less than the disk promises, what is written beyond that is lost, and a program that asks (fsync) is told EIO.
func (s *Scratch) HostFree() (free uint64, onDisk bool) { return s.hostFree, s.loop != nil }

// mountLoop turns a file that holds an ext4 into a mount, or does so once fill, if it is not nil, has written one to its
// device. It does not take over backing.
func mountLoop(backing *os.File, fill func(device int) error) (*Scratch, error) {
	loop, device, err := attachLoop(int(backing.Fd()))
	if err != nil {
		return nil, err
	}
	// From the mount on, the mount keeps the device; until then this descriptor does. Either way it is gone with the last
	// of them, whoever dies how.
	defer unix.Close(device)
	if fill != nil {
		if err := fill(device); err != nil {
			return nil, fmt.Errorf("scratch: write a file system to %s: %w", loop.path(), err)
		}
	}
	fd, err := mount("ext4", append([]option{{"source", loop.path()}}, ext4Options...))
	if err != nil {
		return nil, fmt.Errorf("scratch: mount %s as ext4: %w", loop.path(), err)
	}
	return newScratch(fd, loop)
}

// ext4Options are for a disk that nobody will ever read again: whatever only serves to survive a crash is off. Delayed
// allocation stays on: without it 500 MB under a memory limit of 128 MB take three times as long.
var ext4Options = []option{
	{"noinit_itable", ""},   // the tables are holes, thus zero: no kernel thread has to clear them
	{"nobarrier", ""},       // fsync ends in the host's page cache: 0.17 ms instead of 0.4 or the host's disk's time
	{"noauto_da_alloc", ""}, // no flush on rename over a file
	{"nodiscard", ""},       // the backing goes as a whole
	{"errors", "continue"},  // not what the superblock says: "panic" would be a sandbox's to trigger
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

func newScratch(fd int, loop *loopDevice) (*Scratch, error) {
	s := &Scratch{file: os.NewFile(uintptr(fd), "scratch"), loop: loop}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("scratch: statfs of the new mount: %w", err)
	}
	s.emptyBytes, s.emptyInodes = st.Bavail*uint64(st.Bsize), st.Ffree
	return s, nil
}

// File is the mount's descriptor, opened with O_PATH: for move_mount, for the *at calls, for a message to the init. It
// belongs to s and is closed by Close.
func (s *Scratch) File() *os.File { return s.file }

// Use calls f with the mount's descriptor, which stays the scratch's until f returns. After Close it is os.ErrClosed.
func (s *Scratch) Use(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("scratch: %w", os.ErrClosed)
	}
	return f(int(s.file.Fd()))
}

// InMemory says that files in it take memory.
func (s *Scratch) InMemory() bool { return s.loop == nil }

// Mkdir makes a directory in the scratch's root, with exactly that mode and owner (host ids). An existing one, or anything
// else of that name, is an error.
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
	if err := unix.Fchmod(fd, mode&0o7777); err != nil { // after the chown, which may take bits away
		return fail("chmod", err)
	}
	return nil
}

// Usage says how full the scratch is. It costs one system call.
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
	// shutdownFrom is how much must be in use for a disk to be shut down before it is dropped: the kernel logs a line for
	// it, urgently enough for the console, which a small disk is not worth. Dropping 300 MB takes 10 ms with it and 100 to
	// 500 without.
	shutdownFrom = 16 << 20
	// heldWait is how long Close waits for a process that was forked just now and has not yet reached exec, where its
	// copy of the descriptor ends; on a busy machine that takes its time. Nothing else should hold a disk that is being closed.
	heldWait = 2 * time.Second

	// FS_IOC_SHUTDOWN, with EXT4_GOING_FLAGS_NOLOGFLUSH: from here on nothing is written any more.
	fsIocShutdown     = 0x8004587d
	goingFlagsNoFlush = 2
)

// Close ends the disk: whatever is on it is lost, and a process that still uses it may see EIO. When Close returns nil the
// space and the loop device are free; ErrHeld says that they will be when the other holder is gone. Close may be called
// twice and does nothing the second time. File's descriptor is invalid afterwards.
func (s *Scratch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.loop != nil {
		s.dropDirty()
	}
	if err := s.file.Close(); err != nil {
		return fmt.Errorf("scratch: close the mount: %w", err)
	}
	if s.loop == nil {
		return nil
	}
	pause := 50 * time.Microsecond
	for end := time.Now().Add(heldWait); s.loop.bound(); pause *= 2 {
		if time.Now().After(end) {
			return fmt.Errorf("scratch: drop %s: %w; end every process of the sandbox first", s.loop.path(), ErrHeld)
		}
		time.Sleep(pause)
	}
	return nil
}

// dropDirty keeps the kernel from writing the pages of a disk to its backing file only to throw that away: unmounting
// would do so first, for as long as it takes.
func (s *Scratch) dropDirty() {
	if u, err := s.usage(); err != nil || u.BytesUsed < shutdownFrom {
		return
	}
	// An O_PATH descriptor takes no ioctl. Errors only make the drop slower.
	fd, err := unix.Openat(int(s.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, fsIocShutdown, goingFlagsNoFlush)
	_ = unix.Close(fd)
}

// option is one parameter of a file system; a flag has no value.
type option struct{ key, value string }

// mount makes a file system and a mount of it that is attached nowhere.
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
			return -1, fmt.Errorf("fsconfig %s=%s: %w%s", o.key, o.value, err, complaint(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("fsconfig create: %w%s", err, complaint(fs))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, mountAttrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w%s", err, complaint(fs))
	}
	return fd, nil
}

// complaint is what the file system itself had to say about a failure.
func complaint(fs int) string {
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
		return "; the host's disk is full: free some space or use another cache directory"
	case errors.Is(err, unix.EROFS):
		return "; use a cache directory on a writable file system"
	case errors.Is(err, unix.EFBIG):
		return "; the file system of the cache directory can't hold a file that large"
	}
	return ""
}
