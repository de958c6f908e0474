package initproc

import (
	"errors"
	"path"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// prepare builds the file system that the setup describes and returns the descriptors of the answer. It owns fds and
// closes them. In a container it reports the state that the runtime has made.
func prepare(m *initproto.Setup, fds []int, found *initproto.Posture) (ready []int, err error) {
	defer func() { closeAll(fds) }()
	emptyCoreDumps() // before this process gives up the id that /proc/self belongs to
	if m.Housed {
		return nil, inspectContainer(found)
	}
	if m.Inner && !m.Namespaced {
		if err := becomeRoot(m); err != nil {
			return nil, err
		}
		if err := hide(); err != nil {
			return nil, err
		}
	}
	if !m.Namespaced {
		return nil, adoptOrphans()
	}
	if err := standsInFreshNamespaces(m); err != nil {
		return nil, err
	}
	for _, i := range append([]int{m.Root, m.Scratch}, volumeFDs(m)...) {
		if i < 0 || i >= len(fds) {
			return nil, failed(initproto.StageProtocol, "setup", noDescriptor(i, len(fds)))
		}
	}
	if err := becomeRoot(m); err != nil {
		return nil, err
	}
	if err := hide(); err != nil {
		return nil, err
	}
	if err := unix.Sethostname([]byte(m.Hostname)); err != nil {
		return nil, failed(initproto.StageNamespaces, "set hostname", err)
	}
	parts, err := takeScratch(m, fds[m.Scratch])
	if err != nil {
		return nil, err
	}
	defer closeAll(parts)
	scratchMount, err := unix.Dup(parts[len(parts)-1])
	if err != nil {
		return nil, failed(initproto.StageScratch, "keep for the next phase", err)
	}
	defer func() {
		if err != nil {
			unix.Close(scratchMount)
		}
	}()
	if err := buildRoot(m, fds[m.Root]); err != nil {
		return nil, err
	}
	for n, b := range m.Binds {
		if err := attach(parts[n], b.To); err != nil {
			return nil, failed(initproto.StageScratch, "bind "+b.To, err)
		}
	}
	for _, v := range m.Volumes {
		if err := attachVolume(v, fds[v.FD]); err != nil {
			return nil, err
		}
	}
	weakenRoot()
	if !m.Census {
		return []int{scratchMount}, nil
	}
	places, err := openPlaces("/proc", "/dev/shm")
	return append([]int{scratchMount}, places...), err
}

// inspectContainer checks that this process is in a container that a runtime has made, and inspects it. The program will
// have the same id as this process, so no process inside may inspect this one, and it catches no signals: signals from
// its own pid namespace then do not reach the first process.
func inspectContainer(found *initproto.Posture) error {
	if pid := unix.Getpid(); pid != 1 {
		return failed(initproto.StageNamespaces, "pid namespace",
			errors.New("this is process "+strconv.Itoa(pid)+", not the first of a fresh one"))
	}
	catchNothing()
	if err := hide(); err != nil {
		return err
	}
	if err := silence(); err != nil {
		return err
	}
	return look(found)
}

// look reads the state of this process.
func look(found *initproto.Posture) error {
	*found = initproto.Posture{PID: uint32(unix.Getpid()), UID: uint32(unix.Getuid()), GID: uint32(unix.Getgid())}
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return failed(initproto.StageIdentity, "ask for no_new_privs", err)
	}
	found.NoNewPrivs = nnp == 1
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		found.Seccomp = uint32(mode)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return failed(initproto.StageIdentity, "ask for capabilities", err)
	}
	for i, s := range sets {
		found.Capabilities |= uint64(s.Effective|s.Permitted|s.Inheritable) << (32 * i)
	}
	for c := range 64 {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err == nil && has == 1 {
			found.Bounding |= 1 << c
		}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return failed(initproto.StageNamespaces, "ask for the kernel's name", err)
	}
	found.Release = unix.ByteSliceToString(name.Release[:])
	return nil
}

// emptyCoreDumps leaves all memory out of the core dumps of this process and, by inheritance, of every program. A
// core_pattern that is a socket (Linux 6.16) gets dumps whatever RLIMIT_CORE says. A kernel without core dumps has no
// such file. Each program can change it back, but only for its own memory.
func emptyCoreDumps() {
	fd, err := unix.Open("/proc/self/coredump_filter", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte("0"))
	_ = unix.Close(fd)
}

