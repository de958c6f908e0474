package seccomp

import (
	"slices"
	"strings"
	"testing"
)

// Written by hand and to be changed by hand only: what is refused whatever its
// arguments are. Neither a newer moby profile nor a careless edit of the table
// generator may shorten it, nor lengthen it and hurt an ordinary program.
const (
	goldenRefused = `
		mount umount2 pivot_root chroot move_mount fsopen fsconfig fsmount fspick open_tree open_tree_attr mount_setattr
		setns unshare sethostname setdomainname
		io_uring_setup io_uring_enter io_uring_register userfaultfd bpf perf_event_open
		keyctl add_key request_key kexec_load kexec_file_load init_module finit_module delete_module
		open_by_handle_at name_to_handle_at quotactl quotactl_fd swapon swapoff reboot syslog acct vhangup
		settimeofday clock_settime adjtimex clock_adjtime sync syncfs
		ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp
		fanotify_init lsm_get_self_attr lsm_set_self_attr lsm_list_modules lookup_dcookie nfsservctl
		mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages`
	goldenRefusedAMD64 = goldenRefused + `
		iopl ioperm modify_ldt uselib ustat sysfs _sysctl create_module get_kernel_syms query_module
		getpmsg putpmsg afs_syscall tuxcall security vserver`
	goldenAbsent = `clone3 seccomp io_setup io_submit io_getevents io_pgetevents io_cancel io_destroy
		file_getattr file_setattr listns rseq_slice_yield`
	goldenAbsentAMD64 = goldenAbsent + ` uprobe`
	goldenPartly      = `clone socket socketpair personality ioctl prctl setsockopt fcntl prlimit64 sendto sendmsg sendmmsg`
	goldenSetID       = `fchmod fchmodat fchmodat2 mknodat mkdirat openat`
	goldenSetIDAMD64  = goldenSetID + ` chmod mknod mkdir open creat`
)

func TestGoldenRefusals(t *testing.T) {
	for _, tc := range []struct {
		arch, refused, absent, setID string
	}{
		{"amd64", goldenRefusedAMD64, goldenAbsentAMD64, goldenSetIDAMD64},
		{"arm64", goldenRefused, goldenAbsent, goldenSetID},
	} {
		t.Run(tc.arch, func(t *testing.T) {
			for _, p := range everyPolicy {
				want := map[string]string{}
				list := func(names, verdict string) {
					for _, name := range strings.Fields(names) {
						want[name] = verdict
					}
				}
				list(tc.refused, "EPERM")
				list(tc.absent, "ENOSYS")
				list(goldenPartly, "partly")
				if p.DenySetID {
					list(tc.setID, "partly")
					list("openat2", "ENOSYS")
				}
				if p.DenyUncounted {
					list("memfd_create memfd_secret vmsplice msgget", "EPERM")
					list("shmget semget mmap", "partly")
				}
				if p.DenyAllocate {
					list("fallocate", "EOPNOTSUPP")
				}
				if p.DenyAffinity {
					list("sched_setaffinity", "EPERM")
				}
				a, err := lookup(tc.arch)
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]string{}
				for nr, c := range a.calls {
					if c.name == "" {
						if act, _ := Decide(p, tc.arch, uint32(nr), [6]uint64{}); act.Errno() != eNOSYS {
							t.Errorf("unassigned number %d: %v, want ENOSYS", nr, act)
						}
						continue
					}
					steps, act := p.resolve(c.rule)
					switch {
					case steps != nil:
						got[c.name] = "partly"
					case act.Errno() == ePERM:
						got[c.name] = "EPERM"
					case act.Errno() == eOPNOTSUPP:
						got[c.name] = "EOPNOTSUPP"
					case act.Errno() == eNOSYS:
						got[c.name] = "ENOSYS"
					case act != Allow:
						got[c.name] = act.String()
					}
				}
				for name, verdict := range want {
					if got[name] != verdict {
						t.Errorf("%+v: %s is %q, want %q", p, name, got[name], verdict)
					}
				}
				for name, verdict := range got {
					if want[name] == "" {
						t.Errorf("%+v: %s is %q, not on the golden list", p, name, verdict)
					}
				}
			}
		})
	}
}

