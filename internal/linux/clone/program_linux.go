//go:build linux && (amd64 || arm64)

package clone

import (
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Program describes how a sandboxed program is started.
type Program struct {
	Cgroups []int // descriptors of the files to join cgroups through
	// Began, if given, is set to the time just before the program's exec: the parent reads its own clock only when it
	// has a processor again.
	Began *unix.Timespec
	// IntoCgroup is the open directory of the v2 cgroup to start the program in, instead of joining it; 0 is none. If
	// the kernel refuses that, the program joins.
	IntoCgroup int
	Isolated   bool // with a cgroup namespace and a keyring of its own
	// Renamed: in a user namespace of its own, in which the single id of this process is UID and GID.
	Renamed  bool
	Terminal bool // Stdio is a terminal, and becomes the controlling one
	Joined   bool // stays in this process's session, whose terminal Stdio is
	// Housed: in a container of another runtime, whose filter refuses some calls, or whose kernel does not have them.
	Housed   bool
	Stdio    [3]int
	Rlimits  []initproto.Rlimit
	UID, GID uint32 // 0: keeps the ids and rights of this process
	// Keep is a capability that a trusted program has in spite of its UID; 0 is none.
	Keep uintptr
	// KeepGroups: the process may not drop the supplementary groups.
	KeepGroups bool
	Landlock   int    // a ruleset, or -1
	Filter     []byte // a BPF program, or none
	// Control is the socket to which a Filter that notifies of refused calls sends its listener, with the message
	// Listener.
	Control  int
	Listener []byte
	// Probe, Held and Forbidden are as in initproto.Exec.
	Probe     bool
	Held      bool
	Forbidden string
	Dir       string
	Paths     []string // tried in order
	Args      []string
	Env       []string
}

// launch is a Program in the form that the child can use.
type launch struct {
	cgroups    []int
	isolated   bool
	housed     bool
	renamed    []idFile // in this order
	terminal   bool
	joined     bool
	stdio      [3]int
	rlimits    []initproto.Rlimit
	uid, gid   uintptr
	keep       uintptr
	keepGroups bool
	landlock   int
	filter     *unix.SockFprog
	notifying  *unix.SockFprog // the same, with a listener; nil without notifications
	control    int
	message    unix.Msghdr // to control, with the listener
	payload    unix.Iovec
	rights     rights
	probe      bool
	held       bool
	forbidden  *byte // or nil
	dir        *byte
	how        unix.OpenHow // to open it
	paths      []*byte
	argv, envp []*byte
	birth      birth

	defaultAction [4]uint64 // struct sigaction: SIG_DFL, no flags, no mask

	// The child's error.
	stage initproto.Stage
	errno unix.Errno

	began unix.Timespec
}

// StartProgram clones a child that becomes the program, and returns after its exec, or with the stage and the cause of a
// failure.
func StartProgram(d Program) (pid int, stage initproto.Stage, err error) {
	c := &launch{
		cgroups: d.Cgroups, isolated: d.Isolated, housed: d.Housed, terminal: d.Terminal, joined: d.Joined, stdio: d.Stdio, rlimits: d.Rlimits,
		uid: uintptr(d.UID), gid: uintptr(d.GID), keep: d.Keep, keepGroups: d.KeepGroups, landlock: d.Landlock, probe: d.Probe, held: d.Held,
		how: unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS},
	}
	if d.Renamed {
		if c.renamed, err = rename(d.UID, d.GID); err != nil {
			return 0, initproto.StageIdentity, err
		}
		c.keepGroups = true
	}
	if len(d.Filter)%8 != 0 {
		return 0, initproto.StageSeccomp, unix.EINVAL
	}
	if len(d.Filter) > 0 {
		// A copy of its own: the kernel needs it aligned.
		filter := make([]unix.SockFilter, len(d.Filter)/8)
		if copy(unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), len(filter)*8), d.Filter) != len(d.Filter) {
			return 0, initproto.StageSeccomp, unix.EINVAL
		}
		plain := WithoutNotifications(filter)
		c.filter = &unix.SockFprog{Len: uint16(len(plain)), Filter: &plain[0]}
		if &plain[0] != &filter[0] && len(d.Listener) > 0 {
			c.notifying = &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
			c.enclose(d.Control, d.Listener)
		}
	}
	if d.Forbidden != "" {
		if c.forbidden, err = syscall.BytePtrFromString(d.Forbidden); err != nil {
			return 0, initproto.StageProbe, err
		}
	}
	if c.dir, err = syscall.BytePtrFromString(d.Dir); err != nil {
		return 0, initproto.StageWorkdir, err
	}
	for _, p := range d.Paths {
		b, err := syscall.BytePtrFromString(p)
		if err != nil {
			return 0, initproto.StageExec, err
		}
		c.paths = append(c.paths, b)
	}
	if c.argv, err = syscall.SlicePtrFromStrings(d.Args); err != nil {
		return 0, initproto.StageExec, err
	}
	if c.envp, err = syscall.SlicePtrFromStrings(d.Env); err != nil {
		return 0, initproto.StageExec, err
	}
	starting.RLock()
	defer starting.RUnlock()
	child, errno := uintptr(0), uintptr(unix.ENOSYS)
	if d.IntoCgroup > 0 {
		c.cgroups = nil
		c.birth.into(0, d.IntoCgroup)
		if child, errno = forkProgram(c); errno != 0 && len(d.Cgroups) == 0 { // no other way in
			return 0, initproto.StageCgroup, unix.Errno(errno)
		}
	}
	if errno != 0 {
		c.cgroups = d.Cgroups
		c.birth.plain(0)
		child, errno = forkProgram(c)
		if errno == uintptr(unix.EINVAL) && d.Housed { // gVisor's kernel has no pidfds; none is needed here
			c.birth.a &^= unix.CLONE_PIDFD
			child, errno = forkProgram(c)
		}
	}
	fd := c.birth.pidfd
	runtime.KeepAlive(c)
	if errno != 0 {
		return 0, initproto.StageFork, unix.Errno(errno)
	}
	if fd >= 0 {
		_ = unix.Close(int(fd))
	}
	if c.errno != 0 {
		_, _ = unix.Wait4(int(child), nil, unix.WALL, nil)
		return 0, c.stage, c.errno
	}
	if d.Began != nil {
		*d.Began = c.began
	}
	return int(child), 0, nil
}

