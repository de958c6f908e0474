//go:build linux && (amd64 || arm64)

package clone

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Init describes how an init is started.
type Init struct {
	Binary     int // a descriptor, because a child with other ids may not be able to resolve a path
	Args       []string
	Env        []string
	Namespaces uintptr // CLONE_NEW* flags
	// Owner is the host id that a user namespace among them belongs to. The kernel counts resources that are made in it
	// (inotify instances, pending signals, …) against that id too, wherever it comes from: no other user should have it.
	Owner uint32
	Files []int // become descriptors 0, 1, 2, …; all others are closed
	// Alone says that the executable needs no other file to start: it gets none before it calls Awaken.
	Alone bool
	// Cgroup is the open directory of the v2 cgroup to start the init in, if the kernel and a container's filter permit
	// it; 0 is none.
	Cgroup int
}

// initLaunch is an Init in the form that the child can use.
type initLaunch struct {
	binary     int
	argv, envp []*byte
	files      []int
	keepCaps   bool
	alone      bool
	dumpable   bool
	owner      uintptr
	birth      birth
	errno      unix.Errno // the child's error
}

// starting is read-locked while a child has copies of this process's descriptors.
var starting sync.RWMutex

// Settle returns when no child has a copy any more of a descriptor that was closed here before. A child has copies of
// all until its exec; and the kernel does not execute a file that a process may still write to (ETXTBSY).
func Settle() {
	starting.Lock()
	starting.Unlock() //nolint:staticcheck // taking the lock is the whole purpose
	// Children of os/exec.
	syscall.ForkLock.RLock()
	syscall.ForkLock.RUnlock() //nolint:staticcheck // the same
}

// StartInit clones an init and returns after its exec. In a user namespace of its own it has all its capabilities, and
// no ids yet: the caller writes the maps. The caller owns the pidfd.
func StartInit(d Init) (pid, pidfd int, err error) {
	l := &initLaunch{keepCaps: d.Namespaces&unix.CLONE_NEWUSER != 0, alone: d.Alone, dumpable: wasDumpable(), owner: uintptr(d.Owner)}
	if l.argv, err = syscall.SlicePtrFromStrings(d.Args); err != nil {
		return 0, -1, err
	}
	if l.envp, err = syscall.SlicePtrFromStrings(d.Env); err != nil {
		return 0, -1, err
	}
	// Sources lie above all targets, so that no copy overwrites one that is still needed.
	var above []int
	defer func() { closeFDs(above) }()
	for _, f := range append(d.Files[:len(d.Files):len(d.Files)], d.Binary) {
		fd, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, len(d.Files))
		if err != nil {
			return 0, -1, err
		}
		above = append(above, fd)
	}
	l.files, l.binary = above[:len(d.Files)], above[len(d.Files)]
	child, errno := uintptr(0), uintptr(unix.ENOSYS)
	starting.RLock()
	defer starting.RUnlock()
	if d.Cgroup > 0 {
		l.birth.into(d.Namespaces, d.Cgroup)
		child, errno = forkInit(l)
	}
	if errno != 0 {
		l.birth.plain(d.Namespaces)
		child, errno = forkInit(l)
	}
	fd := l.birth.pidfd
	runtime.KeepAlive(l)
	if errno != 0 {
		return 0, -1, unix.Errno(errno)
	}
	if l.errno != 0 {
		_, _ = unix.Wait4(int(child), nil, unix.WALL, nil)
		_ = unix.Close(int(fd))
		return 0, -1, l.errno
	}
	return int(child), int(fd), nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

//go:nosplit
//go:norace
//go:noinline
func forkInit(l *initLaunch) (pid, errno uintptr) {
	var old uint64
	var bits uintptr
	entersyscallblock()
	setMask(&everySignal, &old)
	if l.keepCaps && l.owner != 0 {
		bits, errno = borrowID(l.owner)
	}
	if errno == 0 {
		pid, errno = vfork(l.birth.call, l.birth.a, l.birth.b, l.birth.c)
		if pid == 0 && errno == 0 {
			becomeInit(l)
			exit()
		}
		if l.keepCaps && l.owner != 0 {
			returnID(l.dumpable, bits)
		}
	}
	setMask(&old, nil)
	exitsyscall()
	return pid, errno
}

const noSetuidFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP

