package hostile

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// call is one system call that a sandbox refuses. Every one is harmless as root without a filter: its
// arguments are invalid in a way that the kernel notices before it does anything.
type call struct {
	id   string // of the threat
	name string
	run  func() unix.Errno
}

const bad = ^uintptr(0) // as descriptor -1, as pointer a fault, as flags all of them

func raw(nr uintptr, a ...uintptr) func() unix.Errno {
	return func() unix.Errno {
		var r [6]uintptr
		copy(r[:], a)
		_, _, errno := unix.RawSyscall6(nr, r[0], r[1], r[2], r[3], r[4], r[5])
		return errno
	}
}

func sock(family, kind, protocol uintptr) func() unix.Errno {
	return func() unix.Errno {
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, family, kind, protocol)
		if errno == 0 {
			unix.Close(int(fd))
		}
		return errno
	}
}

// calls is a function and not a variable: the table is made when it is asked for, not at every start.
func calls() []call {
	return []call{
		{"S1", "mount", raw(unix.SYS_MOUNT, 0, bad, 0, 0, 0)},
		{"S1", "umount2", raw(unix.SYS_UMOUNT2, 0, bad)},
		{"S1", "pivot_root", raw(unix.SYS_PIVOT_ROOT, bad, bad)},
		{"S1", "chroot", raw(unix.SYS_CHROOT, bad)},
		{"S1", "move_mount", raw(unix.SYS_MOVE_MOUNT, bad, bad, bad, bad, bad)},
		{"S1", "fsopen", raw(unix.SYS_FSOPEN, bad, bad)},
		{"S1", "fsconfig", raw(unix.SYS_FSCONFIG, bad, bad, bad, bad, bad)},
		{"S1", "fsmount", raw(unix.SYS_FSMOUNT, bad, bad, bad)},
		{"S1", "fspick", raw(unix.SYS_FSPICK, bad, bad, bad)},
		{"S1", "open_tree", raw(unix.SYS_OPEN_TREE, bad, bad, bad)},
		{"S1", "mount_setattr", raw(unix.SYS_MOUNT_SETATTR, bad, bad, bad, bad, 0)},
		{"S1", "setns", raw(unix.SYS_SETNS, bad, 0)},
		{"S1", "unshare", raw(unix.SYS_UNSHARE, 1)}, // no such flag
		{"S1", "sethostname", raw(unix.SYS_SETHOSTNAME, bad, bad)},
		// A thread without shared signal handlers is EINVAL before anything is cloned.
		{"S1", "clone(NEWNS)", raw(unix.SYS_CLONE, unix.CLONE_NEWNS|unix.CLONE_THREAD)},
		{"S1", "clone(NEWCGROUP)", raw(unix.SYS_CLONE, unix.CLONE_NEWCGROUP|unix.CLONE_THREAD)},
		{"S1", "clone(NEWUTS)", raw(unix.SYS_CLONE, unix.CLONE_NEWUTS|unix.CLONE_THREAD)},
		{"S1", "clone(NEWIPC)", raw(unix.SYS_CLONE, unix.CLONE_NEWIPC|unix.CLONE_THREAD)},
		{"S1", "clone(NEWUSER)", raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD)},
		{"S1", "clone(NEWPID)", raw(unix.SYS_CLONE, unix.CLONE_NEWPID|unix.CLONE_THREAD)},
		{"S1", "clone(NEWNET)", raw(unix.SYS_CLONE, unix.CLONE_NEWNET|unix.CLONE_THREAD)},
		{"S1", "clone(NEWUSER), upper half set", raw(unix.SYS_CLONE, 1<<40|unix.CLONE_NEWUSER|unix.CLONE_THREAD)},

		{"S2", "clone3", raw(unix.SYS_CLONE3, 0, 0)},

		{"S4", "AF_NETLINK route", sock(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)},
		{"S4", "AF_NETLINK generic", sock(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)},
		{"S4", "AF_PACKET", sock(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"S4", "AF_ALG", sock(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"S4", "AF_ALG, upper half set", sock(1<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"S4", "AF_VSOCK", sock(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"S4", "AF_XDP", sock(unix.AF_XDP, unix.SOCK_RAW, 0)},
		{"S4", "raw IPv4", sock(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"S4", "raw IPv4, with flags", sock(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)},
		{"S4", "raw IPv6", sock(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)},
		{"S4", "SOCK_PACKET", sock(unix.AF_INET, unix.SOCK_PACKET, 0x0300)},
		{"S4", "SCTP", sock(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
		{"S4", "socketpair AF_NETLINK", raw(unix.SYS_SOCKETPAIR, unix.AF_NETLINK, unix.SOCK_RAW, 0, bad)},

		{"S5", "io_uring_setup", raw(unix.SYS_IO_URING_SETUP, 0, bad)},
		{"S5", "io_uring_enter", raw(unix.SYS_IO_URING_ENTER, bad)},
		{"S5", "io_uring_register", raw(unix.SYS_IO_URING_REGISTER, bad, bad)},
		{"S5", "userfaultfd", raw(unix.SYS_USERFAULTFD, bad)},
		{"S5", "bpf", raw(unix.SYS_BPF, bad, 0, 0)},
		{"S5", "perf_event_open", raw(unix.SYS_PERF_EVENT_OPEN, bad, 0, bad, bad, bad)},
		{"S5", "keyctl", raw(unix.SYS_KEYCTL, 9999)},
		{"S5", "add_key", raw(unix.SYS_ADD_KEY, bad, bad)},
		{"S5", "request_key", raw(unix.SYS_REQUEST_KEY, bad, bad)},
		{"S5", "kexec_load", raw(unix.SYS_KEXEC_LOAD, 0, 9999, bad, bad)},
		{"S5", "kexec_file_load", raw(unix.SYS_KEXEC_FILE_LOAD, bad, bad, 0, 0, bad)},
		{"S5", "init_module", raw(unix.SYS_INIT_MODULE, bad, 0, bad)},
		{"S5", "finit_module", raw(unix.SYS_FINIT_MODULE, bad, bad, bad)},
		{"S5", "delete_module", raw(unix.SYS_DELETE_MODULE, bad, 0)},
		{"S5", "open_by_handle_at", raw(unix.SYS_OPEN_BY_HANDLE_AT, bad, bad, 0)},
		{"S5", "name_to_handle_at", raw(unix.SYS_NAME_TO_HANDLE_AT, bad, bad, bad, bad, bad)},
		{"S5", "quotactl", raw(unix.SYS_QUOTACTL, bad, bad, 0, bad)},
		{"S5", "swapon", raw(unix.SYS_SWAPON, bad, bad)},
		{"S5", "swapoff", raw(unix.SYS_SWAPOFF, bad)},
		{"S5", "reboot", raw(unix.SYS_REBOOT, 0, 0, 0, 0)}, // without the magic numbers
		{"S5", "settimeofday", raw(unix.SYS_SETTIMEOFDAY, bad, bad)},
		{"S5", "clock_settime", raw(unix.SYS_CLOCK_SETTIME, 9999, bad)},
		{"S5", "adjtimex", raw(unix.SYS_ADJTIMEX, bad)},
		{"S5", "syslog", raw(unix.SYS_SYSLOG, bad, 0, 0)},
		{"S5", "acct", raw(unix.SYS_ACCT, bad)}, // null would switch accounting off
		{"S5", "fanotify_init", raw(unix.SYS_FANOTIFY_INIT, bad, bad)},
		{"S5", "seccomp(listener)", raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0)},

		{"S6", "ptrace", raw(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 0x7fffffff)},
		{"S6", "process_vm_readv", raw(unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, bad)},
		{"S6", "process_vm_writev", raw(unix.SYS_PROCESS_VM_WRITEV, 0, 0, 0, 0, 0, bad)},
		{"S6", "pidfd_getfd", raw(unix.SYS_PIDFD_GETFD, bad, 0, 0)},
		{"S6", "kcmp", raw(unix.SYS_KCMP, 0x7fffffff, 0x7fffffff, 0)},
		{"S6", "process_madvise", raw(unix.SYS_PROCESS_MADVISE, bad, 0, 0, 0, bad)},

		{"S7", "TIOCSTI", raw(unix.SYS_IOCTL, bad, unix.TIOCSTI, 0)},
		{"S7", "TIOCSTI, upper half set", raw(unix.SYS_IOCTL, bad, 1<<32|unix.TIOCSTI, 0)},
		{"S7", "TIOCLINUX", raw(unix.SYS_IOCTL, bad, 0x541c, 0)},
		{"S7", "TIOCSETD", raw(unix.SYS_IOCTL, bad, 0x5423, 0)},
	}
}

// tryCalls makes the calls of one threat.
func tryCalls(args []string) {
	runtime.LockOSThread()
	for _, c := range calls() {
		if c.id == word(args, 0) {
			tellErr(c.name, c.run())
		}
	}
}

// x32 numbers are those of the kernel's third table on amd64.
const x32Bit = 0x40000000

// tryForeign makes a system call of another architecture: an attacker may be killed for that.
func tryForeign(args []string) {
	runtime.LockOSThread()
	switch {
	case word(args, 0) == "x32" && runtime.GOARCH == "amd64":
		pid, _, errno := unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
		if errno == 0 && int(pid) != unix.Getpid() {
			errno = unix.ENOSYS
		}
		tellErr("x32", errno)
	case word(args, 0) == "i386" && runtime.GOARCH == "amd64":
		const getpid = 20 // in the i386 table
		if pid := int80(getpid); pid == int32(unix.Getpid()) {
			tellErr("i386", nil)
		} else {
			tellErr("i386", unix.ENOSYS)
		}
	default:
		tell(word(args, 0), "none", "this architecture has no second table of system calls")
	}
}

// flood makes refused calls as fast as it can. The number is the attack's strength.
func flood(args []string) {
	runtime.LockOSThread()
	end := monotonic() + int64(duration(args, 0))
	var count, refused int
	for monotonic() < end {
		for range 1000 {
			if _, _, errno := unix.RawSyscall(unix.SYS_UNSHARE, 1, 0, 0); errno == unix.EPERM || errno == unix.ENOSYS {
				refused++
			}
			count++
		}
	}
	tellNumber("calls", count)
	tellNumber("refused", refused)
}
