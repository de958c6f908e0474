package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
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
	policy     seccomp.Policy
	filters    filters
	root       int                // what Release wants back; 0 before
	nests      int                // whom the cgroups belong to, on the host
	owner      int                // the sandbox's user, as the workshop numbers ids
	places     int                // who owns what volumes are mounted on, on the host
	id         *rootless.Identity // a plain user's; nil as root
	inmate     inmate
	lodging    spawn.Options // a plain user's
	made       func() error  // makes the scratch, or waits until it is made
	scratch    *scratch.Scratch
	disk       string // where the scratch is mounted in root's workplace; empty before

	mu        sync.Mutex
	mount     int               // the scratch's mount for the next container of a plain user, or -1
	inhabited bool              // a container has taken it over
	writable  int               // the writable root's mount for the next container, or -1
	phases    map[string]*phase // alive, by name
	spare     *phase            // a container that is ready and has no name yet
	destroyed bool

	execs atomic.Uint64 // names the programs of an init

	isoMu sync.Mutex
	iso   sandbox.Isolation // changed in a copy: who was told of it may still be reading

	lives context.Context // until Destroy: what carries files in or out meanwhile is to end
	ends  context.CancelFunc
}

// Create makes the scratch and the first container, and looks at what it has got.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if reason, remedy := b.lacking(); reason != "" {
		return nil, &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrRefused, Err: errors.New(reason), Hint: remedy}
	}
	writable := slices.ContainsFunc(spec.Volumes, func(v sandbox.Volume) bool { return v.Writable })
	sup, work, err := b.claim()
	if err != nil {
		return nil, err
	}
	i := &instance{b: b, supervisor: sup, work: work, iso: b.Probe(ctx), mount: -1, writable: -1, phases: map[string]*phase{}}
	if i.spec, err = b.withInit(spec); err != nil {
		return nil, err
	}
	i.policy = seccomp.Policy{
		DenySetID: writable, DenyAllocate: spec.VolumeCap() > 0, DenyUncounted: !b.self.Privileged && !b.counts.Memory, DenyAffinity: !b.self.Privileged && !b.counts.CPU,
		Notify: !b.runtime.kernel && seccomp.Notifiable() == nil,
	}
	if err := i.identify(); err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	i.lives, i.ends = context.WithCancel(context.Background())
	i.made = sync.OnceValue(i.makeScratch)
	first := i.begin()
	go func() { _ = i.made() }() // build waits for it
	if i.filters, err = b.filter(i.policy); err == nil {
		err = first.build(ctx, spec.Network)
	}
	if err != nil {
		_ = i.made() // if that was the error, it is told already
		return nil, errors.Join(err, first.giveUp(ctx), i.Destroy(context.WithoutCancel(ctx)))
	}
	i.spare = first
	// What runtimes left that were killed with their supervisors. There is time for it while the program runs.
	b.tidy.Do(func() { b.beside.Go(func() { sweep(false) }) })
	return i, nil
}

// identify takes the ids of a sandbox.
func (i *instance) identify() (err error) {
	if self := i.b.self; !self.Privileged {
		if i.id, err = self.Identify(i.supervisor, i.spec.User, rootless.NeedsOwn(i.spec)); err != nil {
			return err
		}
		i.root, i.nests, i.owner, i.places = i.id.Root, i.id.Init, i.id.Owner, self.UID
		i.inmate, i.lodging = plain(self, i.id, i.spec.User, i.b.runtime.kernel)
		return nil
	}
	var user int
	if i.root, user, err = i.supervisor.IDs(); err != nil {
		return err
	}
	i.nests, i.owner, i.places = i.root, user, i.root
	i.inmate = housed(i.spec.User, i.root, user)
	return nil
}