// hide keeps processes inside from inspecting this one.
func hide() error {
	return failed(initproto.StageNamespaces, "undumpable", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// silence closes the runtime's output, which is a file of the host: a kernel that shows this process's descriptors to
// other processes of its id in spite of hide would let the program write there.
func silence() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := 1; fd <= 2 && err == nil; fd++ {
		err = unix.Dup3(null, fd, 0)
	}
	if err == nil {
		err = unix.Close(null)
	}
	return failed(initproto.StageRootfs, "let go of the runtime's output", err)
}

// openPlaces opens directories for the supervisor's limit poller, and a socket that queries this network namespace.
func openPlaces(paths ...string) (fds []int, err error) {
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(fds)
			return nil, failed(initproto.StageRootfs, "open "+p, err)
		}
		fds = append(fds, fd)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		closeAll(fds)
		return nil, failed(initproto.StageNetwork, "make a socket to ask about sockets", err)
	}
	return append(fds, fd), nil
}

// noDescriptor is the error of a message that names a missing descriptor. (Package fmt would make this program a quarter
// larger, and that much slower to start.)
func noDescriptor(i, of int) error {
	return errors.New("descriptor " + strconv.Itoa(i) + " of " + strconv.Itoa(of))
}

func volumeFDs(m *initproto.Setup) []int {
	fds := make([]int, len(m.Volumes))
	for i, v := range m.Volumes {
		fds[i] = v.FD
	}
	return fds
}

// standsInFreshNamespaces is the check that protects the machine's own root: it comes before every mount.
func standsInFreshNamespaces(m *initproto.Setup) error {
	if pid := unix.Getpid(); pid != 1 {
		return failed(initproto.StageNamespaces, "pid namespace",
			errors.New("this is process "+strconv.Itoa(pid)+", not the first of a fresh one"))
	}
	for _, ns := range []struct {
		name string
		host uint64
	}{{"mnt", m.HostMountNS}, {"user", m.HostUserNS}} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+ns.name, &st); err != nil {
			return failed(initproto.StageNamespaces, "look at own "+ns.name+" namespace", err)
		}
		if ns.host == 0 || st.Ino == ns.host {
			return failed(initproto.StageNamespaces, ns.name+" namespace", errors.New("is the supervisor's own"))
		}
	}
	return nil
}

// becomeRoot makes this thread, which does all the work and has all the children, root of its user namespace: the
// supervisor has written the maps by now. The uid was the sandbox's own from the start; the gid and the groups were
// still the supervisor's, and stay so for the runtime's other threads. Those may wait for children and write to the
// socket, and have no more rights outside than any process in a user namespace. (Changing them too takes a signal to
// each and three rounds of it: a tenth of a sandbox's whole cost.)
//
// An ordinary user's supervisor may have no second id: then the init keeps the program's own, and differs from it only
// by its capabilities. A program may signal processes with its id, but not the first process of its namespace as long as
// that catches no signals.
func becomeRoot(m *initproto.Setup) error {
	if m.Stay {
		catchNothing()
	}
	for _, call := range []struct {
		name string
		trap uintptr
		skip bool
	}{{"setgroups", unix.SYS_SETGROUPS, m.KeepGroups}, {"setresgid", unix.SYS_SETRESGID, m.Stay}, {"setresuid", unix.SYS_SETRESUID, m.Stay}} {
		if call.skip {
			continue
		}
		if _, _, errno := unix.RawSyscall(call.trap, 0, 0, 0); errno != 0 {
			return failed(initproto.StageIdentity, call.name, errno)
		}
	}
	return nil
}

// catchNothing removes the runtime's handlers. The kernel does not apply the default action of a signal to the first
// process of a pid namespace, unless the signal comes from outside or is caused by the process itself.
func catchNothing() {
	var byDefault [4]uint64 // struct sigaction: SIG_DFL, no flags, no mask
	for sig := uintptr(1); sig <= 64; sig++ {
		// SIGKILL and SIGSTOP have no other
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
}

// emptyDir is an empty directory in the sandbox's own /dev: it hides other directories. The program may have changed the
// directories of the root itself.
const emptyDir = "/dev/shm"

// anywhere is a directory that every host has. A mount on it, in the init's copy of the host's mounts, is removed with
// them.
const anywhere = "/proc"

// buildRoot makes the tree of the descriptor this process's root, with a /proc of this pid
// namespace.
func buildRoot(m *initproto.Setup, tree int) error {
	fail := func(what string, err error) error { return failed(initproto.StageRootfs, what, err) }
	// The new /proc is made while the host's is still there: the kernel insists on that.
	proc, err := newMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "hidepid", hidepid)
	if err != nil {
		return fail("make proc", err)
	}
	defer unix.Close(proc)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fail("attach root", err)
	}
	if err := unix.Fchdir(tree); err != nil {
		return fail("enter root", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fail("pivot root", err)
	}
	// The host's root is now mounted on top of the new one, and ".." of the root leads to it: no path may be looked up
	// before it is gone.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fail("detach host", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fail("enter root", err)
	}
	if err := attach(proc, "/proc"); err != nil {
		return fail("mount proc", err)
	}
	if err := verifyProc(); err != nil {
		return err
	}
	for _, s := range m.Settings {
		if err := set(s); err != nil {
			return err
		}
	}
	for _, file := range m.Masked {
		if err := unix.Mount("/dev/null", file, "", unix.MS_BIND, ""); err != nil && err != unix.ENOENT {
			return fail("mask "+file, err)
		}
	}
	for _, dir := range m.Hidden {
		if err := unix.Mount(emptyDir, dir, "", unix.MS_BIND, ""); err != nil && err != unix.ENOENT {
			return fail("hide "+dir, err)
		}
	}
	for _, dir := range m.ReadOnly {
		err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
		if err == unix.ENOENT {
			continue
		}
		if err == nil {
			err = unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
		if err != nil {
			return fail("make read-only "+dir, err)
		}
	}
	shm, err := newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		"mode", "1777", "size", strconv.FormatUint(m.ShmSize, 10), "nr_inodes", "16384")
	if err != nil {
		return fail("make /dev/shm", err)
	}
	defer unix.Close(shm)
	if err := attach(shm, "/dev/shm"); err != nil {
		return fail("mount /dev/shm", err)
	}
	pts, err := newMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "ptmxmode", "0666", "mode", "0620", "max", "64")
	if err != nil {
		return fail("make /dev/pts", err)
	}
	defer unix.Close(pts)
	return fail("mount /dev/pts", attach(pts, "/dev/pts"))
}

