package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// cloneFlags are the namespaces an init is born into; the cgroup namespace is made by each
// program's child, once it stands in its cgroup.
const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// startPatience bounds what an init may take to answer: it needs milliseconds, and seconds only on a
// machine that is in trouble.
const startPatience = 20 * time.Second

// answered calls f with a context that ends after startPatience, and says so if that was it.
func answered[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	v, err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v; is the machine overloaded, or its kernel stuck? %w", startPatience, err)
	}
	return v, err
}

// cleanupPatience bounds the removal of a phase. The kernel needs milliseconds, and seconds for many processes with much
// memory on a busy machine; their result is worth waiting for.
const cleanupPatience = 5 * time.Second

// instance is one sandbox: a scratch disk, and an init for each phase that is alive.
type instance struct {
	b          *Backend
	supervisor *supervisor.Supervisor
	shop       rootless.Workshop
	spec       *sandbox.Spec
	iso        sandbox.Isolation
	policy     seccomp.Policy // of system calls
	filter     []byte         // the same, compiled
	id         *rootless.Identity
	scratch    *scratch.Scratch

	mu        sync.Mutex
	disk      int               // the scratch's mount for the next init; -1 once destroyed
	writable  int               // the writable root's mount for the next init, or -1
	inhabited bool              // an init has taken the scratch over; it may hold data from then on
	phases    map[string]*phase // alive, by name
	spare     *phase            // an init that is ready and has no name yet
	aside     []*phase          // those in which forks wait
	coming    chan struct{}     // closed when a spare that is being made is there, or is not to be; nil when none is
	destroyed bool

	execs atomic.Uint64 // names the programs of an init

	burials sync.WaitGroup // of phases that nobody finds any more, and of inits whose phase was finished before they were gone
	regrets []error        // what came of them; guarded by mu
	stuck   atomic.Bool    // one of its inits is not gone, and has its ids

	lives context.Context // until Destroy: what carries files in or out meanwhile is to end
	ends  context.CancelFunc
}

