package seccomp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests of this file re-execute the test binary, install the filter in
// the child as the sandbox's init would, and probe the kernel itself.
//
//	parent: SECCOMP_TEST_CHILD=probe|ordinary|int80|exec SECCOMP_TEST_POLICY=none|default|setid|counted|counted-setid
//	child:  no_new_privs, filter, then one line "name errno" per probe
//
// Under the counted policies the child hands its listener to the parent, which answers: see refusals_linux_test.go.
func init() { runChild = child }

func child(mode string) {
	runtime.LockOSThread()
	policy := os.Getenv("SECCOMP_TEST_POLICY")
	if policy != "none" {
		set := install
		if strings.HasPrefix(policy, "counted") {
			set = installWatched
		}
		if err := set(Policy{DenySetID: strings.HasSuffix(policy, "setid"), DenyAllocate: policy == "allocate"}); err != nil {
			fmt.Fprintln(os.Stderr, "install:", err)
			os.Exit(99)
		}
	}
	switch mode {
	case "probe":
		for _, p := range probes[number("SECCOMP_TEST_FROM", 0):number("SECCOMP_TEST_TO", len(probes))] {
			fmt.Printf("%s %d\n", p.name, int(p.run()))
		}
	case "flood":
		for n := range number("SECCOMP_TEST_TO", 0) {
			fmt.Printf("%d %d\n", n, int(raw(unix.SYS_MOUNT, 0, bad, 0, 0, 0)()))
		}
	case "interfaces":
		listInterfaces()
	case "setid":
		for _, p := range setIDProbes {
			fmt.Printf("%s %d\n", p.name, int(p.run()))
		}
	case "allocate":
		for _, p := range allocateProbes {
			fmt.Printf("%s %d\n", p.name, int(p.run()))
		}
	case "ordinary":
		for _, o := range ordinary {
			if err := o.run(); err != nil {
				fmt.Printf("%s: %v\n", o.name, err)
			}
		}
		fmt.Println("done")
	case "int80":
		fmt.Println(int80(20))
	case "exec":
		err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
		fmt.Fprintln(os.Stderr, "exec:", err)
		os.Exit(98)
	}
	os.Exit(0)
}

func install(p Policy) error {
	prog, err := Compile(p, "")
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{
		Len:    uint16(len(prog) / InstructionSize),
		Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0])),
	}
	// TSYNC: the Go runtime has threads already.
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	if r != 0 {
		return fmt.Errorf("thread %d can not be filtered", r)
	}
	return nil
}

func childCommand(t testing.TB, mode, policy string, argv ...string) *exec.Cmd {
	t.Helper()
	if _, err := lookup(""); err != nil {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, argv...)
	cmd.Env = append(os.Environ(), "SECCOMP_TEST_CHILD="+mode, "SECCOMP_TEST_POLICY="+policy)
	cmd.Dir = t.TempDir()
	// A session of its own: vhangup without a filter finds no terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// answers runs mode under policy and returns each probe's errno.
func answers(t *testing.T, mode, policy string) map[string]unix.Errno {
	t.Helper()
	return answersOf(t, childCommand(t, mode, policy))
}

func answersOf(t *testing.T, cmd *exec.Cmd) map[string]unix.Errno {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child with %q: %v\n%s%s", cmd.Env[len(cmd.Env)-3:], err, out, stderr.String())
	}
	got := map[string]unix.Errno{}
	scan := bufio.NewScanner(bytes.NewReader(out))
	for scan.Scan() {
		var name string
		var errno int
		if _, err := fmt.Sscan(scan.Text(), &name, &errno); err != nil {
			t.Fatalf("child said %q", scan.Text())
		}
		got[name] = unix.Errno(errno)
	}
	return got
}

type probe struct {
	name string
	want unix.Errno // under the filter
	run  func() unix.Errno
	// lacking is the errno of a kernel built without the feature, when
	// that equals want: the control then proves nothing, and the test logs that.
	lacking unix.Errno
}

const bad = ^uintptr(0) // as descriptor -1, as pointer a fault, as flags all of them

func raw(nr uintptr, a ...uintptr) func() unix.Errno {
	return func() unix.Errno {
		var r [6]uintptr
		copy(r[:], a)
		ret, _, errno := unix.RawSyscall6(nr, r[0], r[1], r[2], r[3], r[4], r[5])
		_ = ret
		return errno
	}
}

