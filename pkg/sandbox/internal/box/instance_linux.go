package box

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// Kind is the part of a sandbox that differs between the backends.
type Kind interface {
	// NewPhase begins a phase: its init is started, or about to be. It returns the phase with an error, too; the caller discards it.
	NewPhase() (*Phase, error)
	// SetUp makes the init of a phase that NewPhase returned build its file system, or waits until a runtime has built
	// it.
	SetUp(ctx context.Context, p *Phase, n network.Policy) error
	// Admit prepares a phase for one more process.
	Admit(p *Phase, process *sandbox.Process) error
	// Describe completes the message by which the init of a phase starts a process: ids, resource limits, Landlock rules.
	Describe(p *Phase, process *sandbox.Process, m *initproto.Exec)
	// Started is called when a process of the phase runs.
	Started(p *Phase, process *sandbox.Process)
}

// Instance is one sandbox: a scratch, and an init for each live phase. It implements sandbox.Instance and sandbox.Filer
// for a backend, which embeds it and sets the exported fields before it starts a process.
type Instance struct {
	Host       *Host
	Kind       Kind
	Supervisor *supervisor.Supervisor
	Mounts     rootless.MountHelper // nil where the sandbox has no mounts of its own
	Spec       *sandbox.Spec
	Policy     seccomp.Policy     // of system calls
	Filter     []byte             // the same, compiled
	ID         *rootless.Identity // nil where the sandbox has no ids of its own
	Scratch    *scratch.Scratch   // nil before MakeScratch
	// Disk and WritableRoot are the detached mounts for the next init, or -1: of the scratch, and of the writable root.
	// Only Kind.SetUp and its callees change them.
	Disk, WritableRoot int
	Inhabited          bool // an init has taken the scratch over: it may hold data from then on
	// Cleanup removes the backend's own resources of the sandbox, at Destroy, after the end of all processes; or nil.
	Cleanup func(context.Context) error
	Dropped func() // called when the sandbox is gone; or nil

	mu        sync.Mutex
	phases    map[string]*Phase // alive, by name
	spare     *Phase            // set up, without a name and a process
	aside     []*Phase          // the phases in which forks wait
	coming    chan struct{}     // closed when the spare phase in preparation is ready, or has failed; nil without one
	destroyed bool

	execs atomic.Uint64 // numbers the programs of an init

	ending  sync.WaitGroup // phases that are no longer in the map, and inits that outlive their finished phase
	endErrs []error        // of those; guarded by mu
	stuck   atomic.Bool    // one of its inits still exists, and has its ids

	isoMu sync.Mutex
	iso   sandbox.Isolation // changed in a copy: readers may still have it

	lives context.Context // until Destroy: copying files in or out ends with it
	end   context.CancelFunc
}

// NewInstance returns an Instance without any resources yet.
func NewInstance(h *Host, s *supervisor.Supervisor, mounts rootless.MountHelper, spec *sandbox.Spec, iso sandbox.Isolation) *Instance {
	i := &Instance{
		Host: h, Supervisor: s, Mounts: mounts, Spec: spec, Disk: -1, WritableRoot: -1, phases: map[string]*Phase{}, iso: iso,
	}
	i.lives, i.end = context.WithCancel(context.Background())
	return i
}

// Isolation reports the controls that this sandbox has.
func (i *Instance) Isolation() sandbox.Isolation {
	iso := i.claimed().Clone()
	if i.Scratch != nil {
		i.addOvercommit(&iso)
	}
	return iso
}

// claimed is the isolation without the state of the host's disk. The caller does not change it.
func (i *Instance) claimed() sandbox.Isolation {
	i.isoMu.Lock()
	defer i.isoMu.Unlock()
	return i.iso
}

// Revise changes what Isolation reports.
func (i *Instance) Revise(change func(*sandbox.Isolation) error) error {
	i.isoMu.Lock()
	defer i.isoMu.Unlock()
	iso := i.iso
	iso.Controls, iso.Missing = maps.Clone(iso.Controls), slices.Clone(iso.Missing)
	if err := change(&iso); err != nil {
		return err
	}
	i.iso = iso
	return nil
}

// Put makes files in the scratch, in any state but destroyed.
func (i *Instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.scratchFiles().Put(ctx, list)
}

// Take hands files of the scratch to the caller, in any state but destroyed.
func (i *Instance) Take(
	ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error,
) ([]sandbox.Untaken, error) {
	untaken, err := i.scratchFiles().Take(ctx, s, each)
	// After the copy: bytes that were read before the host's disk lost data are correct.
	return untaken, errors.Join(err, i.Host.diskFailure(i.Scratch.CheckBacking()))
}

func (i *Instance) scratchFiles() *files.Scratch {
	return &files.Scratch{
		Place: files.Tree{Opener: i.Mounts.Opener(i.Scratch, i.ID.Owner)}, Backend: i.Host.Name, Failure: i.Host.Failure,
		Lives: i.lives, Full: "a larger --disk than " + i.Spec.Limits.Disk.String() + ", or more --inodes",
	}
}

// stopAll ends the programs of the sandbox because the host's disk has reached its floor. While a program is being
// started it does nothing: the poller of the disk calls again.
func (i *Instance) stopAll(err error) {
	err = i.Host.diskFailure(err)
	if !i.mu.TryLock() {
		return
	}
	defer i.mu.Unlock()
	for _, p := range i.phases {
		if p.floored.CompareAndSwap(nil, &err) {
			_ = p.Kill()
		}
	}
}

// Destroy kills every process of the sandbox and removes the sandbox. It may be called in any state, and twice.
func (i *Instance) Destroy(ctx context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	i.end()
	i.waitForSpareLocked()
	alive := slices.AppendSeq(slices.Clone(i.aside), maps.Values(i.phases))
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
	mounts := []int{i.Disk, i.WritableRoot}
	i.Disk, i.WritableRoot = -1, -1
	i.mu.Unlock()
	if i.Cleanup != nil {
		errs = append(errs, i.Cleanup(ctx))
	}
	err := errors.Join(errs...)
	if i.Host.Options.Eager {
		i.Host.dropLater(func() error { return i.drop(mounts, err == nil) })
		return err
	}
	return errors.Join(err, i.drop(mounts, err == nil))
}

// addEndError keeps an error that no caller gets, until drop.
func (i *Instance) addEndError(err error) {
	if err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.endErrs = append(i.endErrs, err)
	}
}

// drop ends the scratch when the inits are gone and, if no process has them any more, releases the ids.
func (i *Instance) drop(mounts []int, clean bool) error {
	for _, fd := range mounts {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	i.ending.Wait()
	i.mu.Lock()
	err := errors.Join(i.endErrs...)
	i.mu.Unlock()
	if i.Scratch != nil {
		err = errors.Join(err, i.Host.Failure("drop scratch", "scratch", i.Scratch.Close()))
	}
	if i.ID != nil && clean && err == nil && !i.stuck.Load() {
		i.Supervisor.Release(i.ID.Root)
	}
	if i.Dropped != nil {
		i.Dropped()
	}
	return err
}
