package hostile

import (
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// call is one system call that a sandbox refuses. The list is written by hand, and not generated from the filter: a call that is
// missing in the filter is still here. Every one is harmless as root without a filter: its arguments are invalid in a way that the
// kernel notices before it does anything, or change only this process.
type call struct {
	id   string // of the threat
	name string
	// record is the call in the run's violations; empty: ordinary programs try the call, and the filter refuses it without a record.
	record string
	run    func() unix.Errno
	loads  bool // the host's kernel could load a module for it
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

// quiet are names of calls that are refused without a record.
var quiet = []string{
	"clone3", "io_uring_setup", "get_mempolicy", "set_mempolicy", "mbind", "syncfs", "io_setup", "io_destroy", "io_getevents", "io_submit",
	"io_cancel",
}

// calls is a function and not a variable: the table is made on request, not at every start.
func calls() (list []call) {
	add := func(id, name, record string, run func() unix.Errno) {
		list = append(list, call{id: id, name: name, record: record, run: run})
	}
	load := func(name, record string, run func() unix.Errno) {
		list = append(list, call{"S4", name, "socket(" + record + ")", run, true})
	}
	plain := func(id, name string, nr uintptr, args ...uintptr) {
		record := name
		if slices.Contains(quiet, name) {
			record = ""
		}
		add(id, name, record, raw(nr, args...))
	}
	plain("S1", "mount", unix.SYS_MOUNT, 0, bad, 0, 0, 0)
	plain("S1", "umount2", unix.SYS_UMOUNT2, 0, bad)
	plain("S1", "pivot_root", unix.SYS_PIVOT_ROOT, bad, bad)
	plain("S1", "chroot", unix.SYS_CHROOT, bad)
	plain("S1", "move_mount", unix.SYS_MOVE_MOUNT, bad, bad, bad, bad, bad)
	plain("S1", "fsopen", unix.SYS_FSOPEN, bad, bad)
	plain("S1", "fsconfig", unix.SYS_FSCONFIG, bad, bad, bad, bad, bad)
	plain("S1", "fsmount", unix.SYS_FSMOUNT, bad, bad, bad)
	plain("S1", "fspick", unix.SYS_FSPICK, bad, bad, bad)
	plain("S1", "open_tree", unix.SYS_OPEN_TREE, bad, bad, bad)
	plain("S1", "open_tree_attr", 467, bad, bad, bad, bad, bad)
	plain("S1", "mount_setattr", unix.SYS_MOUNT_SETATTR, bad, bad, bad, bad, 0)
	plain("S1", "setns", unix.SYS_SETNS, bad, 0)
	add("S1", "unshare", "unshare(0x1)", raw(unix.SYS_UNSHARE, 1)) // no such flag
	plain("S1", "sethostname", unix.SYS_SETHOSTNAME, bad, bad)
	plain("S1", "setdomainname", unix.SYS_SETDOMAINNAME, bad, bad)
	for _, ns := range []struct {
		name string
		flag uintptr
	}{
		{"NEWNS", unix.CLONE_NEWNS}, {"NEWCGROUP", unix.CLONE_NEWCGROUP}, {"NEWUTS", unix.CLONE_NEWUTS}, {"NEWIPC", unix.CLONE_NEWIPC},
		{"NEWUSER", unix.CLONE_NEWUSER}, {"NEWPID", unix.CLONE_NEWPID}, {"NEWNET", unix.CLONE_NEWNET},
	} {
		// A thread without shared signal handlers is EINVAL before anything is cloned.
		add("S1", "clone("+ns.name+")", "clone(CLONE_"+ns.name+")", raw(unix.SYS_CLONE, ns.flag|unix.CLONE_THREAD))
	}
	add("S1", "clone(NEWUSER), upper half set", "clone(CLONE_NEWUSER)", raw(unix.SYS_CLONE, 1<<40|unix.CLONE_NEWUSER|unix.CLONE_THREAD))

	plain("S2", "clone3", unix.SYS_CLONE3, 0, 0)

	add("S4", "AF_NETLINK route", "socket(AF_NETLINK)", sock(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))
	add("S4", "AF_NETLINK generic", "socket(AF_NETLINK)", sock(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC))
	load("AF_ALG, upper half set", "AF_ALG", sock(1<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0))
	add("S4", "raw IPv4", "socket(SOCK_RAW)", sock(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP))
	add("S4", "raw IPv4, with flags", "socket(SOCK_RAW)",
		sock(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW))
	add("S4", "raw IPv6", "socket(SOCK_RAW)", sock(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6))
	add("S4", "SOCK_PACKET", "socket(SOCK_PACKET)", sock(unix.AF_INET, unix.SOCK_PACKET, 0x0300))
	add("S4", "MPTCP", "", sock(unix.AF_INET, unix.SOCK_STREAM, 262))
	add("S4", "socketpair AF_NETLINK", "socketpair(AF_NETLINK)", raw(unix.SYS_SOCKETPAIR, unix.AF_NETLINK, unix.SOCK_RAW, 0, bad))
	for _, p := range []struct {
		name, record   string
		kind, protocol uintptr
	}{
		{"SCTP", "IPPROTO_SCTP", unix.SOCK_STREAM, unix.IPPROTO_SCTP}, {"DCCP", "SOCK_DCCP", unix.SOCK_DCCP, unix.IPPROTO_DCCP},
		{"L2TP", "IPPROTO_L2TP", unix.SOCK_DGRAM, 115}, {"UDPLITE", "IPPROTO_UDPLITE", unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE},
		{"SMC protocol", "IPPROTO_SMC", unix.SOCK_STREAM, 256}, {"SOCK_RDM", "SOCK_RDM", unix.SOCK_RDM, 0},
	} {
		load(p.name, p.record, sock(unix.AF_INET, p.kind, p.protocol))
	}
	for _, f := range []struct {
		name, record string
		number, kind uintptr
	}{
		{"AF_AX25", "3", 3, unix.SOCK_DGRAM}, {"AF_IPX", "4", 4, unix.SOCK_DGRAM}, {"AF_APPLETALK", "5", 5, unix.SOCK_DGRAM},
		{"AF_X25", "9", 9, unix.SOCK_SEQPACKET},
		{"AF_KEY", "AF_KEY", 15, unix.SOCK_RAW}, {"AF_PACKET", "AF_PACKET", 17, unix.SOCK_RAW}, {"AF_RDS", "AF_RDS", 21, unix.SOCK_SEQPACKET},
		{"AF_LLC", "26", 26, unix.SOCK_DGRAM}, {"AF_IB", "27", 27, unix.SOCK_DGRAM}, {"AF_MPLS", "28", 28, unix.SOCK_DGRAM},
		{"AF_CAN", "AF_CAN", 29, unix.SOCK_RAW},
		{"AF_TIPC", "AF_TIPC", 30, unix.SOCK_SEQPACKET}, {"AF_BLUETOOTH", "AF_BLUETOOTH", 31, unix.SOCK_SEQPACKET},
		{"AF_RXRPC", "33", 33, unix.SOCK_DGRAM},
		{"AF_ISDN", "34", 34, unix.SOCK_RAW}, {"AF_PHONET", "35", 35, unix.SOCK_DGRAM}, {"AF_IEEE802154", "36", 36, unix.SOCK_DGRAM},
		{"AF_CAIF", "37", 37, unix.SOCK_SEQPACKET},
		{"AF_ALG", "AF_ALG", 38, unix.SOCK_SEQPACKET}, {"AF_NFC", "39", 39, unix.SOCK_SEQPACKET}, {"AF_VSOCK", "AF_VSOCK", 40, unix.SOCK_STREAM},
		{"AF_KCM", "41", 41, unix.SOCK_DGRAM},
		{"AF_QIPCRTR", "42", 42, unix.SOCK_DGRAM}, {"AF_SMC", "AF_SMC", 43, unix.SOCK_STREAM}, {"AF_XDP", "AF_XDP", 44, unix.SOCK_RAW},
		{"AF_MCTP", "45", 45, unix.SOCK_DGRAM},
	} {
		load(f.name, f.record, sock(f.number, f.kind, 0))
	}
	add("S4", "out-of-band data", "sendto(MSG_OOB)", raw(unix.SYS_SENDTO, bad, 0, 0, unix.MSG_OOB))

	plain("S5", "io_uring_setup", unix.SYS_IO_URING_SETUP, 0, bad)
	plain("S5", "io_uring_enter", unix.SYS_IO_URING_ENTER, bad)
	plain("S5", "io_uring_register", unix.SYS_IO_URING_REGISTER, bad, bad)
	plain("S5", "userfaultfd", unix.SYS_USERFAULTFD, bad)
	plain("S5", "bpf", unix.SYS_BPF, bad, 0, 0)
	plain("S5", "perf_event_open", unix.SYS_PERF_EVENT_OPEN, bad, 0, bad, bad, bad)
	plain("S5", "keyctl", unix.SYS_KEYCTL, 9999)
	plain("S5", "add_key", unix.SYS_ADD_KEY, bad, bad)
	plain("S5", "request_key", unix.SYS_REQUEST_KEY, bad, bad)
	plain("S5", "kexec_load", unix.SYS_KEXEC_LOAD, 0, 9999, bad, bad)
	plain("S5", "kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, bad, bad, 0, 0, bad)
	plain("S5", "init_module", unix.SYS_INIT_MODULE, bad, 0, bad)
	plain("S5", "finit_module", unix.SYS_FINIT_MODULE, bad, bad, bad)
	plain("S5", "delete_module", unix.SYS_DELETE_MODULE, bad, 0)
	plain("S5", "open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, bad, bad, 0)
	plain("S5", "name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, bad, bad, bad, bad, bad)
	plain("S5", "quotactl", unix.SYS_QUOTACTL, bad, bad, 0, bad)
	plain("S5", "quotactl_fd", 443, bad, bad, 0, bad)
	plain("S5", "swapon", unix.SYS_SWAPON, bad, bad)
	plain("S5", "swapoff", unix.SYS_SWAPOFF, bad)
	plain("S5", "reboot", unix.SYS_REBOOT, 0, 0, 0, 0) // without the magic numbers
	plain("S5", "settimeofday", unix.SYS_SETTIMEOFDAY, bad, bad)
	plain("S5", "clock_settime", unix.SYS_CLOCK_SETTIME, 9999, bad)
	plain("S5", "adjtimex", unix.SYS_ADJTIMEX, bad)
	plain("S5", "clock_adjtime", unix.SYS_CLOCK_ADJTIME, 9999, bad)
	plain("S5", "syslog", unix.SYS_SYSLOG, bad, 0, 0)
	plain("S5", "acct", unix.SYS_ACCT, bad) // null would switch accounting off
	plain("S5", "fanotify_init", unix.SYS_FANOTIFY_INIT, bad, bad)
	plain("S5", "mbind", unix.SYS_MBIND, 0, 0, bad, 0, 0, bad)
	plain("S5", "set_mempolicy", unix.SYS_SET_MEMPOLICY, bad, 0, 0)
	plain("S5", "get_mempolicy", unix.SYS_GET_MEMPOLICY, 0, 0, 0, 0, bad)
	plain("S5", "set_mempolicy_home_node", 450, bad, 0, 0, bad)
	plain("S5", "move_pages", unix.SYS_MOVE_PAGES, 0x7fffffff, 0, 0, 0, 0, bad)
	plain("S5", "migrate_pages", unix.SYS_MIGRATE_PAGES, 0x7fffffff, 0, 0, 0)
	plain("S5", "lsm_set_self_attr", 460, bad, bad, bad, bad)
	plain("S5", "syncfs", unix.SYS_SYNCFS, bad)
	plain("S5", "io_setup", unix.SYS_IO_SETUP, 0, bad)
	plain("S5", "io_destroy", unix.SYS_IO_DESTROY, bad)
	plain("S5", "io_getevents", unix.SYS_IO_GETEVENTS, bad, bad, bad, bad, bad)
	plain("S5", "io_submit", unix.SYS_IO_SUBMIT, bad, bad, bad)
	plain("S5", "io_cancel", unix.SYS_IO_CANCEL, bad, bad, bad)
	plain("S5", "seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)
	add("S5", "seccomp(listener)", "seccomp", raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0))
	add("S5", "a filter by prctl", "prctl(PR_SET_SECCOMP)", raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0))
	add("S5", "SO_ATTACH_FILTER", "setsockopt(SO_ATTACH_FILTER)", raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, 26, 0, 0))
	add("S5", "SO_ATTACH_BPF", "setsockopt(SO_ATTACH_BPF)", raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, 50, 0, 0))
	add("S5", "SO_ATTACH_REUSEPORT_CBPF", "setsockopt(SO_ATTACH_REUSEPORT_CBPF)", raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, 51, 0, 0))
	add("S5", "SO_ATTACH_REUSEPORT_EBPF", "setsockopt(SO_ATTACH_REUSEPORT_EBPF)", raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, 52, 0, 0))
	add("S5", "F_SETLEASE", "fcntl(F_SETLEASE)", raw(unix.SYS_FCNTL, bad, unix.F_SETLEASE, 0))
	add("S5", "F_NOTIFY", "fcntl(F_NOTIFY)", raw(unix.SYS_FCNTL, bad, unix.F_NOTIFY, 0))
	add("S5", "F_SETDELEG", "fcntl(F_SETDELEG)", raw(unix.SYS_FCNTL, bad, 1040, 0))
	add("S5", "an execution domain", "personality(0x40000)", raw(unix.SYS_PERSONALITY, 0x40000)) // this process's own memory layout

	add("S6", "ptrace", "ptrace(2)", raw(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 0x7fffffff))
	plain("S6", "process_vm_readv", unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, bad)
	plain("S6", "process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, 0, 0, 0, 0, 0, bad)
	plain("S6", "pidfd_getfd", unix.SYS_PIDFD_GETFD, bad, 0, 0)
	plain("S6", "kcmp", unix.SYS_KCMP, 0x7fffffff, 0x7fffffff, 0)
	plain("S6", "process_madvise", unix.SYS_PROCESS_MADVISE, bad, 0, 0, 0, bad)

	add("S7", "TIOCSTI", "ioctl(TIOCSTI)", raw(unix.SYS_IOCTL, bad, unix.TIOCSTI, 0))
	add("S7", "TIOCSTI, upper half set", "ioctl(TIOCSTI)", raw(unix.SYS_IOCTL, bad, 1<<32|unix.TIOCSTI, 0))
	add("S7", "TIOCLINUX", "ioctl(TIOCLINUX)", raw(unix.SYS_IOCTL, bad, 0x541c, 0))
	add("S7", "TIOCSETD", "ioctl(TIOCSETD)", raw(unix.SYS_IOCTL, bad, 0x5423, 0))
	archCalls(plain)
	return list
}

// CallsPerRun is how many calls of a threat one attacker makes: less than a run records.
const CallsPerRun = 40

// OnHost has an attacker make all calls of a threat but those for which the kernel could load a module.
const OnHost = "host"

// tryCalls makes the calls of one threat, from a number on, and reports how each is recorded.
func tryCalls(args []string) {
	runtime.LockOSThread()
	// A signal, such as those by which the Go runtime preempts, restarts a refused call, and each start counts as one.
	var every unix.Sigset_t
	for i := range every.Val {
		every.Val[i] = ^every.Val[i]
	}
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &every, nil)
	n, from, host := 0, number(args, 1), word(args, 1) == OnHost
	for _, c := range calls() {
		if c.id != word(args, 0) {
			continue
		}
		switch {
		case host && c.loads:
			tell(c.name, "not made", c.record)
		case host || n >= from && n < from+CallsPerRun:
			tell(c.name, outcome(c.run()), c.record)
		}
		n++
	}
}

// x32 numbers are those of the kernel's third table on amd64.
const x32Bit = 0x40000000

// tryForeign makes a system call of another architecture: the kernel may kill the attacker for it.
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

// flood makes refused calls as fast as it can, for a time and at least 100,000 of them: a busy machine does not weaken the attack.
func flood(args []string) {
	const least = 100_000
	runtime.LockOSThread()
	end := monotonic() + int64(duration(args, 0))
	var count, refused int
	for monotonic() < end || count < least {
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