// set writes a kernel parameter. A parameter that this kernel does not have has nothing to limit.
func set(s initproto.Setting) error {
	fd, err := unix.Open("/proc/sys/"+s.Name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err == nil {
		_, err = unix.Write(fd, []byte(s.Value))
		unix.Close(fd)
	}
	return failed(initproto.StageLimits, "set "+s.Name, err)
}

// verifyProc checks that /proc, through which the init will write, is a procfs (F5).
func verifyProc() error {
	var st unix.Statfs_t
	if err := unix.Statfs("/proc", &st); err != nil {
		return failed(initproto.StageRootfs, "look at /proc", err)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return failed(initproto.StageRootfs, "look at /proc", errors.New("is not a procfs"))
	}
	return nil
}

// newMount makes a detached mount of a fresh file system.
func newMount(fstype string, attrs int, options ...string) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for i := 0; i+1 < len(options); i += 2 {
		if err := unix.FsconfigSetString(fs, options[i], options[i+1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

// target opens a mount target without following any link of a root or a scratch (F3, F6).
func target(p string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC, // with O_NOFOLLOW a link at the end would be opened itself, not refused
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// attach attaches a detached mount to a path.
func attach(mount int, p string) error {
	at, err := target(p)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(mount, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// takeScratch returns detached mounts of the parts of the scratch, in the order of the binds, and of the whole, last:
// for the next phase. The supervisor can not make these: it is in another mount namespace. Nor can a detached mount be
// copied on every kernel, so it is attached first, to a mount that is removed anyway: every separate unmount waits for
// all processors.
func takeScratch(m *initproto.Setup, scratch int) (parts []int, err error) {
	fail := func(what string, err error) ([]int, error) {
		closeAll(parts)
		return nil, failed(initproto.StageScratch, what, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, failed(initproto.StageRootfs, "make mounts private", err)
	}
	if err := unix.MoveMount(scratch, "", unix.AT_FDCWD, anywhere, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fail("attach", err)
	}
	for _, b := range append(m.Binds[:len(m.Binds):len(m.Binds)], initproto.Bind{}) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path.Join(anywhere, b.From), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return fail("take "+b.From, err)
		}
		parts = append(parts, fd)
	}
	return parts, nil
}

// attachVolume attaches a volume to its target. It makes the target in the scratch; in the rest of the root the
// supervisor has made it.
func attachVolume(v initproto.Volume, mount int) error {
	err := attach(mount, v.To)
	if errors.Is(err, unix.ENOENT) {
		if err = makeTarget(v.To, v.File); err == nil {
			err = attach(mount, v.To)
		}
	}
	return failed(initproto.StageVolumes, "mount "+v.To, err)
}

// makeTarget makes a directory or an empty file, and the directories above it, without following
// symlinks.
func makeTarget(p string, file bool) error {
	parent, name := path.Split(p)
	parent = path.Clean(parent)
	dir, err := target(parent)
	if errors.Is(err, unix.ENOENT) {
		if err := makeTarget(parent, false); err != nil {
			return err
		}
		dir, err = target(parent)
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if !file {
		return unix.Mkdirat(dir, name, 0o755)
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func raiseLoopback() error { return failed(initproto.StageNetwork, "raise loopback", RaiseLoopback()) }

// RaiseLoopback brings up the loopback of the calling thread's network namespace.
func RaiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