func sock(a ...uintptr) func() unix.Errno {
	return func() unix.Errno {
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, a[0], a[1], a[2])
		if errno == 0 {
			unix.Close(int(fd))
		}
		return errno
	}
}

// Every probe is harmless as root without a filter: its arguments are
// invalid in a way the kernel notices before it does anything.
var probes = slices.Concat([]probe{
	// S1
	{name: "mount", want: unix.EPERM, run: raw(unix.SYS_MOUNT, 0, bad, 0, 0, 0)},
	{name: "umount2", want: unix.EPERM, run: raw(unix.SYS_UMOUNT2, 0, bad)},
	{name: "pivot_root", want: unix.EPERM, run: raw(unix.SYS_PIVOT_ROOT, bad, bad)},
	{name: "chroot", want: unix.EPERM, run: raw(unix.SYS_CHROOT, bad)},
	{name: "move_mount", want: unix.EPERM, run: raw(unix.SYS_MOVE_MOUNT, bad, bad, bad, bad, bad)},
	{name: "fsopen", want: unix.EPERM, run: raw(unix.SYS_FSOPEN, bad, bad)},
	{name: "fsconfig", want: unix.EPERM, run: raw(unix.SYS_FSCONFIG, bad, bad, bad, bad, bad)},
	{name: "fsmount", want: unix.EPERM, run: raw(unix.SYS_FSMOUNT, bad, bad, bad)},
	{name: "fspick", want: unix.EPERM, run: raw(unix.SYS_FSPICK, bad, bad, bad)},
	{name: "open_tree", want: unix.EPERM, run: raw(unix.SYS_OPEN_TREE, bad, bad, bad)},
	{name: "open_tree_attr", want: unix.EPERM, run: raw(unix.SYS_OPEN_TREE_ATTR, bad, bad, bad, bad, bad)},
	{name: "mount_setattr", want: unix.EPERM, run: raw(unix.SYS_MOUNT_SETATTR, bad, bad, bad, bad, 0)},
	{name: "setns", want: unix.EPERM, run: raw(unix.SYS_SETNS, bad, 0)},
	{name: "unshare", want: unix.EPERM, run: raw(unix.SYS_UNSHARE, 1)},
	{name: "sethostname", want: unix.EPERM, run: raw(unix.SYS_SETHOSTNAME, bad, bad)},
	{name: "setdomainname", want: unix.EPERM, run: raw(unix.SYS_SETDOMAINNAME, bad, bad)},
	// A thread without shared signal handlers is EINVAL before anything is cloned.
	{name: "clone-newns", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWNS|unix.CLONE_THREAD)},
	{name: "clone-newcgroup", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWCGROUP|unix.CLONE_THREAD)},
	{name: "clone-newuts", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWUTS|unix.CLONE_THREAD)},
	{name: "clone-newipc", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWIPC|unix.CLONE_THREAD)},
	{name: "clone-newuser", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD)},
	{name: "clone-newpid", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWPID|unix.CLONE_THREAD)},
	{name: "clone-newnet", want: unix.EPERM, run: raw(unix.SYS_CLONE, unix.CLONE_NEWNET|unix.CLONE_THREAD)},
	{name: "clone-newuser-high", want: unix.EPERM, run: raw(unix.SYS_CLONE, 1<<40|unix.CLONE_NEWUSER|unix.CLONE_THREAD)},
	// S2
	{name: "clone3", want: unix.ENOSYS, run: raw(unix.SYS_CLONE3, 0, 0)},
	// S4. AF_ALG and the like may be missing from a kernel, which then answers as the filter does.
	{name: "netlink-route", want: unix.EAFNOSUPPORT, run: sock(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)},
	{name: "netlink-generic", want: unix.EAFNOSUPPORT, run: sock(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)},
	{name: "packet", want: unix.EAFNOSUPPORT, run: sock(unix.AF_PACKET, unix.SOCK_RAW, 0), lacking: unix.EAFNOSUPPORT},
	{name: "alg", want: unix.EAFNOSUPPORT, run: sock(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), lacking: unix.EAFNOSUPPORT},
	{name: "alg-high", want: unix.EAFNOSUPPORT, run: sock(1<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0), lacking: unix.EAFNOSUPPORT},
	{name: "vsock", want: unix.EAFNOSUPPORT, run: sock(unix.AF_VSOCK, unix.SOCK_STREAM, 0), lacking: unix.EAFNOSUPPORT},
	{name: "xdp", want: unix.EAFNOSUPPORT, run: sock(unix.AF_XDP, unix.SOCK_RAW, 0), lacking: unix.EAFNOSUPPORT},
	{name: "raw4", want: unix.EPERM, run: sock(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
	{name: "raw4-flags", want: unix.EPERM, run: sock(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)},
	{name: "raw6", want: unix.EPERM, run: sock(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)},
	{name: "sock-packet", want: unix.EPERM, run: sock(unix.AF_INET, unix.SOCK_PACKET, 0x0300)},
	{name: "sctp", want: unix.EPROTONOSUPPORT, run: sock(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP), lacking: unix.EPROTONOSUPPORT},
	{name: "mptcp", want: unix.EPROTONOSUPPORT, run: sock(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP), lacking: unix.EPROTONOSUPPORT},
	{name: "oob-sendto", want: unix.EOPNOTSUPP, run: raw(unix.SYS_SENDTO, bad, bad, 1, unix.MSG_OOB)},
	{name: "oob-sendmsg", want: unix.EOPNOTSUPP, run: raw(unix.SYS_SENDMSG, bad, bad, unix.MSG_OOB|unix.MSG_NOSIGNAL)},
	{name: "oob-sendmmsg", want: unix.EOPNOTSUPP, run: raw(unix.SYS_SENDMMSG, bad, bad, 1, unix.MSG_OOB)},
	{name: "socketpair-netlink", want: unix.EAFNOSUPPORT, run: raw(unix.SYS_SOCKETPAIR, unix.AF_NETLINK, unix.SOCK_RAW, 0, bad)},
	// S5
	{name: "io_uring_setup", want: unix.EPERM, run: raw(unix.SYS_IO_URING_SETUP, 0, bad)},
	{name: "io_uring_enter", want: unix.EPERM, run: raw(unix.SYS_IO_URING_ENTER, bad)},
	{name: "io_uring_register", want: unix.EPERM, run: raw(unix.SYS_IO_URING_REGISTER, bad, bad)},
	{name: "userfaultfd", want: unix.EPERM, run: raw(unix.SYS_USERFAULTFD, bad)},
	{name: "bpf", want: unix.EPERM, run: raw(unix.SYS_BPF, bad, 0, 0)},
	{name: "perf_event_open", want: unix.EPERM, run: raw(unix.SYS_PERF_EVENT_OPEN, bad, 0, bad, bad, bad)},
	{name: "keyctl", want: unix.EPERM, run: raw(unix.SYS_KEYCTL, 9999)},
	{name: "add_key", want: unix.EPERM, run: raw(unix.SYS_ADD_KEY, bad, bad)},
	{name: "request_key", want: unix.EPERM, run: raw(unix.SYS_REQUEST_KEY, bad, bad)},
	{name: "kexec_load", want: unix.EPERM, run: raw(unix.SYS_KEXEC_LOAD, 0, 9999, bad, bad)},
	{name: "kexec_file_load", want: unix.EPERM, run: raw(unix.SYS_KEXEC_FILE_LOAD, bad, bad, 0, 0, bad)},
	{name: "init_module", want: unix.EPERM, run: raw(unix.SYS_INIT_MODULE, bad, 0, bad)},
	{name: "finit_module", want: unix.EPERM, run: raw(unix.SYS_FINIT_MODULE, bad, bad, bad)},
	{name: "delete_module", want: unix.EPERM, run: raw(unix.SYS_DELETE_MODULE, bad, 0)},
	{name: "open_by_handle_at", want: unix.EPERM, run: raw(unix.SYS_OPEN_BY_HANDLE_AT, bad, bad, 0)},
	{name: "name_to_handle_at", want: unix.EPERM, run: raw(unix.SYS_NAME_TO_HANDLE_AT, bad, bad, bad, bad, bad)},
	{name: "quotactl", want: unix.EPERM, run: raw(unix.SYS_QUOTACTL, bad, bad, 0, bad)},
	{name: "quotactl_fd", want: unix.EPERM, run: raw(unix.SYS_QUOTACTL_FD, bad, bad, 0, bad)},
	{name: "swapon", want: unix.EPERM, run: raw(unix.SYS_SWAPON, bad, bad)},
	{name: "swapoff", want: unix.EPERM, run: raw(unix.SYS_SWAPOFF, bad)},
	{name: "reboot", want: unix.EPERM, run: raw(unix.SYS_REBOOT, 0, 0, 0, 0)},
	{name: "settimeofday", want: unix.EPERM, run: raw(unix.SYS_SETTIMEOFDAY, bad, bad)},
	{name: "clock_settime", want: unix.EPERM, run: raw(unix.SYS_CLOCK_SETTIME, 9999, bad)},
	{name: "adjtimex", want: unix.EPERM, run: raw(unix.SYS_ADJTIMEX, bad)},
	{name: "clock_adjtime", want: unix.EPERM, run: raw(unix.SYS_CLOCK_ADJTIME, 9999, bad)},
	{name: "syslog", want: unix.EPERM, run: raw(unix.SYS_SYSLOG, bad, 0, 0)},
	{name: "acct", want: unix.EPERM, run: raw(unix.SYS_ACCT, bad)}, // null would switch accounting off
	{name: "vhangup", want: unix.EPERM, run: raw(unix.SYS_VHANGUP)},
	{name: "sync", want: unix.EPERM, run: raw(unix.SYS_SYNC)},
	{name: "syncfs", want: unix.EPERM, run: raw(unix.SYS_SYNCFS, bad)},
	{name: "lookup_dcookie", want: unix.EPERM, run: raw(unix.SYS_LOOKUP_DCOOKIE, 0, bad, 0)},
	{name: "fanotify_init", want: unix.EPERM, run: raw(unix.SYS_FANOTIFY_INIT, bad, bad)},
	{name: "mbind", want: unix.EPERM, run: raw(unix.SYS_MBIND, 0, 0, bad, 0, 0, bad)},
	// S6
	{name: "ptrace", want: unix.EPERM, run: raw(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 0x7fffffff)},
	{name: "process_vm_readv", want: unix.EPERM, run: raw(unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, bad)},
	{name: "process_vm_writev", want: unix.EPERM, run: raw(unix.SYS_PROCESS_VM_WRITEV, 0, 0, 0, 0, 0, bad)},
	{name: "pidfd_getfd", want: unix.EPERM, run: raw(unix.SYS_PIDFD_GETFD, bad, 0, 0)},
	{name: "kcmp", want: unix.EPERM, run: raw(unix.SYS_KCMP, 0x7fffffff, 0x7fffffff, 0)},
	{name: "process_madvise", want: unix.EPERM, run: raw(unix.SYS_PROCESS_MADVISE, bad, 0, 0, 0, bad)},
	{name: "personality-aslr", want: unix.EPERM, run: raw(unix.SYS_PERSONALITY, 0x40000)},
	// S7
	{name: "tiocsti", want: unix.EPERM, run: raw(unix.SYS_IOCTL, bad, unix.TIOCSTI, 0)},
	{name: "tiocsti-high", want: unix.EPERM, run: raw(unix.SYS_IOCTL, bad, 1<<32|unix.TIOCSTI, 0)},
	{name: "tioclinux", want: unix.EPERM, run: raw(unix.SYS_IOCTL, bad, 0x541c, 0)},
	{name: "nsgetuserns", want: unix.EPERM, run: raw(unix.SYS_IOCTL, bad, unix.NS_GET_USERNS, 0)},
	{name: "setflags", want: unix.ENOTTY, run: raw(unix.SYS_IOCTL, bad, unix.FS_IOC_SETFLAGS, 0)},
	{name: "tiocsetd", want: unix.EPERM, run: raw(unix.SYS_IOCTL, bad, 0x5423, 0)},
	{name: "lease", want: unix.EINVAL, run: raw(unix.SYS_FCNTL, bad, unix.F_SETLEASE, 0)},
	{name: "notify", want: unix.EINVAL, run: raw(unix.SYS_FCNTL, bad, unix.F_NOTIFY, 0)},
	// Filters of their own, by any door, and a share of the machine's budget of asynchronous I/O.
	{name: "seccomp-filter", want: unix.ENOSYS, run: raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)},
	{name: "seccomp-listener", want: unix.ENOSYS, run: raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0)},
	{name: "prctl-filter", want: unix.EINVAL, run: raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, bad)},
	{name: "socket-filter", want: unix.ENOPROTOOPT, run: raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, 0, 0)},
	{name: "socket-reuseport-filter", want: unix.ENOPROTOOPT,
		run: raw(unix.SYS_SETSOCKOPT, bad, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, 0, 0)},
	{name: "io_setup", want: unix.ENOSYS, run: raw(unix.SYS_IO_SETUP, 0, 0)},
	// Beyond the table: the kernel would say the same today.
	{name: "future", want: unix.ENOSYS, run: raw(4000), lacking: unix.ENOSYS},
}, nativeProbes)

