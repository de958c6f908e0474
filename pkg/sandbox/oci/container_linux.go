package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// container is a phase that an OCI runtime has made: its bundle, and the runtime, which stays in the foreground.
type container struct {
	*box.Phase
	i       *instance
	ns      *runtimeNamespace
	kind    *kind
	runtime string // its path
	id      string
	dir     string         // of its bundle
	bundle  *bundle        // root's; nil before makeDir
	helper  *runtimeHelper // of an ordinary user: the container and its bundle are in its namespaces; nil as root
	begun   chan error     // the result of the runtime's early start, once; nil after it was received
	// The namespaces that are made before the container; these descriptors keep them.
	netNS, cgroupNS *os.File
	device          string   // the group in the hierarchy for devices, if it was made
	log             *os.File // what the runtime prints

	// removeBundle removes the bundle, once, or waits until that is done: a running container has copies of its mounts.
	removeBundle func() error
	announced    chan struct{} // closed when announce is over; nil if it never began

	pid, pidfd int          // the runtime's; pidfd is the Init's to close
	initFD     atomic.Int64 // pidfd of the init, or of the kernel that it runs on; 0 is none yet

	opening sync.Mutex
	relays  []*terminalRelay // guarded by opening
}

// newContainer starts to make the bundle's directory and, if the runtime needs no more for now, starts the runtime: it
// takes as long to reach its bundle as the supervisor takes to make one. waitForRuntime returns the result.
func (i *instance) newContainer() *container {
	r := i.b.runtime
	c := &container{Phase: box.NewPhase(i.Instance), i: i, ns: i.ns, kind: r.kind, runtime: r.path, dir: i.ns.path("b")}
	c.begun = make(chan error, 1)
	c.removeBundle = sync.OnceValue(c.undoBundle)
	c.Container, c.Cgroup = c, i.Supervisor.NewPhaseCgroup(i.ID.Init)
	c.NetworkFixed, c.InitInGroup = r.kernel, r.whole
	c.id = groupName(c.Cgroup.Programs().Path())
	if i.ns.helper == nil { // a runtime helper does all of it
		c.begun <- nil
		return c
	}
	go func() {
		err := c.makeBundleDir()
		if err == nil && r.early {
			c.Init, err = c.startRuntime(func(control int) error { return c.execRuntime(control, nil) })
		}
		c.begun <- err
	}()
	return c
}

// waitForRuntime waits until newContainer's background work is done, and returns its error once.
func (c *container) waitForRuntime() (err error) {
	if c.begun != nil {
		err = <-c.begun
		c.begun = nil
	}
	return err
}

// build makes a container, and compares its isolation with the requirements of the sandbox.
func (c *container) build(ctx context.Context, n network.Policy) (err error) {
	i, r := c.i, c.i.b.runtime
	c.Network = n
	group := c.Cgroup.Programs()
	if i.ns.helper != nil || i.Host.Counts.Any {
		if err := c.MakeGroup(group); err != nil {
			return err
		}
	}
	if i.ns.helper == nil {
		return c.buildInHelper(ctx)
	}
	v2 := i.Host.Cgroups.Version() == "v2"
	if err := c.makeNamespaces(group, n.HasLoopback(), v2); err != nil {
		return err
	}
	if err := c.waitForRuntime(); err != nil {
		return err
	}
	if c.Init != nil {
		c.announce()
	}
	plan := c.plan()
	plan.network = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.netNS.Fd())
	if c.cgroupNS != nil {
		plan.cgroupNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.cgroupNS.Fd())
	}
	var inside *cgroup.Group
	switch {
	case r.whole:
		inside = group
	case v2:
		plan.cgroup, err = c.initGroup()
	default:
		plan.cgroup = c.id
	}
	if err != nil {
		return failure("open cgroup", "cgroup", err)
	}
	if !r.whole {
		if err := c.OpenJoinFiles(); err != nil {
			return err
		}
	}
	if i.Spec.WritableRoot {
		err = i.made()
	}
	var root int
	if err == nil {
		root, err = i.CopyRoot()
	}
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := i.made(); err != nil {
		return err
	}
	plan.scratch = i.scratchDir
	volumes, err := i.openVolumes()
	if err != nil {
		return err
	}
	defer closeVolumes(volumes)
	parts, err := plan.bundleParts(volumes)
	if err == nil {
		err = c.fillBundle(parts, root, volumes)
	}
	if err != nil {
		return err
	}
	if c.Init == nil {
		if c.Init, err = c.startRuntime(func(control int) error { return c.execRuntime(control, inside) }); err != nil {
			return err
		}
	}
	return c.setUp(ctx)
}

