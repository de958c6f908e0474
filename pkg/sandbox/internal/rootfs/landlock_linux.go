package rootfs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Landlock repeats the restrictions of the mounts in another part of the kernel: a bug in one is not a hole in both.
const (
	landRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landMake = unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	landDevices = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK // granted nowhere
	landWrite   = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// Connections are left to the network namespace. Landlock would refuse them before the kernel looks for a route: with EACCES, which
	// hides the cause from the program, and without being counted.
	landNet = unix.LANDLOCK_ACCESS_NET_BIND_TCP
)

// Landlock is the Landlock ruleset of a process, as far as this kernel has it; empty where it has none.
func Landlock(spec *sandbox.Spec, n network.Policy, uncounted bool) (m initproto.Ruleset) {
	abi := LandlockABI()
	if abi < MinLandlockABI {
		return m // the isolation report says so
	}
	var known uint64 = landRead | landMake | landDevices | unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	if abi >= 3 {
		known |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		known |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 4 && !n.HasLoopback() {
		m.Net = landNet // with no rule, nothing of it is granted
	}
	if abi >= 6 { // in addition to the network and pid namespaces
		m.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	m.FS = known
	grant := func(path string, access uint64) {
		m.Rules = append(m.Rules, initproto.Rule{Path: path, Access: access & known})
	}
	everywhere := uint64(landRead)
	if spec.WritableRoot {
		everywhere |= landMake | landWrite
	}
	grant("/", everywhere)
	for _, p := range []string{sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir, "/dev/shm"} {
		grant(p, landRead|landMake|landWrite)
	}
	if uncounted {
		// A program that may write to it gets shared memory of /dev/zero that no process shows as its own: see seccomp.Policy.
		for _, d := range Devices {
			if d.Name != "zero" {
				grant("/dev/"+d.Name, landWrite|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV)
			}
		}
		grant("/dev/pts", landWrite|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV)
	} else {
		grant("/dev", landWrite|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV)
	}
	grant("/proc", landWrite)
	for _, v := range spec.Volumes {
		if v.Writable {
			grant(v.Target, landRead|landMake|landWrite)
		}
	}
	return m
}

// MinLandlockABI is the first that lets programs rename across directories.
const MinLandlockABI = 2

// LandlockABI is the version of this kernel; 0 is none.
var LandlockABI = sync.OnceValue(func() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
})