// S1–S7 against the kernel, each beside the same probe without a filter.
func TestKernelRefuses(t *testing.T) {
	with := answers(t, "probe", "default")
	without := answers(t, "probe", "none")
	for _, p := range probes {
		got, ok := with[p.name]
		if !ok {
			t.Fatalf("%s did not run", p.name)
		}
		if got != p.want {
			t.Errorf("%s: errno %d (%v), want %d (%v)", p.name, int(got), got, int(p.want), p.want)
		}
		control := without[p.name]
		switch {
		case control != p.want:
		case p.lacking != 0 && control == p.lacking:
			t.Logf("%s: no control, this kernel has none of it (%v)", p.name, control)
		case os.Getuid() != 0:
			t.Logf("%s: no control, without root the kernel refuses it by itself", p.name)
		default:
			t.Errorf("%s: without a filter also %v: the probe proves nothing", p.name, control)
		}
	}
}

// S3: int 0x80 enters the i386 table from a 64-bit process.
func TestKernelKillsForeignArchitecture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("no second architecture to enter from Go on", runtime.GOARCH)
	}
	out, err := childCommand(t, "int80", "none").CombinedOutput()
	if err != nil {
		t.Skipf("no control: this kernel takes no i386 calls (%v: %s)", err, out)
	}
	if n := strings.TrimSpace(string(out)); n == "0" || strings.HasPrefix(n, "-") {
		t.Skipf("no control: i386 getpid returned %s", n)
	}
	out, err = childCommand(t, "int80", "default").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Errorf("int 0x80 under the filter: %v, want death by SIGSYS\n%s", err, out)
	}
}

