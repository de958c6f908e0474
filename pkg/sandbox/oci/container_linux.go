package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// container is one of the runtime's: its bundle, and the runtime that keeps it, in the foreground.
type container struct {
	work   *workplace
	kind   *kind
	id     string
	bundle string
	mounts []string // in the bundle, in the order in which they were made
	names  []string // in the bundle, of what is no mount
	// What it lives in was made ahead of it, and is held by these.
	network, groups *os.File
	device          string   // the group in the hierarchy for devices, if it was made
	log             *os.File // what the runtime prints
	runtime         string   // its path

	pid, pidfd int          // the runtime's; pidfd is the Init's to close
	inmate     atomic.Int64 // pidfd of the init, or of the kernel that it runs on; 0 is none yet
}

// kill ends the container. Before its init has said who it is, that is done by ending the runtime: what the runtime has
// started finds its pipes and our socket closed.
func (c *container) kill() {
	if fd := c.inmate.Load(); fd > 0 {
		_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
		return
	}
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
}

// house makes the namespaces that the container is to join: a network without anything in it, not even a loopback that is up, and a
// view of cgroups whose root is the program's own group, for which a thread visits that group. On v2 no thread can: there the
// runtime makes the latter itself.
func (c *container) house(group *cgroup.Group, loopback, v2 bool) error {
	visits := !v2 && !c.kind.whole
	apart := func() error {
		flags := unix.CLONE_NEWNET
		if visits {
			flags |= unix.CLONE_NEWCGROUP
			leave, err := c.visitDevices()
			if err != nil {
				return err
			}
			defer leave()
		}
		if err := unix.Unshare(flags); err != nil {
			return err
		}
		var err error
		if c.network, err = os.Open("/proc/thread-self/ns/net"); err == nil && visits {
			c.groups, err = os.Open("/proc/thread-self/ns/cgroup")
		}
		if err == nil && loopback {
			err = raiseLoopback()
		}
		return err
	}
	return failure("make namespaces", "namespaces", onThread(func() error {
		if visits {
			return group.Visit(apart)
		}
		return apart()
	}))
}

// visitDevices has this thread stand where the runtime will put the container in the hierarchy for devices: that, too, is to
// look like a root from inside.
func (c *container) visitDevices() (leave func(), err error) {
	home := c.work.devices
	if home == "" {
		return func() {}, nil
	}
	own := filepath.Join(home, c.id)
	if err := os.Mkdir(own, 0o755); err != nil {
		return nil, err
	}
	c.device = own
	if err := os.WriteFile(filepath.Join(own, "tasks"), []byte("0"), 0); err != nil {
		return nil, err
	}
	return func() { _ = os.WriteFile(filepath.Join(home, "tasks"), []byte("0"), 0) }, nil // or it leaves with its end
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	rootfs.Apart(func() { done <- f() })
	return <-done
}

