package native

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// instance is one sandbox, whose inits are cloned by this process. It is its own box.Kind.
type instance struct {
	*box.Instance
	b    *Backend
	root int // a copy of the root for the first init, made while that starts; or -1
}

// Create makes the scratch and the first init, with its root built.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	sup, mounts, err := b.register()
	if err != nil {
		return nil, err
	}
	i := &instance{Instance: box.NewInstance(b.host, sup, mounts, spec, b.Probe(ctx)), b: b, root: -1}
	i.Kind = i
	if b.host.Options.Eager {
		i.Dropped = b.inits.refill
	}
	hostsWritable := slices.ContainsFunc(spec.Volumes, func(v sandbox.Volume) bool { return v.Writable })
	i.Policy = b.policy(hostsWritable, spec.VolumeCap() > 0)
	if i.Filter, err = b.host.Filter(i.Policy); err != nil {
		return nil, err
	}
	if err := i.prepare(ctx); err != nil {
		if i.root >= 0 {
			_ = unix.Close(i.root)
		}
		return nil, errors.Join(err, i.Destroy(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// prepare takes an init, and makes the init's resources while the init starts.
func (i *instance) prepare(ctx context.Context) error {
	s, err := i.b.inits.take(i.Spec.User, rootless.NeedsOwn(i.Spec))
	if err != nil {
		return err
	}
	p := box.NewPhase(i.Instance)
	p.Cgroup, i.ID = s.cgroup, s.id
	i.SetSpare(p)
	select {
	case <-s.started: // a spare init is ready: no wait, and no goroutine
		err = errors.Join(i.makeScratch(), i.makeGroup(p))
	default:
		made := make(chan error, 2)
		go func() { made <- i.makeScratch() }()
		go func() { made <- i.makeGroup(p) }()
		if !i.Spec.WritableRoot {
			i.root, err = i.Mounts.Root(i.Spec)
		}
		err = errors.Join(err, <-made, <-made)
		<-s.started
	}
	if p.Init = s.init; s.err != nil || err != nil {
		return errors.Join(s.err, err)
	}
	err = i.SetUp(ctx, p, i.Spec.Network)
	if errors.Is(err, spawn.ErrGone) && ctx.Err() == nil {
		// The init died as a spare one; the request is not the cause.
		p.Asked, p.Failed = false, false
		if err = i.RemakeScratch(); err == nil {
			p.Init, err = startInit(i.ID, p.Cgroup)
		}
		if err == nil {
			err = i.SetUp(ctx, p, i.Spec.Network)
		}
	}
	return err
}

// makeGroup makes the cgroup of the first phase, and starts the network of its first process.
func (i *instance) makeGroup(p *box.Phase) error {
	if err := makeGroup(p); err != nil {
		return err
	}
	first := i.Spec.Network
	if len(i.Spec.Ahead) > 0 {
		first = i.Spec.Ahead[0].Network
	}
	p.BeginNetwork(first)
	return nil
}

func (i *instance) makeScratch() error {
	if err := i.MakeScratch(); err != nil {
		return err
	}
	return i.OpenDisk()
}

// makeGroup makes the cgroup of the phase's programs, where cgroups enforce a limit.
func makeGroup(p *box.Phase) error {
	if !p.Instance.Host.Counts.Any {
		return nil
	}
	if err := p.MakeGroup(p.Cgroup.Programs()); err != nil {
		return err
	}
	p.Born = p.Cgroup.OpenProgramLeaf()
	return p.OpenJoinFiles()
}

// NewPhase starts an init and makes a cgroup for its programs.
func (i *instance) NewPhase() (p *box.Phase, err error) {
	p = box.NewPhase(i.Instance)
	p.Cgroup = i.Supervisor.NewPhaseCgroup(i.ID.Init)
	if p.Init, err = startInit(i.ID, p.Cgroup); err == nil {
		err = makeGroup(p)
	}
	return p, err
}

// SetUp makes an init build its file system. The scratch mount goes from phase to phase: the first init sends back a
// descriptor for the next.
func (i *instance) SetUp(ctx context.Context, p *box.Phase, _ network.Policy) error {
	masks := i.Host.Masks()
	m := &initproto.Setup{
		Namespaced: true, HostMountNS: i.b.namespaces.mount, HostUserNS: i.b.namespaces.user,
		Stay: i.ID.Stay, KeepGroups: i.ID.KeepGroups, Settings: i.Host.Self.Settings(), Census: i.Host.Counts.Short(),
		Hostname: i.Spec.Hostname, Masked: masks.Masked, Hidden: masks.Hidden, ReadOnly: masks.ReadOnly,
		ShmSize: uint64(i.Spec.Limits.Memory) / 2,
	}
	for _, d := range files.Parts {
		m.Binds = append(m.Binds, initproto.Bind{From: d.Name, To: d.At})
	}
	root, err := i.takeRoot()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	disk, first, err := i.CopyDisk()
	if err != nil {
		return err
	}
	if !first {
		defer unix.Close(disk)
	}
	m.Root, m.Scratch = 0, 1
	fds := []int{root, disk}
	// A volume that is mounted inside another one comes after it; otherwise the outer one would cover it.
	volumes := slices.Clone(i.Spec.Volumes)
	slices.SortStableFunc(volumes, func(a, b sandbox.Volume) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	for _, v := range volumes {
		f, isFile, err := i.Mounts.Volume(v, i.ID.Owner, 0)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:revive // all of them are needed until the init has answered
		m.Volumes = append(m.Volumes, initproto.Volume{FD: len(fds), To: v.Target, File: isFile})
		fds = append(fds, int(f.Fd()))
	}
	p.InitPID, p.Asked = p.Init.PID(), true // from here on Setup reaps the init if it fails
	got, err := box.Answered(ctx, i.Host.Timeout, func(ctx context.Context) ([]*os.File, error) { return p.Init.Setup(ctx, m, fds) })
	if err != nil {
		p.Failed = true
		return faults.Start(Name, err)
	}
	want := 1
	if m.Census {
		want = 4
	}
	if len(got) != want {
		for _, f := range got {
			_ = f.Close()
		}
		return failure("set up init", "protocol", initproto.ErrMalformed)
	}
	if m.Census {
		p.NewPoller(got[1], got[2], got[3])
	}
	defer got[0].Close()
	if !first {
		return nil
	}
	next, err := unix.FcntlInt(got[0].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return failure("set up init", "scratch", err)
	}
	i.KeepDisk(next)
	return nil
}

// takeRoot returns a copy of the sandbox's root, which the caller closes.
func (i *instance) takeRoot() (int, error) {
	if fd := i.root; fd >= 0 {
		i.root = -1
		return fd, nil
	}
	return i.CopyRoot()
}

// Admit: every phase of this backend takes any process.
func (i *instance) Admit(*box.Phase, *sandbox.Process) error { return nil }

// Describe completes the message by which an init starts a process.
func (i *instance) Describe(p *box.Phase, process *sandbox.Process, m *initproto.Exec) {
	m.UID, m.GID, m.KeepGroups = uint32(i.Spec.User.UID), uint32(i.Spec.User.GID), i.ID.KeepGroups
	m.Rlimits, m.NewCgroupNS, m.Loopback = p.Rlimits(process.Limits), true, process.Network.HasLoopback()
	m.Landlock = rootfs.Landlock(i.Spec, process.Network, i.Policy.DenyUncounted)
}

// Started starts the init of the next phase while the process runs.
func (i *instance) Started(_ *box.Phase, process *sandbox.Process) {
	if !i.Host.Options.Eager { // an eager backend makes one sandbox only: see Create
		i.b.inits.refill()
	}
	if process.Followed {
		i.ExpectPhase()
	}
}
