package initproc

import (
	"errors"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// exec forks a program and returns after its exec: its pid, and both ends of its terminal or -1; began gets the time of
// the exec. The caller still owns the descriptors.
func (s *server) exec(m *initproto.Exec, fds []int, began *unix.Timespec) (pid, master, slave int, err error) {
	master, slave = -1, -1
	defer func() {
		if err != nil && master >= 0 {
			closeAll([]int{master, slave})
		}
	}()
	if m.Loopback {
		if err := raiseLoopback(); err != nil {
			return 0, -1, -1, err
		}
	}
	if err := s.makeDevice(m.ID, m.Device); err != nil {
		return 0, -1, -1, err
	}
	if m.Relay != "" && !s.relay {
		pid, err = s.runOnRelay(m, began)
		return pid, -1, -1, err
	}
	at := func(i int) (int, error) {
		if i < 0 || i >= len(fds) {
			return -1, failed(initproto.StageProtocol, "exec", noDescriptor(i, len(fds)))
		}
		return fds[i], nil
	}
	c := clone.Program{
		Isolated: m.NewCgroupNS, Renamed: m.NewUserNS, Housed: s.housed, Rlimits: m.Rlimits, UID: m.UID, GID: m.GID, KeepGroups: m.KeepGroups,
		Landlock: -1, Filter: m.Seccomp,
		Probe: m.Probe, Held: m.Held, Forbidden: m.Forbidden, Dir: m.Dir, Paths: m.Paths, Args: m.Args, Env: m.Env,
		Began: began, Control: s.socket.fd, Listener: initproto.Encode(&initproto.Listener{ID: m.ID}),
	}
	initproto.Accompany(c.Listener, 1)
	if len(m.Paths) == 0 || len(m.Args) == 0 {
		return 0, -1, -1, failed(initproto.StageExec, "program", unix.ENOENT)
	}
	switch {
	case s.relay:
		c.Stdio, c.Joined = [3]int{0, 1, 2}, true
	case m.Terminal:
		owner := m.UID
		if m.NewUserNS { // another number for the init's own id
			owner = 0
		}
		if master, slave, err = openTerminal(m.Rows, m.Cols, owner); err != nil {
			return 0, -1, -1, err
		}
		c.Stdio, c.Terminal = [3]int{slave, slave, slave}, true
	default:
		for i := range c.Stdio {
			if c.Stdio[i], err = at(m.Stdio[i]); err != nil {
				return 0, -1, -1, err
			}
		}
	}
	for _, i := range m.Cgroups {
		fd, err := at(i)
		if err != nil {
			return 0, master, slave, err
		}
		c.Cgroups = append(c.Cgroups, fd)
	}
	if m.IntoCgroup >= 0 {
		if c.IntoCgroup, err = at(m.IntoCgroup); err != nil {
			return 0, master, slave, err
		}
	}
	if len(m.Landlock.Rules) > 0 {
		if c.Landlock, err = landlockRuleset(m.Landlock); err != nil {
			return 0, master, slave, err
		}
		defer unix.Close(c.Landlock)
	}
	pid, stage, err := clone.StartProgram(c)
	weakenStarted()
	return pid, master, slave, failed(stage, describe(m, stage), err)
}

// openTerminal makes a terminal in the sandbox's own devpts, owned by its user.
func openTerminal(rows, cols uint16, uid uint32) (master, slave int, err error) {
	fail := func(what string, err error) (int, int, error) {
		return -1, -1, failed(initproto.StageTerminal, what, err)
	}
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open /dev/ptmx", err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(master)
		return fail("unlock", err)
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	slave, err = int(n), nil
	if errno == unix.ENOTTY { // gVisor's kernel does not have it
		var number int
		if number, err = unix.IoctlGetInt(master, unix.TIOCGPTN); err == nil {
			slave, err = unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		}
	} else if errno != 0 {
		err = errno
	}
	if err != nil {
		unix.Close(master)
		return fail("open peer", err)
	}
	if uid != 0 { // 0: the program keeps the init's id, and so does its terminal's owner
		err = unix.Fchown(slave, int(uid), -1)
	}
	if err == nil && rows > 0 && cols > 0 {
		err = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	if err != nil {
		unix.Close(master)
		unix.Close(slave)
		return fail("prepare", err)
	}
	return master, slave, nil
}

// fileRights are the rights that apply to files other than directories.
const fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// Ruleset builds a Landlock ruleset for a helper of the supervisor, which may also execute a file. It returns -1 where the kernel has no
// Landlock.
func Ruleset(m initproto.Ruleset, executable int) (int, error) {
	ruleset, err := landlockRuleset(m)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return -1, nil
	}
	if err == nil {
		err = failed(initproto.StageLandlock, "rule for the executable", addRule(ruleset, executable, fileRights&m.FS))
	}
	return ruleset, err
}

// addRule grants rights below an open file or directory.
func addRule(ruleset, fd int, access uint64) error {
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// landlockRuleset builds the Landlock ruleset. A path that is missing in this root, or in which the program has put a
// link, gets no rule: nothing is granted there.
func landlockRuleset(m initproto.Ruleset) (int, error) {
	fail := func(what string, err error) (int, error) { return -1, failed(initproto.StageLandlock, what, err) }
	attr := unix.LandlockRulesetAttr{Handled_access_fs: m.FS, Handled_access_net: m.Net, Scoped: m.Scoped}
	size := unsafe.Offsetof(attr.Handled_access_net) // older kernels refuse more than they know
	switch {
	case m.Scoped != 0:
		size = unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	case m.Net != 0:
		size = unsafe.Offsetof(attr.Scoped)
	}
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fail("create ruleset", errno)
	}
	for _, r := range m.Rules {
		fd, err := target(r.Path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
			continue
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if err == nil {
			access := r.Access
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				access &= fileRights
			}
			err = addRule(int(ruleset), fd, access)
			unix.Close(fd)
		}
		if err != nil {
			unix.Close(int(ruleset))
			return fail("rule for "+r.Path, err)
		}
	}
	return int(ruleset), nil
}

// describe names the operation of a child that failed.
func describe(m *initproto.Exec, stage initproto.Stage) string {
	switch stage {
	case initproto.StageExec:
		if len(m.Paths) > 1 {
			return m.Args[0] + " (searched in PATH)"
		}
		return m.Args[0]
	case initproto.StageWorkdir:
		return "enter " + m.Dir
	case initproto.StageFork:
		return "fork"
	case initproto.StageCgroup:
		return "join cgroup"
	case initproto.StageSession:
		return "new session"
	case initproto.StageStdio:
		return "connect stdio"
	case initproto.StageLimits:
		return "set resource limits"
	case initproto.StageIdentity:
		return "drop privileges"
	case initproto.StageLandlock:
		return "restrict file access"
	case initproto.StageSeccomp:
		return "install filter"
	case initproto.StageProbe:
		return "seccomp: the filter is not in force"
	}
	return "start"
}
