package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// instance is one sandbox: a scratch disk, and a container for each live phase. It is its own box.Kind. The root of its
// spec has the init added.
type instance struct {
	*box.Instance
	b          *Backend
	ns         *runtimeNamespace
	filter     *seccompFilter // around the containers
	targets    int            // host id of the owner of the volumes' mount points
	init       initUser
	helper     spawn.Options // of an ordinary user's runtime helpers
	made       func() error  // makes the scratch, or waits until it is made
	scratchDir string        // mount point of the scratch in root's runtime namespace; empty before
}

// newInstance reserves the ids of a sandbox.
func (b *Backend) newInstance(s *supervisor.Supervisor, ns *runtimeNamespace, spec *sandbox.Spec) (*instance, error) {
	self := b.host.Self
	id, err := self.Identify(s, spec.User, rootless.NeedsOwn(spec))
	if err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	i := &instance{Instance: box.NewInstance(b.host, s, ns.mounts, spec, b.look().Clone()), b: b, ns: ns}
	i.ID, i.Kind, i.Cleanup, i.made = id, i, i.unmountScratch, sync.OnceValue(i.makeScratch)
	if self.Privileged {
		i.targets, i.init = id.Root, rootInit(spec.User, id.Root, id.Owner)
	} else {
		i.targets = self.UID
		i.init, i.helper = ordinaryInit(self, id, spec.User, b.runtime.kernel)
	}
	return i, nil
}

// Create makes the scratch and the first container, and checks its isolation.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if reason, remedy := b.obstacle(); reason != "" {
		return nil, &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrRefused, Err: errors.New(reason), Hint: remedy}
	}
	if spec.Network.HasRules() && (b.runtime.kernel || !b.host.Self.Privileged) {
		return nil, withoutRules("create", b.runtime.name)
	}
	sup, ns, err := b.register()
	if err != nil {
		return nil, err
	}
	if spec, err = b.withInit(spec); err != nil {
		return nil, err
	}
	i, err := b.newInstance(sup, ns, spec)
	if err != nil {
		return nil, err
	}
	ordinary := !b.host.Self.Privileged
	i.Policy = seccomp.Policy{
		DenySetID:    slices.ContainsFunc(spec.Volumes, func(v sandbox.Volume) bool { return v.Writable }),
		DenyAllocate: spec.VolumeCap() > 0, DenyUncounted: ordinary && !b.host.Counts.Memory, DenyAffinity: ordinary && !b.host.Counts.CPU,
		Notify: !b.runtime.kernel && seccomp.Notifiable() == nil,
	}
	first := i.newContainer()
	go func() { _ = i.made() }() // SetUp waits for it
	if i.Filter, err = b.host.Filter(i.Policy); err == nil {
		i.filter, err = b.bundleFilter(i.Policy)
	}
	if err == nil {
		err = i.SetUp(ctx, first.Phase, spec.Network)
	}
	if err != nil {
		_ = i.made() // its error is reported already
		_ = first.waitForRuntime()
		return nil, errors.Join(err, first.Discard(ctx), i.Destroy(context.WithoutCancel(ctx)))
	}
	i.SetSpare(first.Phase)
	// The collection of killed runtimes' leftovers runs beside the program.
	b.collect.Do(func() { b.background.Go(func() { collectGroups(false); collectRuntimes(false) }) })
	return i, nil
}

// withoutRules is the error of a network with rules.
func withoutRules(op, runtime string) error {
	return &sandbox.Error{
		Backend: Name, Op: op, Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s has no network with rules here", runtime),
		Hint: "--backend native, or as root --backend oci --runtime runc; or --network none",
	}
}

// needsRoot is the error of a feature that a runtime has for root only.
func needsRoot(what, runtime string) error {
	return &sandbox.Error{
		Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s can be had with %s as root only", what, runtime),
		Hint: "--runtime runc, or --backend native",
	}
}

// withInit returns the spec with the init added to its root, read-only, like a toolchain.
func (b *Backend) withInit(spec *sandbox.Spec) (*sandbox.Spec, error) {
	file, alone, err := spawn.File()
	if err != nil {
		return nil, failure("find init", "rootfs", err)
	}
	if !alone && (spec.Root.Dir != "" || len(spec.Root.HostPaths) > 0) {
		return nil, &sandbox.Error{
			Backend: Name, Op: "find init", Stage: "rootfs", Kind: sandbox.ErrUnsupported,
			Err:  fmt.Errorf("%s needs libraries that the given root may not have", file),
			Hint: "a sandbox-init beside the executable that is linked statically (CGO_ENABLED=0), or SANDBOX_RUN_INIT",
		}
	}
	mine := *spec
	mine.Root.Add = append(slices.Clone(spec.Root.Add), sandbox.Mount{Source: file, Target: initDir + "/" + spawn.Name})
	return &mine, nil
}