// needsRoot is the error of what a runtime does for root alone.
func needsRoot(what, runtime string) error {
	return &sandbox.Error{
		Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s can be had with %s as root only", what, runtime), Hint: "--runtime runc, or --backend native",
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
	o := scratch.Options{Bytes: uint64(i.spec.Limits.Disk), Inodes: uint64(i.spec.Limits.Inodes), CacheDir: i.b.opts.CacheDir, Floor: uint64(i.b.opts.DiskFloor)}
	mode, shared := i.spec.Scratch, ""
	if mode == sandbox.ScratchAuto {
		mode = sandbox.ScratchDisk
		if err := scratch.DiskAvailable(i.b.opts.CacheDir); err != nil {
			mode, shared = sandbox.ScratchMemory, err.Error()
		}
	}
	s, err := i.work.shop.Scratch(mode, o, i.owner)
	if err != nil {
		return err
	}
	i.scratch = s
	// What was asked for by name is not missing; and what the machine had when it was looked at may be gone.
	i.iso.Missing = slices.DeleteFunc(i.iso.Missing, func(g sandbox.Gap) bool { return g.Control == sandbox.ControlDisk })
	if shared != "" {
		lackDisk(&i.iso, shared)
	}
	s.OnFloor(i.stopAll)
	if i.id != nil {
		i.mount, err = unix.FcntlInt(s.File().Fd(), unix.F_DUPFD_CLOEXEC, 3)
		return failure("make scratch", "scratch", err)
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

// makeWritable puts a root together, as root, whose changes go to the scratch.
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
	root, rest, err := i.work.bench.WritableRoot(i.spec, i.owner, disk)
	if err != nil {
		return err
	}
	_ = unix.Close(rest)
	i.writable = root
	return nil
}

// copyRoot is a copy of the sandbox's root for one container.
func (i *instance) copyRoot() (int, error) {
	if !i.spec.WritableRoot {
		return i.work.shop.Root(i.spec)
	}
	if i.writable < 0 { // a plain user's first
		root, rest, err := i.work.shop.WritableRoot(i.spec, i.owner, i.mount)
		if err != nil {
			return -1, err
		}
		_ = unix.Close(i.mount)
		i.writable, i.mount = root, rest
	}
	return i.twin(&i.writable)
}

// twin makes a second of a detached mount, which stays ours whatever becomes of the first: a container that dies takes along
// what it was given.
func (i *instance) twin(mount *int) (int, error) {
	one, other, err := i.work.shop.Again(*mount)
	if other >= 0 {
		_ = unix.Close(*mount)
		*mount = other
	}
	return one, err
}

// path is a name in the workplace that nobody else has.
func (w *workplace) path(prefix string) string {
	return filepath.Join(w.dir, prefix+strconv.FormatUint(w.next.Add(1), 10))
}

// Isolation is what this sandbox really has.
func (i *instance) Isolation() sandbox.Isolation {
	i.isoMu.Lock()
	defer i.isoMu.Unlock()
	iso := i.iso.Clone()
	launch.LackRoom(&iso, i.scratch, i.b.opts.CacheDir)
	return iso
}

// revise changes what is said of the isolation.
func (i *instance) revise(change func(*sandbox.Isolation) error) error {
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
	for _, fd := range []*int{&i.writable, &i.mount} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	if i.disk != "" {
		errs = append(errs, failure("unmount scratch", "scratch", i.work.bench.Do(func() error {
			return errors.Join(unix.Unmount(i.disk, unix.MNT_DETACH), os.Remove(i.disk))
		})))
	}
	err := errors.Join(errs...)
	if i.b.opts.Eager {
		i.b.dropping.Go(func() {
			if err := i.drop(err == nil); err != nil {
				i.b.leftMu.Lock()
				defer i.b.leftMu.Unlock()
				i.b.left = append(i.b.left, err)
			}
		})
		return err
	}
	return errors.Join(err, i.drop(err == nil))
}

// drop ends the disk and, if nothing is left that has them, gives the ids back.
func (i *instance) drop(clean bool) (err error) {
	if i.scratch != nil {
		err = failure("drop scratch", "scratch", i.scratch.Close())
	}
	if i.root != 0 && clean && err == nil {
		i.supervisor.Release(i.root)
	}
	return err
}
