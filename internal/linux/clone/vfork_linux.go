//go:build linux && (amd64 || arm64)

package clone

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vfork makes a system call that clones with shared memory and suspends this thread until the child executes or exits.
// It returns twice, so its caller must not return before the child is done.
//
//go:noescape
func vfork(call, a, b, c uintptr) (pid uintptr, errno uintptr)

// borrowed are the flags of a child that shares this process's memory.
const borrowed = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD

// intoCgroup is CLONE_INTO_CGROUP, which only clone3 has (Linux 5.7).
const intoCgroup = 1 << 33

// birth has the arguments of a clone: those of vfork, and the descriptor that the kernel returns. It is part of a heap
// object, because memory that the kernel reads and writes must not move.
type birth struct {
	call, a, b, c uintptr
	args          cloneArgs
	pidfd         int32
}

// cloneArgs is struct clone_args as of Linux 5.7.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// plain clones a child in its parent's cgroups. On amd64 and arm64 clone takes flags, stack and the address of the pidfd
// in the same order.
//
//go:nocheckptr
func (b *birth) plain(flags uintptr) {
	b.pidfd = -1
	b.call, b.a, b.b, b.c = unix.SYS_CLONE, flags|borrowed|uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&b.pidfd))
}

// into clones a child in the v2 cgroup whose directory is open. It needs the right to write to the cgroup.procs of that
// cgroup, and of the closest common ancestor of it and the caller's own; and Linux 5.7, and no container that refuses
// clone3.
//
//go:nocheckptr
func (b *birth) into(flags uintptr, cgroup int) {
	b.pidfd = -1
	b.args = cloneArgs{
		flags: uint64(flags | borrowed | intoCgroup), pidfd: uint64(uintptr(unsafe.Pointer(&b.pidfd))),
		exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(cgroup),
	}
	b.call, b.a, b.b, b.c = unix.SYS_CLONE3, uintptr(unsafe.Pointer(&b.args)), unsafe.Sizeof(b.args), 0
}

// everySignal is a mask of all signals. A child is cloned with it in force, on the thread that set it, because no Go
// handler may run in shared memory. The functions that do so are nosplit: with no call that could yield and no signal to
// preempt them, they stay on their thread without being locked to it (locking would cost a small init an additional
// thread).
var everySignal = ^uint64(0)

//go:nosplit
//go:norace
func setMask(set, old *uint64) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

//go:nosplit
//go:norace
func exit() {
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