// makeScratch makes the scratch, and mounts it in root's runtime namespace.
func (i *instance) makeScratch() error {
	if err := i.MakeScratch(); err != nil {
		return err
	}
	helper := i.ns.helper
	if helper == nil {
		return i.OpenDisk()
	}
	at := i.ns.path("s")
	err := helper.Do(func() error { return os.Mkdir(at, 0o711) })
	if err == nil {
		err = i.Scratch.Use(func(fd int) error { return helper.Attach(fd, at) })
	}
	if err != nil {
		return failure("mount scratch", "scratch", err)
	}
	if i.scratchDir = at; !i.Spec.WritableRoot {
		return nil
	}
	err = helper.Do(func() (err error) {
		i.Disk, err = unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		return err
	})
	return failure("copy scratch", "scratch", err) // CopyRoot puts a root together from it
}

// unmountScratch ends what makeScratch mounted.
func (i *instance) unmountScratch(context.Context) error {
	if i.scratchDir == "" {
		return nil
	}
	return failure("unmount scratch", "scratch", i.ns.helper.Do(func() error {
		return errors.Join(unix.Unmount(i.scratchDir, unix.MNT_DETACH), os.Remove(i.scratchDir))
	}))
}

// NewPhase starts to make a container.
func (i *instance) NewPhase() (*box.Phase, error) { return i.newContainer().Phase, nil }

// SetUp makes the container of a phase, and compares its isolation with the requirements of the sandbox.
func (i *instance) SetUp(ctx context.Context, p *box.Phase, n network.Policy) error {
	c := p.Container.(*container)
	err := c.build(ctx, n)
	if err != nil {
		_ = c.waitForRuntime() // afterwards the init is known, and can be ended
	}
	return err
}

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if p.TTY != nil && i.b.runtime.relays && i.ns.helper == nil {
		return nil, needsRoot("a terminal", i.b.runtime.name) // a runtime helper executes only one runtime
	}
	return i.Instance.Start(ctx, p)
}

// Admit brings up the loopback for a process that needs it, and makes the device of a network with rules.
func (i *instance) Admit(p *box.Phase, process *sandbox.Process) error {
	c := p.Container.(*container)
	if process.Network.HasRules() && (c.kind.kernel || c.helper != nil) {
		return withoutRules("start", c.kind.name)
	}
	if err := c.makeDevice(process.Network); err != nil {
		return err
	}
	if !process.Network.HasLoopback() || p.Network.HasLoopback() {
		return nil
	}
	if c.kind.kernel {
		return &sandbox.Error{
			Backend: Name, Op: "start", Kind: sandbox.ErrUnsupported,
			Err:  fmt.Errorf("%s can not add a loopback to a container that was made without", c.kind.name),
			Hint: "another phase, or --network localhost for the whole sandbox",
		}
	}
	var err error
	if c.helper != nil {
		_, err = c.helper.ask(&helperOrder{What: orderLoopback}, nil, 0)
	} else {
		err = c.raiseLoopback()
	}
	if err != nil {
		return err
	}
	p.Network = process.Network
	return nil
}

// Describe completes the message by which an init starts a process. The init of a container that root has made has the
// program's ids already.
func (i *instance) Describe(p *box.Phase, process *sandbox.Process, m *initproto.Exec) {
	m.Rlimits = p.Rlimits(process.Limits)
	if i.b.runtime.kernel {
		// gVisor's kernel does not implement the other limits: it dumps no core, has no priorities, and its queues are
		// memory.
		m.Rlimits = slices.DeleteFunc(m.Rlimits, func(r initproto.Rlimit) bool {
			return r.Resource != unix.RLIMIT_NOFILE && r.Resource != unix.RLIMIT_STACK && r.Resource != unix.RLIMIT_MEMLOCK
		})
		return
	}
	m.Landlock = rootfs.Landlock(i.Spec, process.Network, i.Policy.DenyUncounted)
	if i.ns.helper == nil {
		m.UID, m.GID, m.KeepGroups = uint32(i.Spec.User.UID), uint32(i.Spec.User.GID), i.ID.KeepGroups
		m.NewUserNS, m.NewCgroupNS = i.init.renames, true
	}
}

// Started removes the bundle where the container does not need it any more.
func (i *instance) Started(p *box.Phase, _ *sandbox.Process) {
	if i.b.runtime.early {
		go func() { _ = p.Container.(*container).removeBundle() }() // Remove waits for it
	}
}