// borrowID gives this thread, and no other, another id while it clones: a user namespace belongs to the process that
// makes it. Real and effective ids change together; otherwise kernels before 6.16 take the following exec for a set-id
// one and drop capabilities that it should keep. A change of ids makes the kernel hide the process from debuggers, until
// returnID.
//
//go:nosplit
//go:norace
func borrowID(id uintptr) (bits, errno uintptr) {
	var e unix.Errno
	bits, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_SECUREBITS, 0, 0)
	if _, _, e = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, bits|noSetuidFixup, 0); e != 0 {
		return 0, uintptr(e)
	}
	if _, _, e = unix.RawSyscall(unix.SYS_SETRESUID, id, id, ^uintptr(0)); e != 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, bits, 0)
		return 0, uintptr(e)
	}
	return bits, 0
}

// wasDumpable is the state of this process before its first init: later, another thread's change may be visible.
var wasDumpable = sync.OnceValue(func() bool {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return err == nil && dumpable == 1
})

// returnID restores the thread's own id.
//
//go:nosplit
//go:norace
func returnID(dumpable bool, bits uintptr) {
	_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, ^uintptr(0))
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, bits, 0)
	if dumpable {
		_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0)
	}
}

const capVersion3 = 0x20080522

// An init starts with two restrictions, because its Go runtime would use up a fifth of the cost of a short sandbox for
// nothing. Awaken ends both:
//
//   - Its timers are coarse. The kernel may let a thread sleep longer than it asked for by its timer slack,
//     so that several wake together. With the usual one the runtime's monitor thread wakes every 70 µs for as
//     long as most sandboxes live, and finds nothing to do, because each of the two threads that work has a
//     processor of its own. (Much coarser would be too much: other threads of the runtime take short naps.)
//   - It can open no file, if it is linked so that it needs none. The runtime would read the host's mounts and
//     cgroups to learn how many processors to use, although it is told, and goes on without when it can not.
const (
	coarseTimers = 500_000 // ns
	usualTimers  = 50_000  // the default of Linux
)

// Awaken gives the calling thread of an init, and the programs that it starts, the usual timers, and the process access
// to files.
func Awaken() error {
	// gVisor's kernel has no timer slack, and so nothing to change.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, usualTimers, 0, 0, 0); err != nil && err != unix.EINVAL {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	files.Cur = files.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
}

var noPath byte // ""

// initCaps are the capabilities that an init needs until it is root of its namespace, and then has again.
var initCaps = [...]uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SYS_ADMIN,
	unix.CAP_SYS_RESOURCE, // for the parameters of its user namespace
	unix.CAP_NET_RAW,      // for the frames of its network device
}

// becomeInit is the child. An exec drops the capabilities of a process that is not root, and in a fresh user namespace
// without maps no process is root: ambient capabilities survive the exec.
//
//go:nosplit
//go:norace
//go:nocheckptr
func becomeInit(l *initLaunch) {
	var zero uint64
	var errno unix.Errno
	var i int
	var header struct {
		version uint32
		pid     int32
	}
	var caps [6]uint32 // effective, permitted, inheritable; low halves, then high halves
	var files unix.Rlimit

	if _, _, errno = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		goto fail
	}
	if l.keepCaps {
		header.version = capVersion3
		if _, _, errno = unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&caps)), 0); errno != 0 {
			goto fail
		}
		caps[2], caps[5] = caps[1], caps[4]
		if _, _, errno = unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&caps)), 0); errno != 0 {
			goto fail
		}
		for i = 0; i < len(initCaps); i++ {
			if _, _, errno = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, initCaps[i], 0, 0, 0); errno != 0 {
				goto fail
			}
		}
	}
	for i = 0; i < len(l.files); i++ {
		if _, _, errno = unix.RawSyscall(unix.SYS_DUP3, uintptr(l.files[i]), uintptr(i), 0); errno != 0 {
			goto fail
		}
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_CLOSE_RANGE, uintptr(len(l.files)), 1<<32-1, unix.CLOSE_RANGE_CLOEXEC); errno != 0 {
		goto fail
	}
	if _, _, errno = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, coarseTimers, 0, 0, 0, 0); errno != 0 {
		goto fail
	}
	if l.alone {
		if _, _, errno = unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&files)), 0, 0); errno != 0 {
			goto fail
		}
		files.Cur = uint64(len(l.files))
		if _, _, errno = unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&files)), 0, 0, 0); errno != 0 {
			goto fail
		}
	}
	setMask(&zero, nil)
	_, _, errno = unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(l.binary), uintptr(unsafe.Pointer(&noPath)),
		uintptr(unsafe.Pointer(&l.argv[0])), uintptr(unsafe.Pointer(&l.envp[0])), unix.AT_EMPTY_PATH, 0)
fail:
	l.errno = errno
}