// setIDProbes work in the child's own empty directory.
var setIDProbes = slices.Concat([]probe{
	{name: "make-file", run: func() unix.Errno { return errnoOf(os.WriteFile("f", nil, 0o644)) }},
	{name: "fchmodat-plain", run: func() unix.Errno { return errnoOf(unix.Fchmodat(unix.AT_FDCWD, "f", 0o755, 0)) }},
	{name: "fchmodat-suid", want: unix.EPERM, run: func() unix.Errno { return errnoOf(unix.Fchmodat(unix.AT_FDCWD, "f", 0o4755, 0)) }},
	{name: "fchmodat-sgid", want: unix.EPERM, run: func() unix.Errno { return errnoOf(unix.Fchmodat(unix.AT_FDCWD, "f", 0o2755, 0)) }},
	{name: "fchmodat2-suid", want: unix.EPERM, run: func() unix.Errno {
		return at(unix.SYS_FCHMODAT2, "f", 0o4755, 0)
	}},
	{name: "fchmod-suid", want: unix.EPERM, run: func() unix.Errno {
		f, err := os.Open("f")
		if err != nil {
			return errnoOf(err)
		}
		defer f.Close()
		return errnoOf(unix.Fchmod(int(f.Fd()), 0o4755))
	}},
	{name: "openat-suid", want: unix.EPERM, run: func() unix.Errno { return open("g", unix.O_CREAT|unix.O_WRONLY, 0o4755) }},
	{name: "openat-tmpfile-suid", want: unix.EPERM, run: func() unix.Errno { return open(".", unix.O_TMPFILE|unix.O_WRONLY, 0o4755) }},
	{name: "openat-create", run: func() unix.Errno { return open("h", unix.O_CREAT|unix.O_WRONLY, 0o755) }},
	{name: "openat-stale-mode", run: func() unix.Errno { return open("f", unix.O_RDONLY, 0o7777) }},
	{name: "openat2", want: unix.ENOSYS, run: func() unix.Errno {
		fd, err := unix.Openat2(unix.AT_FDCWD, "f", &unix.OpenHow{})
		if err == nil {
			unix.Close(fd)
		}
		return errnoOf(err)
	}},
	{name: "mkdirat", run: func() unix.Errno { return errnoOf(unix.Mkdirat(unix.AT_FDCWD, "d", 0o1777)) }},
	{name: "mkdirat-sgid", want: unix.EPERM, run: func() unix.Errno { return errnoOf(unix.Mkdirat(unix.AT_FDCWD, "e", 0o2755)) }},
	{name: "mknodat-fifo", run: func() unix.Errno { return errnoOf(unix.Mknodat(unix.AT_FDCWD, "p", unix.S_IFIFO|0o644, 0)) }},
	{name: "mknodat-suid", want: unix.EPERM, run: func() unix.Errno {
		return errnoOf(unix.Mknodat(unix.AT_FDCWD, "q", unix.S_IFREG|0o4755,
			0))
	}},
}, nativeSetIDProbes)

