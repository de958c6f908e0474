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
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// container is one of the runtime's: its bundle, and the runtime that keeps it, in the foreground.
type container struct {
	work   *workplace
	kind   *kind
	id     string
	dir    string  // of its bundle
	bundle *bundle // root's; nil before there is any of it
	lodge  *lodge  // that it is in, and its bundle with it; nil as root
	// What it lives in was made ahead of it, and is held by these.
	network, groups *os.File
	device          string   // the group in the hierarchy for devices, if it was made
	log             *os.File // what the runtime prints
	runtime         string   // its path

	// strip takes the bundle apart, once, or waits until that is done: a container that stands has copies of its mounts.
	strip     func() error
	announced chan struct{} // closed when announce is over; nil if it never began

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
			return group.RunInside(apart)
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

// announce tells the kernel that a process is about to be moved between cgroups, by moving the runtime to where it is. On v1 a kernel
// that was not asked for some time first waits until every processor has taken note, five milliseconds and more: that can be while
// the runtime comes to its feet, and not when it moves its container. It waits with all groups locked, so ours are made before.
func (c *container) announce() {
	if c.work.devices == "" {
		return
	}
	c.announced = make(chan struct{})
	go func() {
		defer close(c.announced)
		_ = os.WriteFile(filepath.Join(c.work.devices, "cgroup.procs"), []byte(strconv.Itoa(c.pid)), 0) // if not, the runtime waits
	}()
}

// last is called before the runtime is buried: its number must stay its own while it is being written.
func (c *container) last() {
	if c.announced == nil {
		return
	}
	select {
	case <-c.announced:
	case <-time.After(cleanupPatience):
	}
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

// lay makes the bundle's directory, at root's bench.
func (c *container) lay() error {
	c.bundle = &bundle{furniture: &furniture{Dir: c.dir}}
	return failure("make bundle", "rootfs", c.work.bench.Do(func() error { return c.bundle.lay(c.kind.ahead) }))
}

// furnish fills the bundle, at root's bench: a root, the volumes, a config. root is used up, and stays the caller's to close.
func (c *container) furnish(f *furniture, root int, volumes []volume) error {
	c.bundle.furniture = f
	return failedToMake(c.work.bench.Do(func() error { return c.bundle.make(root, mounts(volumes)) }))
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
	maker := 0
	if i.b.runtime.kernel { // what writes for it is root of the sandbox, and gives the user what it has made
		maker = i.root
	}
	for _, v := range all {
		f, isFile, err := i.work.shop.Volume(v, i.owner, maker)
		if err == nil {
			list = append(list, volume{v, f, isFile})
			if v.Writable && i.b.runtime.kernel && i.id != nil { // nobody maps what its kernel makes to the user
				err = needsRoot("a volume that can be written to", i.b.runtime.name)
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

// mounts are the descriptors of volumes.
func mounts(list []volume) (fds []int) {
	for _, v := range list {
		fds = append(fds, int(v.mount.Fd()))
	}
	return fds
}

func closeVolumes(list []volume) {
	for _, v := range list {
		_ = v.mount.Close()
	}
}

// start has the runtime make the container, and returns its init before that has said anything: launch executes the runtime with
// that end of the init's socket.
func (c *container) start(launch func(control int) error) (*spawn.Init, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, failure("make control socket", "protocol", err)
	}
	defer unix.Close(pair[1])
	fd, err := unix.MemfdCreate("runtime log", unix.MFD_CLOEXEC)
	if err == nil {
		c.log = os.NewFile(uintptr(fd), "runtime log")
		err = launch(pair[1])
	}
	if err != nil {
		_ = unix.Close(pair[0])
		if said := new(*sandbox.Error); errors.As(err, said) {
			return nil, err
		}
		return nil, failure("start "+c.runtime, "runtime", err)
	}
	init, err := spawn.Adopt(spawn.Adopted{PID: c.pid, PIDFD: c.pidfd, Socket: pair[0], Kill: c.kill, Last: c.last})
	if err != nil {
		c.kill()
		_, _ = unix.Wait4(c.pid, nil, 0, nil)
		_ = unix.Close(c.pidfd)
		return nil, failure("talk to init", "protocol", err)
	}
	return init, nil
}

// command has the runtime make the container, and stay.
func (c *container) command() []string {
	args := append([]string{c.runtime, "--root", c.work.stateDir()}, c.kind.global...)
	args = append(append(args, "run"), c.kind.run...)
	return append(args, "--bundle", c.dir, c.id)
}

// launch executes the runtime, in the workplace's mount namespace and, if the runtime itself is to run in one, in a group.
func (c *container) launch(control int, group *cgroup.Group) error {
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
	attr := &syscall.ProcAttr{Dir: "/", Env: append(environ(), c.kind.env...), Files: fds, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	if err := c.enter(attr.Sys, group, func() (err error) {
		c.pid, err = syscall.ForkExec(c.runtime, c.command(), attr)
		return err
	}); err != nil {
		return err
	}
	c.pidfd = pidfd
	return nil
}

// enter has execute start a process with attr in the workplace's mount namespace and, if there is one, in a group.
func (c *container) enter(attr *syscall.SysProcAttr, group *cgroup.Group, execute func() error) error {
	run := c.work.bench.Do
	if group != nil {
		if born := group.OpenForClone(); born != nil {
			defer born.Close()
			attr.UseCgroupFD, attr.CgroupFD = true, int(born.Fd())
		} else { // a thread that visits a group may not get back from there
			plain := execute
			execute = func() error { return group.RunInside(plain) }
			run = c.work.inside
		}
	}
	return run(execute)
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

// unfurnish undoes lay and furnish.
func (c *container) unfurnish() error {
	if c.bundle == nil {
		return nil
	}
	return c.work.bench.Do(c.bundle.remove)
}

// clear removes what is left once the runtime has ended.
func (c *container) clear(ctx context.Context) error {
	for _, f := range []*os.File{c.network, c.groups, c.log} {
		_ = f.Close() // nil is fine
	}
	if fd := c.inmate.Swap(0); fd > 0 {
		_ = unix.Close(int(fd))
	}
	if c.work.bench == nil { // all that there was is gone with the lodge
		if c.lodge != nil {
			c.lodge.leave()
		}
		return nil
	}
	err := errors.Join(failure("remove bundle", "cleanup", c.strip()), c.forget(ctx))
	if c.device != "" { // the runtime has done it, unless it never came to that, or was killed
		if gone := unix.Rmdir(c.device); !errors.Is(gone, unix.ENOENT) {
			err = errors.Join(err, c.dissolve())
		}
	}
	return err
}

// dissolve removes the groups that a runtime which was killed has made on v1, with its own init, if that still waits in them. As long as
// we live, nobody else does it.
func (c *container) dissolve() error {
	var errs []error
	for _, h := range hierarchies() {
		if dir := filepath.Join(h.own, c.id); h.name != "" {
			if err := dissolve(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, failure("remove cgroup "+dir, "cleanup", err))
			}
		}
	}
	return errors.Join(errs...)
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
	cmd.Env, cmd.Dir, cmd.WaitDelay = append(environ(), c.kind.env...), "/", time.Second
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

// mindPause is how often a runtime is looked at that is making a container. Most have made it before the first look.
const mindPause = 250 * time.Millisecond

// errKilled is what somebody did to a runtime: one that ends by itself says why.
var errKilled = errors.New("it was killed before its container stood")

// mind calls end if the runtime ends before its container stands. When somebody kills it, its own init may live on, and wait for it for
// ever, with our socket open: nothing would be heard from there.
func (p *phase) mind(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(mindPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !p.init.Alive() {
				end(errKilled)
				return
			}
		}
	}
}
