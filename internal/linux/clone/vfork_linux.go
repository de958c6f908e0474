//go:build linux && (amd64 || arm64)

package clone

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vfork clones with the memory shared and this thread asleep until the child executes or exits. It
// returns twice. On amd64 and arm64 clone takes flags, stack and the place for the pidfd in the same
// order.
//
//go:noescape
func vfork(flags uintptr, pidfd *int32) (pid uintptr, errno uintptr)

// borrowed are the flags of a child that borrows our memory.
const borrowed = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | uintptr(unix.SIGCHLD)

// everySignal is a mask of all signals. A child is cloned with it in force, on the very thread that
// set it, because no Go handler may run in borrowed memory. The functions that do so are nosplit:
// with no call that could yield and no signal to preempt them, they stay on their thread without
// being locked to it (locking would cost a tiny init a thread of its own).
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