func at(nr uintptr, path string, a ...uintptr) unix.Errno {
	p, _ := unix.BytePtrFromString(path)
	cwd := unix.AT_FDCWD
	_, _, errno := unix.Syscall6(nr, uintptr(cwd), uintptr(unsafe.Pointer(p)), a[0], a[1], 0, 0)
	return errno
}

// open goes past package unix, which keeps modes to itself without O_CREAT.
func open(path string, flags, mode uintptr) unix.Errno {
	p, _ := unix.BytePtrFromString(path)
	cwd := unix.AT_FDCWD
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(unsafe.Pointer(p)), flags, mode, 0, 0)
	if errno == 0 {
		unix.Close(int(fd))
	}
	return errno
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.Errno(0xffff)
	}
	return errno
}

func TestKernelRefusesSetID(t *testing.T) {
	with := answers(t, "setid", "setid")
	without := answers(t, "setid", "default")
	for _, p := range setIDProbes {
		if got := with[p.name]; got != p.want {
			t.Errorf("%s under DenySetID: %v, want %v", p.name, got, p.want)
		}
		switch control := without[p.name]; {
		case control == unix.ENOSYS || control == unix.EOPNOTSUPP:
			t.Logf("%s: no control, this kernel or file system has none of it (%v)", p.name, control)
		case control != 0:
			t.Errorf("%s under the default policy: %v, want success", p.name, control)
		}
	}
}