// raise brings up the loopback of a container that has none so far.
func (c *container) raise() error {
	return failure("raise loopback", "network", onThread(func() error {
		if err := unix.Setns(int(c.network.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return raiseLoopback()
	}))
}

func raiseLoopback() error {
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

// furnish makes the bundle: a root, the volumes, a config. root is used up, and stays the caller's to close.
func (c *container) furnish(b *blueprint, root int, volumes []volume) error {
	err := c.work.bench.Do(func() error {
		if err := os.Mkdir(c.bundle, 0o711); err != nil {
			return err
		}
		at := filepath.Join(c.bundle, rootfsDir)
		c.names = append(c.names, at)
		if err := os.Mkdir(at, 0o711); err != nil {
			return err
		}
		if err := unix.MoveMount(root, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount root: %w", err)
		}
		c.mounts = append(c.mounts, at)
		// runc gives a file system in memory the mode of the directory it is mounted on, and not the one it was asked for.
		if !b.kind.devices {
			if err := c.shareMemory(b); err != nil {
				return fmt.Errorf("mount shared memory: %w", err)
			}
		}
		if err := c.fillIn(b, volumes); err != nil {
			return err
		}
		text, err := b.render()
		if err != nil {
			return err
		}
		file := filepath.Join(c.bundle, "config.json")
		c.names = append(c.names, file)
		return os.WriteFile(file, text, 0o600)
	})
	if said := new(*sandbox.Error); errors.As(err, said) {
		return err
	}
	return failure("make bundle", "rootfs", err)
}

// fillIn puts volumes where they belong, in the root or in a copy of the scratch's mounts, so that the runtime has them with the
// rest and looks up no path that a program may be changing (F6). On the bench's thread.
func (c *container) fillIn(b *blueprint, volumes []volume) error {
	root := filepath.Join(c.bundle, rootfsDir)
	for _, d := range []string{"/proc", "/dev", sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir} {
		fd, err := place(root, d, unix.O_DIRECTORY) // in a root that may be changed, it may have been (F3)
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
		_ = unix.Close(fd)
	}
	b.parts = map[string]string{}
	for _, p := range files.Parts {
		b.parts[p.Name] = filepath.Join(b.scratch, p.Name)
	}
	for _, v := range volumes {
		top, rest := root, v.Target
		if inScratch, ok := files.Beneath(v.Target); ok {
			part, below, _ := strings.Cut(inScratch, "/")
			own := filepath.Join(c.bundle, part)
			if b.parts[part] != own {
				if err := c.copyPart(b.parts[part], own); err != nil {
					return fmt.Errorf("%s: %w", part, err)
				}
				b.parts[part] = own
			}
			top, rest = own, "/"+below
		}
		fd, err := place(top, rest, 0)
		if err == nil {
			err = unix.MoveMount(int(v.mount.Fd()), "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
			_ = unix.Close(fd)
		}
		if err != nil {
			return &sandbox.Error{Backend: Name, Op: "mount " + v.Target, Stage: "volumes", Err: err}
		}
	}
	return nil
}

// place opens what is at a path below a directory, through no link.
func place(top, p string, flags uint64) (int, error) {
	dir, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if p = strings.TrimPrefix(p, "/"); p == "" {
		return dir, nil
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, p, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// copyPart mounts a part of the scratch a second time, for this container to have something mounted in it.
func (c *container) copyPart(from, to string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := os.Mkdir(to, 0o711); err != nil {
		return err
	}
	c.names = append(c.names, to)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	c.mounts = append(c.mounts, to)
	return nil
}

// shareMemory makes the container's /dev/shm. On the bench's thread.
func (c *container) shareMemory(b *blueprint) error {
	fd, err := rootfs.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"mode", "1777"}, [2]string{"size", shmSize(b.spec)}, [2]string{"nr_inodes", "16384"})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at := filepath.Join(c.bundle, "shm")
	if err := os.Mkdir(at, 0o711); err != nil {
		return err
	}
	c.names = append(c.names, at)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	c.mounts, b.shm = append(c.mounts, at), at
	return nil
}

// volume is one that was opened and is mounted nowhere yet.
type volume struct {
	sandbox.Volume
	mount  *os.File
	isFile bool
}

// openVolumes opens all of them, those first that others lie in.
func (i *instance) openVolumes() (list []volume, err error) {
	all := slices.Clone(i.spec.Volumes)
	slices.SortStableFunc(all, func(a, b sandbox.Volume) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	for _, v := range all {
		f, isFile, err := i.work.bench.Volume(v, i.ids.user)
		if err == nil {
			list = append(list, volume{v, f, isFile})
			if v.Writable && i.b.runtime.kernel {
				// What writes for it is root of the sandbox, and an id-mapped mount knows the user alone.
				err = unsupported("a volume that can be written to", i.b.runtime.name)
			} else {
				err = i.target(v.Target, isFile)
			}
		}
		if err != nil {
			closeVolumes(list)
			return nil, err
		}
	}
	return list, nil
}

func closeVolumes(list []volume) {
	for _, v := range list {
		_ = v.mount.Close()
	}
}

// target makes the place for a volume that lies in the scratch, and refuses one that a program has put a link in the way of.
func (i *instance) target(p string, isFile bool) error {
	rest, inScratch := files.Beneath(p)
	if !inScratch {
		return nil
	}
	err := i.scratch.Use(func(at int) error { return makePlace(at, rest, isFile, i.ids.root) })
	if err == nil {
		return nil
	}
	return &sandbox.Error{Backend: Name, Op: "mount " + p, Stage: "volumes", Err: err, Hint: "another target, or a sandbox whose program has not been there"}
}

func makePlace(at int, p string, isFile bool, owner int) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(at, p, how)
	if err == nil {
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if isFile == (st.Mode&unix.S_IFMT == unix.S_IFDIR) {
			return errors.New("a directory goes on a directory, and a file on a file")
		}
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	dir, name := filepath.Split(p)
	dir = filepath.Clean(dir)
	if dir != "." {
		if err := makePlace(at, dir, false, owner); err != nil {
			return err
		}
	}
	parent, err := unix.Openat2(at, dir, how)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if !isFile {
		if err := unix.Mkdirat(parent, name, 0o755); err != nil {
			return err
		}
	} else {
		fd, err := unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
	}
	return unix.Fchownat(parent, name, owner, owner, unix.AT_SYMLINK_NOFOLLOW)
}

// start has the runtime make the container, and returns its init before that has said anything. A group is given if the
// runtime itself is to run in it.
func (c *container) start(group *cgroup.Group) (*spawn.Init, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, failure("make control socket", "protocol", err)
	}
	defer unix.Close(pair[1])
	fd, err := unix.MemfdCreate("runtime log", unix.MFD_CLOEXEC)
	if err == nil {
		c.log = os.NewFile(uintptr(fd), "runtime log")
		err = c.launch(pair[1], group)
	}
	if err != nil {
		_ = unix.Close(pair[0])
		return nil, failure("start "+c.runtime, "runtime", err)
	}
	init, err := spawn.Adopt(spawn.Adopted{PID: c.pid, PIDFD: c.pidfd, Socket: pair[0], Kill: c.kill})
	if err != nil {
		c.kill()
		_, _ = unix.Wait4(c.pid, nil, 0, nil)
		_ = unix.Close(c.pidfd)
		return nil, failure("talk to init", "protocol", err)
	}
	return init, nil
}

// launch executes the runtime, in the workplace's mount namespace and, if there is one, in a group.
func (c *container) launch(control int, group *cgroup.Group) error {
	args := append([]string{c.runtime, "--root", c.work.stateDir()}, c.kind.global...)
	args = append(append(args, "run"), c.kind.run...)
	args = append(args, "--bundle", c.bundle, c.id)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), c.log.Fd(), c.log.Fd()}
	if c.kind.stdin {
		fds[0] = uintptr(control)
	} else {
		fds = append(fds, uintptr(control))
	}
	var pidfd int
	// A session of its own: what a terminal sends to us is not for the runtime.
	attr := &syscall.ProcAttr{Dir: "/", Env: environ(), Files: fds, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	execute := func() (err error) {
		c.pid, err = syscall.ForkExec(c.runtime, args, attr)
		return err
	}
	if group != nil {
		if born := group.Birthplace(); born != nil {
			defer born.Close()
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(born.Fd())
		} else {
			plain := execute
			execute = func() error { return group.Visit(plain) }
		}
	}
	if err := c.work.inside(execute); err != nil {
		return err
	}
	c.pidfd = pidfd
	return nil
}

// inside runs f on a thread that stands in the workplace's mount namespace, and so does what f starts.
func (w *workplace) inside(f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(int(w.ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter workplace: %w", err)
		}
		return f()
	})
}

// met notes who the init is, once that has said so.
func (c *container) met(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return failure("find init", "protocol", err)
	}
	c.inmate.Store(int64(fd))
	return nil
}

// said is what the runtime printed, as far as it is worth telling.
func (c *container) said() string {
	if c.log == nil {
		return ""
	}
	var st unix.Stat_t
	if unix.Fstat(int(c.log.Fd()), &st) != nil {
		return ""
	}
	text := make([]byte, min(st.Size, maxSaid))
	n, _ := c.log.ReadAt(text, st.Size-int64(len(text)))
	return said(bytes.ToValidUTF8(text[:n], []byte("?")))
}

// clear removes what is left once the runtime has ended. Nothing is removed below a mount: a volume may be one.
func (c *container) clear(ctx context.Context) error {
	for _, f := range []*os.File{c.network, c.groups, c.log} {
		_ = f.Close() // nil is fine
	}
	if fd := c.inmate.Swap(0); fd > 0 {
		_ = unix.Close(int(fd))
	}
	err := c.work.bench.Do(func() error {
		var errs []error
		for _, at := range slices.Backward(c.mounts) {
			errs = append(errs, unix.Unmount(at, unix.MNT_DETACH))
		}
		for _, name := range slices.Backward(c.names) {
			errs = append(errs, os.Remove(name))
		}
		if err := os.Remove(c.bundle); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	err = errors.Join(failure("remove bundle", "cleanup", err), c.forget(ctx))
	if c.device != "" { // the runtime has done it, unless it never came to that
		if gone := unix.Rmdir(c.device); gone != nil && !errors.Is(gone, unix.ENOENT) {
			err = errors.Join(err, failure("remove cgroup "+c.device, "cleanup", gone))
		}
	}
	return err
}

// forget has the runtime clear away a container that it could not clear away itself, because it was killed.
func (c *container) forget(ctx context.Context) error {
	var left []string
	_ = c.work.bench.Do(func() error {
		left, _ = filepath.Glob(filepath.Join(c.work.stateDir(), c.id+"*"))
		return nil
	})
	if len(left) == 0 || c.pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPatience)
	defer cancel()
	args := append([]string{"--root", c.work.stateDir()}, c.kind.global...)
	cmd := exec.CommandContext(ctx, c.runtime, append(args, "delete", "--force", c.id)...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = environ(), "/", time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.work.inside(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return failure("delete container "+c.id, "cleanup", fmt.Errorf("%w: %s", err, said(out.Bytes())))
	}
	return nil
}