// idFile is a file below /proc with the id map of a user namespace, and the text to write to it.
type idFile struct {
	path, text *byte
	length     uintptr
}

// rename maps the ids of a process that has just made a user namespace to other numbers in it. A process that maps only
// its own id has to give up the right to drop groups first.
func rename(uid, gid uint32) (list []idFile, err error) {
	for _, f := range [][2]string{
		{"/proc/self/setgroups", "deny"},
		{"/proc/self/gid_map", strconv.Itoa(int(gid)) + " " + strconv.Itoa(unix.Getegid()) + " 1"},
		{"/proc/self/uid_map", strconv.Itoa(int(uid)) + " " + strconv.Itoa(unix.Geteuid()) + " 1"},
	} {
		path, err1 := syscall.BytePtrFromString(f[0])
		text, err2 := syscall.BytePtrFromString(f[1])
		if err1 != nil || err2 != nil {
			return nil, unix.EINVAL
		}
		list = append(list, idFile{path, text, uintptr(len(f[1]))})
	}
	return list, nil
}

// rights is a control message with one descriptor.
type rights struct {
	header unix.Cmsghdr
	fd     int32
	_      int32
}

// enclose prepares the message that the child sends once it has a descriptor to put in.
func (c *launch) enclose(control int, message []byte) {
	c.control = control
	c.payload.Base = &message[0]
	c.payload.SetLen(len(message))
	c.rights.header.Level, c.rights.header.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	c.rights.header.SetLen(unix.CmsgLen(4))
	c.message.Iov = &c.payload
	c.message.SetIovlen(1)
	c.message.Control = (*byte)(unsafe.Pointer(&c.rights))
	c.message.SetControllen(int(unsafe.Sizeof(c.rights)))
}

// WithoutNotifications returns a filter that refuses by itself every call for which the given one notifies a listener:
// with the errno in the low bits of the notification. It returns the given one if that has no notifications.
func WithoutNotifications(filter []unix.SockFilter) []unix.SockFilter {
	const returns = unix.BPF_RET | unix.BPF_K
	plain := filter
	for i, in := range filter {
		if in.Code == returns && in.K&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_USER_NOTIF {
			if &plain[0] == &filter[0] {
				plain = append([]unix.SockFilter(nil), filter...)
			}
			plain[i].K = unix.SECCOMP_RET_ERRNO | in.K&unix.SECCOMP_RET_DATA
		}
	}
	return plain
}

//go:nosplit
//go:norace
//go:noinline
func forkProgram(c *launch) (pid, errno uintptr) {
	var old uint64
	setMask(&everySignal, &old)
	pid, errno = vfork(c.birth.call, c.birth.a, c.birth.b, c.birth.c)
	if pid == 0 && errno == 0 {
		becomeProgram(c)
		exit()
	}
	setMask(&old, nil)
	return pid, errno
}