// allocateProbes take space for a file of the child's own.
var allocateProbes = []probe{
	{name: "write", run: func() unix.Errno { return errnoOf(os.WriteFile("f", []byte("x"), 0o644)) }},
	{name: "fallocate", want: unix.EOPNOTSUPP, run: func() unix.Errno {
		return onFile(func(fd int) error { return unix.Fallocate(fd, 0, 0, 1<<20) })
	}},
	{name: "fallocate-keep", want: unix.EOPNOTSUPP, run: func() unix.Errno {
		return onFile(func(fd int) error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20) })
	}},
	{name: "resvsp", want: unix.ENOTTY, run: func() unix.Errno { return reserve(0x40305828) }},
	{name: "resvsp64", want: unix.ENOTTY, run: func() unix.Errno { return reserve(0x4030582a) }},
	{name: "zero-range", want: unix.ENOTTY, run: func() unix.Errno { return reserve(0x40305839) }},
}

func onFile(do func(fd int) error) unix.Errno {
	f, err := os.OpenFile("f", os.O_RDWR, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer f.Close()
	return errnoOf(do(int(f.Fd())))
}

// reserve asks for the first MiB of a file by an ioctl.
func reserve(request uint) unix.Errno {
	space := struct {
		kind, whence int16
		start, size  int64
		sysid        int32
		pid          uint32
		pad          [4]int32
	}{size: 1 << 20}
	return onFile(func(fd int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&space)))
		if errno != 0 {
			return errno
		}
		return nil
	})
}

func TestKernelRefusesAllocation(t *testing.T) {
	with := answers(t, "allocate", "allocate")
	without, unfiltered := answers(t, "allocate", "default"), answers(t, "allocate", "none")
	for _, p := range allocateProbes {
		if got := with[p.name]; got != p.want {
			t.Errorf("%s under DenyAllocate: %v, want %v", p.name, got, p.want)
		}
		if got := without[p.name]; p.want != unix.ENOTTY && got != 0 {
			t.Errorf("%s under the default policy: %v, want success", p.name, got)
		}
		if control := unfiltered[p.name]; control != 0 {
			t.Errorf("%s without a filter: %v, want success", p.name, control)
		}
	}
}

// The kernel takes every program, not only the default one.
func TestKernelAcceptsEveryPolicy(t *testing.T) {
	for _, policy := range []string{"default", "setid", "allocate"} {
		cmd := childCommand(t, "exec", policy, "/bin/sh", "-c", "grep Seccomp: /proc/self/status")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "2") {
			t.Errorf("policy %s: %v %s", policy, err, out)
		}
	}
}

// locate finds a program; python3 may be a shim that costs more than Python.
func locate(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	if name == "python3" {
		out, err := exec.Command(path, "-c", "import sys;print(sys.executable)").Output()
		if err != nil {
			t.Skipf("python3 does not start here: %v", err)
		}
		path = strings.TrimSpace(string(out))
	}
	return path
}
