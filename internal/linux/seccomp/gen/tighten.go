//go:build linux

package main

// refused lists the calls that sandbox-run removes from moby's default profile, and
// those that moby refuses already and that stay refused whatever a later profile
// allows. Names are the kernel's; a name that no architecture has is an error.
var refused = []string{
	// S1: mounts, roots and namespaces.
	"mount", "umount2", "pivot_root", "chroot", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
	"open_tree", "open_tree_attr", "mount_setattr", "setns", "unshare", "sethostname", "setdomainname",
	// S5: kernel surface with a history, and calls that touch the whole machine.
	"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open",
	"keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load",
	"init_module", "finit_module", "delete_module",
	"create_module", "get_kernel_syms", "query_module",
	// A handle names a file by inode, past every mount and path check.
	// Making one is allowed by moby; nothing here has a use for it.
	"open_by_handle_at", "name_to_handle_at",
	"quotactl", "quotactl_fd", "swapon", "swapoff", "reboot", "syslog", "acct", "vhangup",
	"settimeofday", "clock_settime",
	// These write back every file system, or a shared one, of the machine: a program could delay all others with them. fsync stays.
	"sync", "syncfs",
	// moby allows these two for reading the clock's state; whether they write is
	// behind a pointer.
	"adjtimex", "clock_adjtime",
	"iopl", "ioperm", "lookup_dcookie", "nfsservctl", "_sysctl", "uselib", "ustat", "sysfs",
	"fanotify_init", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
	// 16-bit segments: needed by DOS emulators, and by exploits.
	"modify_ldt",
	// S6: other processes' memory and descriptors. moby allows the first three.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
}

// absent answers ENOSYS although the number lies below the profile's highest.
var absent = []string{
	"clone3",  // flags behind a pointer; libc falls back to clone
	"uprobe",  // newer than the profile, numbered into an old gap
	"seccomp", // filters are work for the whole machine: see stepsPrctl
	// R6: asynchronous I/O contexts come out of one budget for the whole machine (fs.aio-max-nr). libc's
	// aio uses threads; callers of these calls have a fallback.
	"io_setup", "io_submit", "io_getevents", "io_pgetevents", "io_cancel", "io_destroy",
}

// byArguments names the rule of calls that are allowed in part. Each must be
// allowed by moby at least in part, so that this list can not loosen anything.
var byArguments = map[string]string{
	"clone":       "ruleClone",
	"socket":      "ruleSocket",
	"socketpair":  "ruleSocket",
	"personality": "rulePersonality",
	"ioctl":       "ruleIoctl",
	"prctl":       "rulePrctl",
	"setsockopt":  "ruleSockopt",
	"fcntl":       "ruleFcntl",
	"prlimit64":   "rulePrlimit",
	"sendmsg":     "ruleSend2",
	"sendto":      "ruleSend3",
	"sendmmsg":    "ruleSend3",

	"chmod":     "ruleMode1",
	"fchmod":    "ruleMode1",
	"creat":     "ruleMode1",
	"mkdir":     "ruleMode1",
	"mknod":     "ruleMode1",
	"fchmodat":  "ruleMode2",
	"fchmodat2": "ruleMode2",
	"mkdirat":   "ruleMode2",
	"mknodat":   "ruleMode2",
	"open":      "ruleOpen1",
	"openat":    "ruleOpen2",
	"openat2":   "ruleOpenHow",

	"fallocate":         "ruleAllocate",
	"memfd_create":      "ruleMemoryFile",
	"memfd_secret":      "ruleMemoryFile",
	"vmsplice":          "ruleMemoryFile",
	"msgget":            "ruleMemoryFile",
	"mmap":              "ruleMap",
	"shmget":            "ruleSharedMemory",
	"semget":            "ruleSemaphores",
	"sched_setaffinity": "ruleAffinity",
}