// becomeProgram turns the child of an init into the sandboxed program, step by step. The order matters: privileged steps
// first, then the privileges are dropped, then Landlock, then the filter, and the program's first instruction last of
// all (S9).
//
//go:nosplit
//go:norace
//go:nocheckptr
func becomeProgram(c *launch) {
	var errno unix.Errno
	var stage initproto.Stage
	var zero uint64
	var i int
	var fd uintptr
	var header struct {
		version uint32
		pid     int32
	}
	var caps [6]uint32
	var tried, answer uintptr

	stage = initproto.StageCgroup
	for i = 0; i < len(c.cgroups); i++ {
		if _, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(c.cgroups[i]), uintptr(unsafe.Pointer(&selfPid)), 1); errno != 0 {
			goto fail
		}
	}
	if len(c.renamed) > 0 {
		stage = initproto.StageIdentity
		// The namespace limits the number of processes of the init's descendants by the limit that is in force when the
		// namespace is made.
		for i = 0; i < len(c.rlimits); i++ {
			if c.rlimits[i].Resource == unix.RLIMIT_NPROC {
				if _, _, errno = unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&c.rlimits[i].Soft)), 0, 0,
					0); errno != 0 {
					goto fail
				}
			}
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0); errno != 0 {
			goto fail
		}
		for i = 0; i < len(c.renamed); i++ {
			if fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, atCWD, uintptr(unsafe.Pointer(c.renamed[i].path)), unix.O_WRONLY|unix.O_CLOEXEC,
				0, 0, 0); errno != 0 {
				goto fail
			}
			if _, _, errno = unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(c.renamed[i].text)), c.renamed[i].length); errno != 0 {
				goto fail
			}
			_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
		stage = initproto.StageCgroup
	}
	if c.isolated {
		if _, _, errno = unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
			goto fail
		}
	}

	stage = initproto.StageSession
	if !c.joined {
		if _, _, errno = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
			goto fail
		}
	}
	if c.isolated && !weakenKeyring {
		// A session keyring of its own: the inherited one is the supervisor's. Kernels without keyrings have nothing to
		// share.
		if _, _, errno = unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 && errno != unix.ENOSYS {
			goto fail
		}
	}

	stage = initproto.StageStdio
	// First above 0…2, so that no copy overwrites a source that is still needed.
	for i = 0; i < 3; i++ {
		if fd, _, errno = unix.RawSyscall(unix.SYS_FCNTL, uintptr(c.stdio[i]), unix.F_DUPFD_CLOEXEC, 3); errno != 0 {
			goto fail
		}
		c.stdio[i] = int(fd)
	}
	for i = 0; i < 3; i++ {
		if _, _, errno = unix.RawSyscall(unix.SYS_DUP3, uintptr(c.stdio[i]), uintptr(i), 0); errno != 0 {
			goto fail
		}
	}
	if c.terminal {
		if _, _, errno = unix.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); errno != 0 {
			goto fail
		}
	}
	// The exec closes every other descriptor (F2).
	if _, _, errno = unix.RawSyscall(unix.SYS_CLOSE_RANGE, 3, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC); errno != 0 {
		if !c.housed {
			goto fail
		}
		for i = 3; i < mostFiles; i++ {
			_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, uintptr(i), unix.F_SETFD, unix.FD_CLOEXEC) // most are not open
		}
	}

	stage = initproto.StageLimits
	for i = 0; i < len(c.rlimits); i++ {
		if _, _, errno = unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(c.rlimits[i].Resource), uintptr(unsafe.Pointer(&c.rlimits[i].Soft)),
			0, 0, 0); errno != 0 {
			goto fail
		}
	}
	_, _, _ = unix.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)

	if c.uid != 0 {
		stage = initproto.StageIdentity
		for i = 0; i <= unix.CAP_LAST_CAP; i++ {
			if i != 0 && uintptr(i) == c.keep {
				continue
			}
			_, _, errno = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(i), 0)
			if errno != 0 && errno != unix.EINVAL { // EINVAL: this kernel has fewer
				goto fail
			}
		}
		if !c.keepGroups {
			if _, _, errno = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
				goto fail
			}
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_SETRESGID, c.gid, c.gid, c.gid); errno != 0 {
			goto fail
		}
		if c.keep != 0 {
			if _, _, errno = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0, 0); errno != 0 {
				goto fail
			}
			caps[c.keep/32*3], caps[c.keep/32*3+1], caps[c.keep/32*3+2] = 1<<(c.keep%32), 1<<(c.keep%32), 1<<(c.keep%32)
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, c.uid, c.uid, c.uid); errno != 0 {
			goto fail
		}
		header.version = capVersion3
		if _, _, errno = unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&caps)), 0); errno != 0 {
			goto fail
		}
		if c.keep != 0 { // the exec drops capabilities that are not ambient
			if _, _, errno = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c.keep, 0, 0, 0); errno != 0 {
				goto fail
			}
		}
	}
	if _, _, errno = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		stage = initproto.StageIdentity
		goto fail
	}

	stage = initproto.StageWorkdir
	// Descriptors of the init are still open, and /proc/self/fd would lead to them (F2).
	fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT2, atCWD, uintptr(unsafe.Pointer(c.dir)), uintptr(unsafe.Pointer(&c.how)),
		unix.SizeofOpenHow, 0, 0)
	if errno == unix.ENOSYS && c.housed { // the init of a container has no directory open that this could lead to
		fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, atCWD, uintptr(unsafe.Pointer(c.dir)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC,
			0, 0, 0)
	}
	if errno != 0 {
		goto fail
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_FCHDIR, fd, 0, 0); errno != 0 {
		goto fail
	}
	if c.landlock >= 0 {
		stage = initproto.StageLandlock
		if _, _, errno = unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.landlock), 0, 0); errno != 0 {
			goto fail
		}
	}
	if c.forbidden != nil {
		_, _, errno = unix.RawSyscall6(unix.SYS_MKNODAT, atCWD, uintptr(unsafe.Pointer(c.forbidden)), unix.S_IFCHR|0o600, 0, 0, 0)
		tried = uintptr(errno)
	}
	// Signals that a parent process ignores must not stay ignored in the program (W3). The exec resets handlers.
	for i = 1; i <= 64; i++ {
		// SIGKILL and SIGSTOP have no other
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(i), uintptr(unsafe.Pointer(&c.defaultAction)), 0, 8, 0, 0)
	}
	setMask(&zero, nil)
	if c.filter != nil {
		stage = initproto.StageSeccomp
		if c.notifying != nil {
			// From 5.19 on, signals do not interrupt a call that is being answered, and it is counted once.
			fd, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
				unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(c.notifying)))
			if errno == unix.EINVAL {
				fd, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
					uintptr(unsafe.Pointer(c.notifying)))
			}
			if errno == 0 {
				// A listener that was not sent is closed by the exec: calls are then refused without being counted.
				c.rights.fd = int32(fd)
				_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.control), uintptr(unsafe.Pointer(&c.message)), unix.MSG_NOSIGNAL)
				if c.probe {
					stage = initproto.StageProbe
					if errno != 0 { // the supervisor has no listener to answer by
						goto fail
					}
					// Only the supervisor has the listener now. If the supervisor dies, the kernel answers the probe with ENOSYS; a copy
					// here would keep this process waiting, and with it the init, which waits for the exec.
					if _, _, errno = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0); errno != 0 {
						goto fail
					}
					answer, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, initproto.ProbeMark, tried, 0)
					if answer != initproto.ProbeGo {
						goto fail
					}
				}
				goto execute
			}
			// No listener (an old kernel, or an outer filter that has one): the same refusals, uncounted.
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(c.filter))); errno != 0 {
			goto fail
		}
	}
	if c.probe {
		stage = initproto.StageProbe
		if errno = unix.EOPNOTSUPP; c.held {
			goto fail
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, initproto.ProbeMark, tried, 0); errno != unix.ENOSYS {
			goto fail
		}
	}

