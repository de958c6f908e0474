package initproc

import (
	"errors"
	"fmt"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// prepare builds the world the setup describes and returns the descriptors to answer with. It
// owns fds and closes them.
func prepare(m *initproto.Setup, fds []int) (ready []int, err error) {
	defer func() { closeAll(fds) }()
	if !m.Namespaced {
		return nil, adoptOrphans()
	}
	if err := standsInFreshNamespaces(m); err != nil {
		return nil, err
	}
	for _, i := range append([]int{m.Root, m.Scratch}, volumeFDs(m)...) {
		if i < 0 || i >= len(fds) {
			return nil, failed(initproto.StageProtocol, "setup", fmt.Errorf("descriptor %d of %d", i, len(fds)))
		}
	}
	if err := becomeRoot(); err != nil {
		return nil, err
	}
	// Nobody inside may look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, failed(initproto.StageNamespaces, "undumpable", err)
	}
	if err := unix.Sethostname([]byte(m.Hostname)); err != nil {
		return nil, failed(initproto.StageNamespaces, "set hostname", err)
	}
	if err := buildRoot(m, fds[m.Root]); err != nil {
		return nil, err
	}
	baton, err := attachScratch(m, fds[m.Scratch])
	if err != nil {
		return nil, err
	}
	for _, v := range m.Volumes {
		if err := attachVolume(v, fds[v.FD]); err != nil {
			unix.Close(baton)
			return nil, err
		}
	}
	return []int{baton}, nil
}

func volumeFDs(m *initproto.Setup) []int {
	fds := make([]int, len(m.Volumes))
	for i, v := range m.Volumes {
		fds[i] = v.FD
	}
	return fds
}

// standsInFreshNamespaces is the check that keeps the machine's own root where it is: no mount
// happens before it.
func standsInFreshNamespaces(m *initproto.Setup) error {
	if pid := unix.Getpid(); pid != 1 {
		return failed(initproto.StageNamespaces, "pid namespace", fmt.Errorf("this is process %d, not the first of a fresh one", pid))
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

// becomeRoot makes every thread of this process root of its user namespace, and nobody outside: the
// supervisor has written the maps by now, and until now we were still the supervisor's user.
func becomeRoot() error {
	fail := func(what string, err error) error { return failed(initproto.StageIdentity, what, err) }
	if err := syscall.Setgroups(nil); err != nil {
		return fail("setgroups", err)
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return fail("setresgid", err)
	}
	return fail("setresuid", syscall.Setresuid(0, 0, 0))
}

// emptyDir is a directory of every root that holds nothing: what hides other directories, and a
// place to put the scratch while its parts are bound.
const emptyDir = "/sys"

// buildRoot makes the tree of the descriptor this process's root, with a /proc of this pid
// namespace, and lets go of the host's.
func buildRoot(m *initproto.Setup, tree int) error {
	fail := func(what string, err error) error { return failed(initproto.StageRootfs, what, err) }
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail("make mounts private", err)
	}
	// The new /proc is made while the host's is still visible: the kernel insists on that.
	proc, err := newMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "hidepid", "invisible")
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
	// The old root now lies on top of the new one.
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
		"mode", "1777", "size", fmt.Sprint(m.ShmSize), "nr_inodes", "16384")
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

// verifyProc makes sure that what will be written through /proc is a procfs (F5).
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
			return -1, fmt.Errorf("option %s=%s: %w", options[i], options[i+1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

// target opens a mount target without following anything a root or a scratch could plant (F3, F6).
func target(p string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// attach puts a detached mount at a path.
func attach(mount int, p string) error {
	at, err := target(p)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(mount, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attachScratch shows the parts of the scratch where they belong, and returns a descriptor of the
// whole for the next phase: the supervisor, in another mount namespace, could not make one.
func attachScratch(m *initproto.Setup, scratch int) (baton int, err error) {
	fail := func(what string, err error) (int, error) { return -1, failed(initproto.StageScratch, what, err) }
	if err := attach(scratch, emptyDir); err != nil {
		return fail("attach", err)
	}
	for _, b := range m.Binds {
		part, err := unix.OpenTree(unix.AT_FDCWD, path.Join(emptyDir, b.From), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = attach(part, b.To)
			unix.Close(part)
		}
		if err != nil {
			return fail("bind "+b.To, err)
		}
	}
	baton, err = unix.OpenTree(unix.AT_FDCWD, emptyDir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fail("clone for the next phase", err)
	}
	if err := unix.Unmount(emptyDir, unix.MNT_DETACH); err != nil {
		unix.Close(baton)
		return fail("detach", err)
	}
	return baton, nil
}

// attachVolume puts a volume at its target, which it makes where the scratch allows it; in the
// rest of the root the supervisor has made it.
func attachVolume(v initproto.Volume, mount int) error {
	err := attach(mount, v.To)
	if err == unix.ENOENT {
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
	if err == unix.ENOENT {
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

// raiseLoopback brings up the namespace's own loopback.
func raiseLoopback() error {
	fail := func(err error) error { return failed(initproto.StageNetwork, "raise loopback", err) }
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return fail(err)
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return fail(unix.IoctlIfreq(fd, syscall.SIOCSIFFLAGS, ifr))
}