// The allowed arguments of partly allowed calls, by hand, through the BPF itself.
func TestGoldenArguments(t *testing.T) {
	const high = 0xdeadbeef << 32 // the kernel does not see these bits
	setID := Policy{DenySetID: true}
	counted := Policy{DenyUncounted: true}
	for _, tc := range []struct {
		call string
		args [6]uint64
		want int // errno; 0 is allowed
		p    Policy
	}{
		{call: "shmget", args: [6]uint64{0, 1 << 40}},
		{call: "shmget", args: [6]uint64{0, 56}, p: counted},
		{call: "shmget", args: [6]uint64{0, 0xffff}, p: counted},
		{call: "shmget", args: [6]uint64{0, 0x10000}, want: ePERM, p: counted},
		{call: "shmget", args: [6]uint64{0, 1<<32 + 56}, want: ePERM, p: counted},
		{call: "semget", args: [6]uint64{0, 32000}},
		{call: "semget", args: [6]uint64{0, 0}, p: counted},
		{call: "semget", args: [6]uint64{0, 63}, p: counted},
		{call: "semget", args: [6]uint64{0, 64}, want: ePERM, p: counted},
		{call: "semget", args: [6]uint64{0, high | 32000}, want: ePERM, p: counted},
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x21}},
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x22}, p: counted},
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x20022}, p: counted}, // a stack
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x01, 3}, p: counted}, // a file
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x21}, want: ePERM, p: counted},
		{call: "mmap", args: [6]uint64{0, 4096, 3, 0x23}, want: ePERM, p: counted}, // MAP_SHARED_VALIDATE
		{call: "mmap", args: [6]uint64{0, 4096, 3, high | 0x8031}, want: ePERM, p: counted},
		{call: "setsockopt", args: [6]uint64{3, 1, 60}},
		{call: "setsockopt", args: [6]uint64{3, 1, 60}, want: eNOPROTOOPT, p: counted},
		{call: "setsockopt", args: [6]uint64{3, 1, 26}, want: eNOPROTOOPT, p: counted},
		{call: "setsockopt", args: [6]uint64{3, 6, 60}, p: counted},
		{call: "prlimit64", args: [6]uint64{0, 7}},
		{call: "prlimit64", args: [6]uint64{2, 7}},
		{call: "prlimit64", args: [6]uint64{1, 7}, want: ePERM},
		{call: "prlimit64", args: [6]uint64{high | 1, 7}, want: ePERM},
		{call: "clone", args: [6]uint64{17}},
		{call: "clone", args: [6]uint64{0x3d0f00}}, // pthread_create
		{call: "clone", args: [6]uint64{0x01200011}},
		{call: "clone", args: [6]uint64{0x00020000 | 17}, want: ePERM},
		{call: "clone", args: [6]uint64{0x02000000}, want: ePERM},
		{call: "clone", args: [6]uint64{0x04000000}, want: ePERM},
		{call: "clone", args: [6]uint64{0x08000000}, want: ePERM},
		{call: "clone", args: [6]uint64{high | 0x10000000}, want: ePERM},
		{call: "clone", args: [6]uint64{0x20000000}, want: ePERM},
		{call: "clone", args: [6]uint64{0x40000000 | 17}, want: ePERM},

		{call: "socket", args: [6]uint64{1, 1, 0}},
		{call: "socket", args: [6]uint64{1, 5 | 0o2000000 | 0o4000, 0}},
		{call: "socket", args: [6]uint64{2, 1 | 0o2000000, 6}},
		{call: "socket", args: [6]uint64{2, 1, 262}, want: ePROTONOSUPPORT}, // MPTCP
		{call: "sendto", args: [6]uint64{3, 0, 1, 0x4040}},                  // MSG_NOSIGNAL | MSG_DONTWAIT
		{call: "sendto", args: [6]uint64{3, 0, 1, 1}, want: eOPNOTSUPP},     // MSG_OOB
		{call: "sendto", args: [6]uint64{3, 0, 1, high | 0x4001}, want: eOPNOTSUPP},
		{call: "sendmsg", args: [6]uint64{3, 0, 0x4000, 1}},
		{call: "sendmsg", args: [6]uint64{3, 0, 0x4001}, want: eOPNOTSUPP},
		{call: "sendmmsg", args: [6]uint64{3, 0, 1, 0x4000}},
		{call: "sendmmsg", args: [6]uint64{3, 0, 1, 1}, want: eOPNOTSUPP},
		{call: "socket", args: [6]uint64{10, 2 | 0o4000, 17}},
		{call: "socket", args: [6]uint64{10, 2, 58}},
		{call: "socket", args: [6]uint64{high | 2, high | 1, high | 6}},
		{call: "socket", args: [6]uint64{2, 3, 1}, want: ePERM},                   // raw ICMP
		{call: "socket", args: [6]uint64{10, 3 | 0o2004000, 58}, want: ePERM},     // raw ICMPv6
		{call: "socket", args: [6]uint64{1, 3, 0}, want: ePERM},                   // raw of any family
		{call: "socket", args: [6]uint64{2, high | 3, 0}, want: ePERM},            // truncated by the kernel
		{call: "socket", args: [6]uint64{2, 10, 0x0300}, want: ePERM},             // SOCK_PACKET is AF_PACKET
		{call: "socket", args: [6]uint64{2, 6, 33}, want: eSOCKTNOSUPPORT},        // DCCP
		{call: "socket", args: [6]uint64{2, 1, 132}, want: ePROTONOSUPPORT},       // SCTP
		{call: "socket", args: [6]uint64{2, 2, 115}, want: ePROTONOSUPPORT},       // L2TP
		{call: "socket", args: [6]uint64{2, 1, 256}, want: ePROTONOSUPPORT},       // SMC
		{call: "socket", args: [6]uint64{16, 3, 0}, want: eAFNOSUPPORT},           // netlink
		{call: "socket", args: [6]uint64{17, 3, 0x0300}, want: eAFNOSUPPORT},      // packet
		{call: "socket", args: [6]uint64{38, 5, 0}, want: eAFNOSUPPORT},           // ALG
		{call: "socket", args: [6]uint64{high | 38, 5, 0}, want: eAFNOSUPPORT},    // ALG
		{call: "socket", args: [6]uint64{40, 1, 0}, want: eAFNOSUPPORT},           // VSOCK
		{call: "socket", args: [6]uint64{0xffffffffffffffff}, want: eAFNOSUPPORT}, // -1
		{call: "socket", args: [6]uint64{44, 3, 0}, want: eAFNOSUPPORT},           // XDP
		{call: "socket", args: [6]uint64{31, 3, 1}, want: eAFNOSUPPORT},           // Bluetooth
		{call: "socketpair", args: [6]uint64{1, 1 | 0o2000000, 0}},                //
		{call: "socket", args: [6]uint64{high | 16, 2, 9}, want: eAFNOSUPPORT},
		{call: "socketpair", args: [6]uint64{16, 3, 0}, want: eAFNOSUPPORT},
		{call: "socketpair", args: [6]uint64{30, 1, 0}, want: eAFNOSUPPORT},  // TIPC
		{call: "personality", args: [6]uint64{0}},                            //
		{call: "personality", args: [6]uint64{8}},                            //
		{call: "personality", args: [6]uint64{0xffffffff}},                   //
		{call: "personality", args: [6]uint64{0xffffffffffffffff}},           // the same, sign-extended
		{call: "personality", args: [6]uint64{0x40000}, want: ePERM},         // ADDR_NO_RANDOMIZE
		{call: "personality", args: [6]uint64{high | 0x400000}, want: ePERM}, // READ_IMPLIES_EXEC
		{call: "ioctl", args: [6]uint64{0, 0x5401}},                          // TCGETS
		{call: "ioctl", args: [6]uint64{0, 0x5413}},                          // TIOCGWINSZ
		{call: "ioctl", args: [6]uint64{0, 0x5412}, want: ePERM},             // TIOCSTI
		{call: "ioctl", args: [6]uint64{0, high | 0x5412}, want: ePERM},      // the known bypass
		{call: "ioctl", args: [6]uint64{0, 0x541c}, want: ePERM},             // TIOCLINUX
		{call: "fcntl", args: [6]uint64{0, 2}},                               // F_SETFD
		{call: "fcntl", args: [6]uint64{0, 1030}},                            // F_DUPFD_CLOEXEC
		{call: "fcntl", args: [6]uint64{0, 1024}, want: eINVAL},              // F_SETLEASE
		{call: "fcntl", args: [6]uint64{0, high | 1026}, want: eINVAL},       // F_NOTIFY
		{call: "ioctl", args: [6]uint64{0, high | 0x5423}, want: ePERM},      // TIOCSETD
		{call: "ioctl", args: [6]uint64{0, 0x541d}, want: ePERM},             // TIOCCONS
		{call: "ioctl", args: [6]uint64{0, 0xae01}, want: ePERM},             // KVM_CREATE_VM
		{call: "ioctl", args: [6]uint64{0, 0x4c00}, want: ePERM},             // LOOP_SET_FD
		{call: "ioctl", args: [6]uint64{0, 0x2285}, want: ePERM},             // SG_IO
		{call: "ioctl", args: [6]uint64{0, high | 0xb701}, want: ePERM},      // NS_GET_USERNS
		{call: "ioctl", args: [6]uint64{0, 0xc0502100}, want: ePERM},         // SECCOMP_IOCTL_NOTIF_RECV
		{call: "ioctl", args: [6]uint64{0, 0x4b46}, want: ePERM},             // KDGKBENT
		{call: "ioctl", args: [6]uint64{0, 0x400454ca}, want: eNOTTY},        // TUNSETIFF
		{call: "ioctl", args: [6]uint64{0, 0x40086602}, want: eNOTTY},        // FS_IOC_SETFLAGS
		{call: "ioctl", args: [6]uint64{0, 0xc0045877}, want: eNOTTY},        // FIFREEZE
		{call: "ioctl", args: [6]uint64{0, 0x40049409}, want: eNOTTY},        // FICLONE
		{call: "ioctl", args: [6]uint64{0, 0x8914}, want: eNOTTY},            // SIOCSIFFLAGS
		{call: "ioctl", args: [6]uint64{0, 0x89f0}, want: eNOTTY},            // SIOCDEVPRIVATE
		{call: "ioctl", args: [6]uint64{0, 0x8946}, want: eOPNOTSUPP},        // SIOCETHTOOL
		{call: "ioctl", args: [6]uint64{0, 0x541b}},                          // FIONREAD
		{call: "ioctl", args: [6]uint64{0, high | 0x802c542a}},               // TCGETS2
		{call: "ioctl", args: [6]uint64{0, 0x8912}},                          // SIOCGIFCONF
		{call: "seccomp", args: [6]uint64{1, 0}, want: eNOSYS},
		{call: "seccomp", args: [6]uint64{1, high | 1<<3}, want: eNOSYS},   // NEW_LISTENER
		{call: "prctl", args: [6]uint64{15}},                               // PR_SET_NAME
		{call: "prctl", args: [6]uint64{21}},                               // PR_GET_SECCOMP
		{call: "prctl", args: [6]uint64{high | 22, 2}, want: eINVAL},       // PR_SET_SECCOMP
		{call: "setsockopt", args: [6]uint64{3, 1, 2}},                     // SO_REUSEADDR
		{call: "setsockopt", args: [6]uint64{3, 6, 26}},                    // TCP's option 26
		{call: "setsockopt", args: [6]uint64{3, 1, 26}, want: eNOPROTOOPT}, // SO_ATTACH_FILTER
		{call: "setsockopt", args: [6]uint64{3, high | 1, high | 51}, want: eNOPROTOOPT},
		{call: "fchmod", args: [6]uint64{3, 0o4755}}, //
		{call: "openat2"}, //
		{call: "fchmod", args: [6]uint64{3, 0o755}, p: setID},                      //
		{call: "fchmod", args: [6]uint64{3, 0o1777}, p: setID},                     //
		{call: "fchmod", args: [6]uint64{3, 0o4755}, p: setID, want: ePERM},        //
		{call: "fchmod", args: [6]uint64{3, high | 0o2755}, p: setID, want: ePERM}, //
		{call: "fchmodat", args: [6]uint64{3, 0o6000, 0o755}, p: setID},            //
		{call: "fchmodat", args: [6]uint64{3, 0, 0o6755}, p: setID, want: ePERM},   //
		{call: "fchmodat2", args: [6]uint64{3, 0, 0o4000}, p: setID, want: ePERM},  //
		{call: "mkdirat", args: [6]uint64{3, 0, 0o2755}, p: setID, want: ePERM},    //
		{call: "mknodat", args: [6]uint64{3, 0, 0o10644}, p: setID},                // FIFO
		{call: "mknodat", args: [6]uint64{3, 0, 0o104755}, p: setID, want: ePERM},  //
		{call: "openat", args: [6]uint64{3, 0, 0, 0o7777}, p: setID},               // no file is made
		{call: "openat", args: [6]uint64{3, 0, 0x241, 0o644}, p: setID},            //
		{call: "openat", args: [6]uint64{3, 0, 0x241, 0o4755}, p: setID, want: ePERM},
		{call: "openat", args: [6]uint64{3, 0, high | 0x410002, high | 0o2755}, p: setID, want: ePERM}, // O_TMPFILE
		{call: "openat2", p: setID, want: eNOSYS},
		{call: "open", args: [6]uint64{0, 0x41, 0o4755}, p: setID, want: ePERM},
		{call: "open", args: [6]uint64{0, 0, 0o4755}, p: setID},
		{call: "creat", args: [6]uint64{0, 0o2755}, p: setID, want: ePERM},
		{call: "chmod", args: [6]uint64{0, 0o4755}, p: setID, want: ePERM},
		{call: "mkdir", args: [6]uint64{0, 0o2755}, p: setID, want: ePERM},
		{call: "mknod", args: [6]uint64{0, 0o104755}, p: setID, want: ePERM},
	} {
		for _, arch := range []string{"amd64", "arm64"} {
			nr := numberOf(arch, tc.call)
			if nr < 0 {
				continue // arm64 has no open, creat, chmod, mkdir, mknod
			}
			a, _ := lookup(arch)
			act := simulate(t, program(t, tc.p, arch), a.audit, uint32(nr), tc.args)
			if tc.want == 0 && act != Allow || tc.want != 0 && act.Errno() != tc.want {
				t.Errorf("%s %s(%#x) %+v: %v, want errno %d", arch, tc.call, tc.args, tc.p, act, tc.want)
			}
			for _, p := range everyPolicy { // none allows what the default policy refuses, but for the calls of a zygote
				act, err := Decide(p, arch, uint32(nr), tc.args)
				if zygotes := p.Zygote && tc.call == "seccomp"; err != nil || tc.p == (Policy{}) && tc.want != 0 && act == Allow && !zygotes {
					t.Errorf("%s %s(%#x) %+v: %v, %v, want a refusal", arch, tc.call, tc.args, p, act, err)
				}
			}
		}
	}
}