execute:
	// can not fail with this clock
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&c.began)), 0)
	stage = initproto.StageExec
	{
		worst := unix.ENOENT
		for i = 0; i < len(c.paths); i++ {
			// A program that was just put into the sandbox may still be open for writing: by a process that was forked
			// meanwhile and has not reached its own exec, which closes inherited descriptors.
			for tries := 0; ; tries++ {
				_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.paths[i])), uintptr(unsafe.Pointer(&c.argv[0])),
					uintptr(unsafe.Pointer(&c.envp[0])))
				if errno != unix.ETXTBSY || tries == busyTries {
					break
				}
				_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&busyPause)), 0, 0)
			}
			if errno != unix.ENOENT && errno != unix.ENOTDIR {
				worst = errno
				if errno != unix.EACCES { // found, but not executable: a further search would hide the error
					break
				}
			}
		}
		errno = worst
	}

fail:
	c.stage, c.errno = stage, errno
}

// mostFiles is more than an init ever has open: it closes the descriptors of a message as soon as the program has
// started.
const mostFiles = 1024

// The exec of a busy program is retried for a second.
const busyTries = 500

var busyPause = unix.Timespec{Nsec: 2e6}

// atCWD is AT_FDCWD as a system call takes it.
const atCWD = ^uintptr(99)

// selfPid is the text with which a process adds itself to a cgroup.
var selfPid = [1]byte{'0'}