// Create makes the scratch and the first init, with its root built.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	sup, shop, err := b.claim()
	if err != nil {
		return nil, err
	}
	i := &instance{b: b, supervisor: sup, shop: shop, spec: spec, iso: b.Probe(ctx), disk: -1, writable: -1, phases: map[string]*phase{}}
	i.lives, i.ends = context.WithCancel(context.Background())
	hostsWritable := slices.ContainsFunc(spec.Volumes, func(v sandbox.Volume) bool { return v.Writable })
	i.policy = b.policy(hostsWritable, spec.VolumeCap() > 0)
	if i.filter, err = b.filter(i.policy); err != nil {
		return nil, err
	}
	if err := i.prepare(ctx); err != nil {
		return nil, errors.Join(err, i.Destroy(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// prepare gets an init, and makes what it will need while it comes up.
func (i *instance) prepare(ctx context.Context) error {
	b, err := i.b.nursery.take(i.spec.User, rootless.NeedsOwn(i.spec))
	if err != nil {
		return err
	}
	p := &phase{i: i, root: -1, nest: b.nest}
	i.spare, i.id = p, b.id
	select {
	case <-b.born: // kept for us: nothing to wait for, and nothing worth another goroutine
		err = errors.Join(i.makeScratch(), p.makeGroup())
	default:
		made := make(chan error, 2)
		go func() { made <- i.makeScratch() }()
		go func() { made <- p.makeGroup() }()
		if !i.spec.WritableRoot {
			p.root, err = i.shop.Root(i.spec)
		}
		err = errors.Join(err, <-made, <-made)
		<-b.born
	}
	if p.init = b.init; b.err != nil || err != nil {
		return errors.Join(b.err, err)
	}
	err = i.setUp(ctx, p)
	if errors.Is(err, spawn.ErrGone) && ctx.Err() == nil {
		// It died while it was kept. That is nobody's request's fault.
		p.ready, p.failed = false, false
		if err = i.remakeScratch(); err == nil {
			err = p.spawn()
		}
		if err == nil {
			err = i.setUp(ctx, p)
		}
	}
	return err
}

func (i *instance) makeScratch() (err error) {
	o := i.b.diskOptions(i.spec.Limits)
	var shared string
	if d := i.b.takeDisk(i.spec.Scratch, o, i.id.Owner); d != nil {
		i.scratch, shared = d.scratch, d.shared
	} else {
		var mode sandbox.ScratchMode
		mode, shared = i.b.scratchMode(i.spec.Scratch)
		if i.scratch, err = i.shop.Scratch(mode, o, i.id.Owner); err != nil {
			return err
		}
	}
	s := i.scratch
	if i.disk, err = unix.FcntlInt(s.File().Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return failure("make scratch", "scratch", err)
	}
	// What was asked for by name is not missing; and what the machine had when it was looked at may be gone.
	i.iso.Missing = slices.DeleteFunc(i.iso.Missing, func(g sandbox.Gap) bool { return g.Control == sandbox.ControlDisk })
	if shared != "" {
		lackDisk(&i.iso, shared)
	}
	s.OnFloor(i.stopAll)
	return nil
}

// remakeScratch is for an init that died with the first one: nothing is on it yet.
func (i *instance) remakeScratch() error {
	for _, fd := range []*int{&i.disk, &i.writable} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	if err := i.scratch.Close(); err != nil {
		return failure("drop scratch", "scratch", err)
	}
	return i.makeScratch()
}

// setUp has an init build its world. The scratch travels from phase to phase: the first init hands back
// a descriptor for the next.
func (i *instance) setUp(ctx context.Context, p *phase) error {
	covers := i.b.covers()
	m := &initproto.Setup{
		Namespaced: true, HostMountNS: i.b.host.mount, HostUserNS: i.b.host.user,
		Stay: i.id.Stay, KeepGroups: i.id.KeepGroups, Settings: i.b.self.Settings(), Census: i.b.counts.Short(),
		Hostname: i.spec.Hostname, Masked: covers.Masked, Hidden: covers.Hidden, ReadOnly: covers.ReadOnly,
		ShmSize: uint64(i.spec.Limits.Memory) / 2,
	}
	for _, d := range files.Parts {
		m.Binds = append(m.Binds, initproto.Bind{From: d.Name, To: d.At})
	}
	var fds []int
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			_ = f.Close()
		}
	}()
	root, err := p.takeRoot()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	m.Root, m.Scratch = 0, 1
	disk, first := i.disk, !i.inhabited
	if !first {
		if disk, err = i.twin(&i.disk); err != nil {
			return err
		}
		defer unix.Close(disk)
	}
	fds = append(fds, root, disk)
	// What is mounted in another volume comes after it, or it would be covered.
	volumes := slices.Clone(i.spec.Volumes)
	slices.SortStableFunc(volumes, func(a, b sandbox.Volume) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	for _, v := range volumes {
		f, isFile, err := i.shop.Volume(v, i.id.Owner, 0)
		if err != nil {
			return err
		}
		opened = append(opened, f)
		m.Volumes = append(m.Volumes, initproto.Volume{FD: len(fds), To: v.Target, File: isFile})
		fds = append(fds, int(f.Fd()))
	}
	p.ready = true // from here on the init is Setup's to bury when it fails
	got, err := answered(ctx, func(ctx context.Context) ([]*os.File, error) { return p.init.Setup(ctx, m, fds) })
	if err != nil {
		p.failed = true
		return launch.StartFailure(Name, err)
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
		p.watch = watch.New(watch.Options{
			Backend: Name, Counts: i.b.counts, NProc: i.b.self.NProc, Scratch: i.scratch, Init: p.init.PID(), Kill: func() { _ = p.Kill() },
			Proc: got[1], Shm: got[2], Diag: got[3],
		})
	}
	defer got[0].Close()
	if !first {
		return nil
	}
	next, err := unix.FcntlInt(got[0].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return failure("set up init", "scratch", err)
	}
	_ = unix.Close(i.disk)
	i.disk, i.inhabited = next, true
	return nil
}

// root returns a copy of the sandbox's root for one init.
func (i *instance) root() (int, error) {
	if !i.spec.WritableRoot {
		return i.shop.Root(i.spec)
	}
	if i.writable < 0 {
		root, rest, err := i.shop.WritableRoot(i.spec, i.id.Owner, i.disk)
		if err != nil {
			return -1, err
		}
		_ = unix.Close(i.disk)
		i.writable, i.disk = root, rest
	}
	return i.twin(&i.writable)
}

// twin makes a second of a detached mount, which stays ours whatever becomes of the first: an init that dies takes along
// what it was given.
func (i *instance) twin(mount *int) (int, error) {
	one, other, err := i.shop.Again(*mount)
	if other >= 0 {
		_ = unix.Close(*mount)
		*mount = other
	}
	return one, err
}

// Isolation is what this sandbox really has.
func (i *instance) Isolation() sandbox.Isolation {
	iso := i.iso.Clone()
	launch.LackRoom(&iso, i.scratch, i.b.opts.CacheDir)
	return iso
}

// Destroy kills whatever runs and removes everything. It may be called in any state, twice.
func (i *instance) Destroy(ctx context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	i.ends()
	i.awaitSpare()
	alive := slices.Clone(i.aside)
	for _, p := range i.phases {
		alive = append(alive, p)
	}
	if i.spare != nil {
		alive = append(alive, i.spare)
	}
	i.mu.Unlock()
	var errs []error
	for _, p := range alive {
		_ = p.Kill()
	}
	for _, p := range alive {
		_, err := p.Finish(ctx)
		errs = append(errs, err)
	}
	i.mu.Lock()
	mounts := []int{i.disk, i.writable}
	i.disk, i.writable = -1, -1
	i.mu.Unlock()
	err := errors.Join(errs...)
	if i.b.opts.Eager {
		i.b.dropLater(func() error { return i.drop(mounts, err == nil) })
		return err
	}
	return errors.Join(err, i.drop(mounts, err == nil))
}

// regret keeps what there is nobody to tell, until drop.
func (i *instance) regret(err error) {
	if err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.regrets = append(i.regrets, err)
	}
}

// drop ends the disk when the inits are gone and, if nothing is left that has them, gives the ids back.
func (i *instance) drop(mounts []int, clean bool) error {
	for _, fd := range mounts {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	i.burials.Wait()
	i.mu.Lock()
	err := errors.Join(i.regrets...)
	i.mu.Unlock()
	if i.scratch != nil {
		err = errors.Join(err, failure("drop scratch", "scratch", i.scratch.Close()))
	}
	if i.id != nil && clean && err == nil && !i.stuck.Load() {
		i.supervisor.Release(i.id.Root)
	}
	if i.b.opts.Eager {
		i.b.nursery.refill()
	}
	return err
}
