package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Bounds of waiting. A runtime needs some ten milliseconds, gVisor some hundred, and either seconds on a machine in trouble.
const (
	startPatience   = 30 * time.Second
	cleanupPatience = 5 * time.Second
)

// instance is one sandbox: a scratch disk, and a container for each phase that is alive.
type instance struct {
	b          *Backend
	supervisor *supervisor.Supervisor
	work       *workplace
	spec       *sandbox.Spec // with the init added to the root
	iso        sandbox.Isolation
	policy     seccomp.Policy
	filters    filters
	ids        ids
	scratch    *scratch.Scratch
	disk       string // where the scratch is mounted in the workplace; empty before

	mu        sync.Mutex
	writable  int               // the writable root's mount for the next container, or -1
	phases    map[string]*phase // alive, by name
	spare     *phase            // a container that is ready and has no name yet
	destroyed bool

	execs atomic.Uint64 // names the programs of an init

	lives context.Context // until Destroy: what carries files in or out meanwhile is to end
	ends  context.CancelFunc
}

// Create makes the scratch and the first container, and looks at what it has got.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if reason, remedy := b.obstacle(); reason != "" {
		return nil, &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrRefused, Err: errors.New(reason), Hint: remedy}
	}
	writable := slices.ContainsFunc(spec.Volumes, func(v sandbox.Volume) bool { return v.Writable })
	sup, work, err := b.claim()
	if err != nil {
		return nil, err
	}
	i := &instance{b: b, supervisor: sup, work: work, iso: b.Probe(ctx), writable: -1, phases: map[string]*phase{}}
	i.lives, i.ends = context.WithCancel(context.Background())
	if i.spec, err = b.withInit(spec); err != nil {
		return nil, err
	}
	i.policy = seccomp.Policy{
		DenySetID: writable,
		Notify:    !b.runtime.kernel && seccomp.Notifiable() == nil,
	}
	if i.filters, err = b.filter(i.policy); err != nil {
		return nil, err
	}
	if i.ids.root, i.ids.user, err = sup.IDs(); err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	err = i.makeScratch()
	if err == nil {
		i.spare, err = i.newPhase(ctx, spec.Network)
	}
	if err != nil {
		return nil, errors.Join(err, i.Destroy(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// unsupported is the error of what a runtime can not do.
func unsupported(what, runtime string) error {
	return &sandbox.Error{
		Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s can not be had with %s", what, runtime), Hint: "--runtime runc, or --backend native",
	}
}

// withInit is a spec whose root has the init in it: it is added like a toolchain, read-only and as it is.
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

func (i *instance) makeScratch() error {
	o := scratch.Options{Bytes: uint64(i.spec.Limits.Disk), Inodes: uint64(i.spec.Limits.Inodes), CacheDir: i.b.opts.CacheDir}
	mode, shared := i.spec.Scratch, ""
	if mode == sandbox.ScratchAuto {
		mode = sandbox.ScratchDisk
		if err := scratch.DiskAvailable(i.b.opts.CacheDir); err != nil {
			mode, shared = sandbox.ScratchMemory, err.Error()
		}
	}
	s, err := i.work.bench.Scratch(mode, o, i.ids.user)
	if err != nil {
		return err
	}
	i.scratch = s
	// What was asked for by name is not missing; and what the machine had when it was looked at may be gone.
	i.iso.Missing = slices.DeleteFunc(i.iso.Missing, func(g sandbox.Gap) bool { return g.Control == sandbox.ControlDisk })
	if shared != "" {
		lackDisk(&i.iso, shared)
	}
	if free, onDisk := s.HostFree(); onDisk && free < uint64(i.spec.Limits.Disk) {
		i.iso.Lack(sandbox.ControlDisk, sandbox.Enforced, fmt.Sprintf("the host has %v left for a disk of %v: what is written beyond that is lost", sandbox.Size(free), i.spec.Limits.Disk),
			"free some space below "+i.b.opts.CacheDir+", or ask for a smaller --disk")
	}
	at := i.work.path("s")
	err = i.work.bench.Do(func() error { return os.Mkdir(at, 0o711) })
	if err == nil {
		err = s.Use(func(fd int) error { return i.work.bench.Attach(fd, at) })
	}
	if err != nil {
		return failure("mount scratch", "scratch", err)
	}
	i.disk = at
	if i.spec.WritableRoot {
		return i.makeWritable()
	}
	return nil
}

// makeWritable puts a root together whose changes go to the scratch.
func (i *instance) makeWritable() error {
	var disk int
	err := i.work.bench.Do(func() (err error) {
		disk, err = unix.OpenTree(unix.AT_FDCWD, i.disk, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		return err
	})
	if err != nil {
		return failure("copy scratch", "scratch", err)
	}
	defer unix.Close(disk)
	root, rest, err := i.work.bench.WritableRoot(i.spec, i.ids.user, disk)
	if err != nil {
		return err
	}
	_ = unix.Close(rest)
	i.writable = root
	return nil
}

// root is a copy of the sandbox's root for one container.
func (i *instance) root() (int, error) {
	if !i.spec.WritableRoot {
		return i.work.bench.Root(i.spec)
	}
	one, other, err := i.work.bench.Again(i.writable)
	if other >= 0 {
		_ = unix.Close(i.writable)
		i.writable = other
	}
	return one, err
}

// path is a name in the workplace that nobody else has.
func (w *workplace) path(prefix string) string {
	return filepath.Join(w.dir, prefix+strconv.FormatUint(w.next.Add(1), 10))
}

// Isolation is what this sandbox really has.
func (i *instance) Isolation() sandbox.Isolation { return i.iso }

// Freeze stops every process of the sandbox. Frozen processes can still be killed.
func (i *instance) Freeze(context.Context) error { return i.freeze(true) }

// Thaw continues them.
func (i *instance) Thaw(context.Context) error { return i.freeze(false) }

func (i *instance) freeze(on bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.phases {
		if err := p.group.Freeze(on); err != nil {
			if errors.Is(err, cgroup.ErrUnsupported) {
				return &sandbox.Error{Backend: Name, Op: "freeze", Kind: sandbox.ErrUnsupported, Err: err}
			}
			return failure("freeze", "cgroup", err)
		}
	}
	return nil
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
	alive := make([]*phase, 0, len(i.phases)+1)
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
	defer i.mu.Unlock()
	if i.writable >= 0 {
		_ = unix.Close(i.writable)
		i.writable = -1
	}
	if i.disk != "" {
		errs = append(errs, failure("unmount scratch", "scratch", i.work.bench.Detach(i.disk)))
		_ = i.work.bench.Do(func() error { return os.Remove(i.disk) })
	}
	if i.scratch != nil {
		errs = append(errs, failure("drop scratch", "scratch", i.scratch.Close()))
	}
	err := errors.Join(errs...)
	if i.ids.root != 0 && err == nil {
		i.supervisor.Release(i.ids.root) // what is still there keeps its ids
	}
	return err
}