// plan plans the bundle. The caller adds the namespaces that were made before it, and the place of the scratch.
func (c *container) plan() *bundlePlan {
	i := c.i
	return &bundlePlan{kind: c.kind, spec: i.Spec, init: i.init, dir: c.dir, masks: i.Host.Masks(), filter: i.filter}
}

// initGroup is the path of the init's own cgroup on a machine with v2 cgroups.
func (c *container) initGroup() (string, error) {
	dir, err := c.Cgroup.MakeInitLeaf()
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(dir, cgroupMount)
	if !ok {
		return "", fmt.Errorf("%q: not below %s, where runtimes look for it", dir, cgroupMount)
	}
	return path, nil
}

// cgroupMount is the path where every runtime expects cgroups.
const cgroupMount = "/sys/fs/cgroup"

// setUp waits for the init's first message, and checks its namespaces.
func (c *container) setUp(ctx context.Context) error {
	watched, end := context.WithCancelCause(ctx)
	defer end(nil)
	bounded, cancel := context.WithTimeout(watched, startTimeout)
	defer cancel()
	go c.watchRuntime(bounded, end)
	c.Asked = true
	_, err := c.Init.Setup(bounded, &initproto.Setup{Housed: true, Root: -1, Scratch: -1}, nil)
	if err != nil {
		c.Failed = true
		switch {
		case errors.Is(err, context.Canceled) && errors.Is(context.Cause(watched), errKilled):
			err = errKilled
		case bounded.Err() != nil && ctx.Err() == nil:
			err = fmt.Errorf("no answer within %v: %w", startTimeout, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var told *spawn.Error
		if errors.As(err, &told) { // the init runs, and reports the error itself
			return faults.Start(Name, err)
		}
		if text := c.printed(); text != "" {
			err = errors.New(text) // the runtime's message has the cause; the socket was merely closed
		}
		return failure(c.kind.name+" run", "runtime", err)
	}
	if b := c.bundle; b != nil {
		_ = b.closePipe() // the runtime has its config
	}
	c.InitPID = c.Init.ContainerPID()
	fd, err := unix.PidfdOpen(c.InitPID, 0)
	if err != nil {
		return failure("find init", "protocol", err)
	}
	c.initFD.Store(int64(fd))
	return c.i.Revise(c.verify)
}

// killInit ends the container. Before the init has reported its pid, killInit ends the runtime: the processes that the
// runtime has started find their pipes and the supervisor's socket closed.
func (c *container) killInit() {
	if fd := c.initFD.Load(); fd > 0 {
		_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
		return
	}
	c.KillRuntime()
}

// KillRuntime ends the runtime.
func (c *container) KillRuntime() { _ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0) }

// makeNamespaces makes the namespaces that the container joins: a network without any interface that is up, not even a
// loopback, and a view of cgroups whose root is the program's own cgroup, for which a thread enters that cgroup. On v2
// no thread can do that: the runtime makes that namespace itself.
func (c *container) makeNamespaces(group *cgroup.Group, loopback, v2 bool) error {
	visits := !v2 && !c.kind.whole
	apart := func() error {
		flags := unix.CLONE_NEWNET
		if visits {
			flags |= unix.CLONE_NEWCGROUP
			leave, err := c.joinDevices()
			if err != nil {
				return err
			}
			defer leave()
		}
		if err := unix.Unshare(flags); err != nil {
			return err
		}
		var err error
		if c.netNS, err = os.Open("/proc/thread-self/ns/net"); err == nil && visits {
			c.cgroupNS, err = os.Open("/proc/thread-self/ns/cgroup")
		}
		if err == nil && loopback {
			err = initproc.RaiseLoopback()
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

// joinDevices moves this thread to the cgroup of the container in the hierarchy for devices: that cgroup, too, must look
// like a root from inside.
func (c *container) joinDevices() (leave func(), err error) {
	home := c.ns.devices
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
	return func() { _ = os.WriteFile(filepath.Join(home, "tasks"), []byte("0"), 0) }, nil // on an error the thread leaves when it ends
}

// announce tells the kernel that a process is about to move between cgroups, by moving the runtime to its present
// cgroup. On v1 a kernel without recent moves first waits for every processor, five milliseconds and more: this wait
// then happens while the runtime starts, and not when the runtime moves its container. The kernel waits with all cgroups
// locked, so the supervisor's are made before.
func (c *container) announce() {
	if c.ns.devices == "" {
		return
	}
	c.announced = make(chan struct{})
	go func() {
		defer close(c.announced)
		_ = os.WriteFile(filepath.Join(c.ns.devices, "cgroup.procs"), []byte(strconv.Itoa(c.pid)), 0) // on an error the runtime waits instead
	}()
}

// waitForAnnouncement is called before the runtime is reaped: its pid must stay valid while announce writes it.
func (c *container) waitForAnnouncement() {
	if c.announced == nil {
		return
	}
	select {
	case <-c.announced:
	case <-time.After(cleanupTimeout):
	}
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	rootfs.Apart(func() { done <- f() })
	return <-done
}

// raiseLoopback brings up the loopback of a container that has none so far.
func (c *container) raiseLoopback() error {
	return failure("raise loopback", "network", onThread(func() error {
		if err := unix.Setns(int(c.netNS.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return initproc.RaiseLoopback()
	}))
}

// makeDevice makes the device of a network with rules, in root's case: the network namespace is not the container's own.
func (c *container) makeDevice(n network.Policy) error {
	if !n.HasRules() || c.Frames != nil {
		return nil
	}
	d, err := c.i.Device(n)
	if err != nil {
		return err
	}
	return failure("make device", "network", onThread(func() error {
		if err := unix.Setns(int(c.netNS.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		frames, err := netdev.Open(netdev.Config{Addresses: d.Addresses, Gateways: d.Gateways})
		if err == nil {
			c.Frames = os.NewFile(uintptr(frames), "frames")
		}
		return err
	}))
}

// makeBundleDir makes the bundle's directory, in root's runtime namespace.
func (c *container) makeBundleDir() error {
	c.bundle = &bundle{bundleParts: &bundleParts{Dir: c.dir}}
	return failure("make bundle", "rootfs", c.ns.helper.Do(func() error { return c.bundle.makeDir(c.kind.early) }))
}

// fillBundle puts a root, the volumes and a config into the bundle, in root's runtime namespace. It uses the mount of
// root up; the caller still closes the descriptor.
func (c *container) fillBundle(parts *bundleParts, root int, volumes []volume) error {
	c.bundle.bundleParts = parts
	return bundleFailure(c.ns.helper.Do(func() error { return c.bundle.fill(root, mounts(volumes)) }))
}

// printed is the end of the runtime's output.
func (c *container) printed() string {
	if c.log == nil {
		return ""
	}
	var st unix.Stat_t
	if unix.Fstat(int(c.log.Fd()), &st) != nil {
		return ""
	}
	text := make([]byte, min(st.Size, maxPrinted))
	n, _ := c.log.ReadAt(text, st.Size-int64(len(text)))
	return lastLines(bytes.ToValidUTF8(text[:n], []byte("?")))
}

// undoBundle undoes makeBundleDir and fillBundle.
func (c *container) undoBundle() error {
	if c.bundle == nil {
		return nil
	}
	return c.ns.helper.Do(c.bundle.remove)
}

// Remove removes the container's leftovers on the host after the runtime has ended.
func (c *container) Remove(ctx context.Context) error {
	for _, f := range []*os.File{c.netNS, c.cgroupNS, c.log} {
		_ = f.Close() // Close of nil is allowed
	}
	if fd := c.initFD.Swap(0); fd > 0 {
		_ = unix.Close(int(fd))
	}
	if c.ns.helper == nil { // everything has ended with the runtime helper
		if c.helper != nil {
			c.helper.closeSocket()
		}
		return nil
	}
	err := errors.Join(failure("remove bundle", "cleanup", c.removeBundle()), c.deleteState(ctx))
	if c.device != "" { // the runtime removes it, unless it did not get that far, or was killed
		if gone := unix.Rmdir(c.device); !errors.Is(gone, unix.ENOENT) {
			err = errors.Join(err, c.removeV1Groups())
		}
	}
	return err
}

// removeV1Groups removes the v1 cgroups of a killed runtime, with the runtime's own init if that still waits in them. No
// collector does this while this process lives.
func (c *container) removeV1Groups() error {
	var errs []error
	for _, h := range hierarchies() {
		if dir := filepath.Join(h.own, c.id); h.name != "" {
			if err := removeGroup(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, failure("remove cgroup "+dir, "cleanup", err))
			}
		}
	}
	return errors.Join(errs...)
}