// Calls that every ordinary runtime needs are allowed whatever their
// arguments, on both architectures.
func TestGoldenAllowed(t *testing.T) {
	const names = `read write close mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn futex execve
		exit exit_group wait4 waitid kill tgkill getpid gettid newfstatat statx getdents64 pipe2 dup3 epoll_create1 epoll_ctl
		epoll_pwait eventfd2 inotify_init1 timerfd_create timer_create clock_gettime clock_nanosleep nanosleep getrandom
		memfd_create rseq membarrier sched_yield sched_getaffinity sched_setaffinity set_robust_list
		madvise connect bind listen accept4 recvmsg recvfrom getsockopt
		faccessat2 close_range pidfd_open pidfd_send_signal copy_file_range sendfile splice landlock_create_ruleset
		openat mkdirat fchmod fchmodat renameat2 unlinkat linkat symlinkat utimensat umask setsid setpgid`
	for _, arch := range []string{"amd64", "arm64"} {
		a, _ := lookup(arch)
		for _, name := range strings.Fields(names) {
			nr := slices.IndexFunc(a.calls, func(c call) bool { return c.name == name })
			if nr < 0 {
				t.Errorf("%s has no %s", arch, name)
				continue
			}
			if steps, act := (Policy{}).resolve(a.calls[nr].rule); steps != nil || act != Allow {
				t.Errorf("%s: %s is not simply allowed", arch, name)
			}
		}
	}
}
