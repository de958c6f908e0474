package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// Name is what --backend calls this backend.
const Name = "oci"

// Options configure a Backend; the zero value serves.
type Options struct {
	// Runtime is the name of one (see Runtimes) or its path; default the first that is found.
	Runtime string
	// CacheDir holds the templates of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
	// DiskFloor is the free space that the file system of CacheDir keeps; 0 is the smaller of 1 GiB and 5 % of it. A sandbox
	// that would take from it is refused, and what runs when it is reached is stopped.
	DiskFloor sandbox.Size
	// Eager is for callers who are sure to make one sandbox, and soon. The workplace is made before they ask for it, and at a
	// sandbox's end it is Close that waits until its disk is gone.
	Eager bool
	// Delegate allows New to move this process into a cgroup of its own, or to have systemd do so, where it could not limit
	// anything otherwise: for programs that own themselves, not for libraries.
	Delegate bool
}

// Backend makes sandboxes with an OCI runtime. It owns its claim on the machine and its workplace.
type Backend struct {
	opts    Options
	runtime *found
	self    rootless.Self
	cgroups *cgroup.Tree
	counts  watch.Counts
	place   *launch.Claim
	covers  func() rootfs.Covers
	look    func() sandbox.Isolation
	lacking func() (reason, remedy string) // why no container can be had here at all, and what would change that

	beside   sync.WaitGroup // what is done beside everything else
	tidy     sync.Once
	dropping sync.WaitGroup
	leftMu   sync.Mutex
	left     []error // of disks that were to be gone and are not

	mu      sync.Mutex
	work    *workplace
	steward *rootless.Steward // a plain user's; nil before it is needed
	filters map[seccomp.Policy]filters
}

// filters are a policy in both its shapes.
type filters struct {
	program []byte         // on top of the program
	bundle  *seccompFilter // around the container
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ launch.Phase     = (*phase)(nil)
)

// New looks for the runtime and claims nothing yet. One that is missing or unfit is for Probe to tell.
func New(o Options) (*Backend, error) {
	f, err := find(o.Runtime)
	if err != nil {
		return nil, err
	}
	self := rootless.Look()
	tree, err := cgroup.Open(self.Groups(o.Delegate && !self.Privileged))
	if err != nil {
		return nil, failure("look at cgroups", "cgroup", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = "/var/cache/sandbox-run"
	}
	b := &Backend{
		opts: o, runtime: f, self: self, cgroups: tree, counts: watch.Look(tree), place: launch.NewClaim(Name, tree), covers: sync.OnceValue(rootfs.LookAtProc),
		filters: map[seccomp.Policy]filters{},
	}
	b.look, b.lacking = sync.OnceValue(b.probe), sync.OnceValues(b.obstacle)
	if o.Eager {
		b.beside.Go(func() {
			if self.Privileged && f.reason == "" {
				_, _, _ = b.claim() // Create claims too, and reports what is wrong
				b.covers()
			}
		})
	}
	return b, nil
}

func failure(op, stage string, err error) error { return launch.Failure(Name, op, stage, err) }

// Name is "oci".
func (b *Backend) Name() string { return Name }

// workplace is where bundles are made and runtimes run, as root: a mount namespace that nobody else sees and that ends with this
// process, with a file system in memory over the directory of our claim.
//
// A plain user has none: there, each container's lodge is one, and what is mounted there is made by a steward.
type workplace struct {
	shop  rootless.Workshop
	bench *rootfs.Bench // root's, and the shop; nil of a plain user
	ns    *os.File      // the same
	dir   string
	next  atomic.Uint64
	// devices is our own group in the v1 hierarchy for devices; empty without one.
	devices string
}

func (w *workplace) close() {
	_ = w.ns.Close() // nil is fine
	w.shop.Close()
}

// stateDir is where the runtime keeps what it knows of its containers.
func (w *workplace) stateDir() string { return stateDir(w.dir) }

func stateDir(place string) string { return filepath.Join(place, "state") }

// newPlainWorkplace is a plain user's, with their steward.
func newPlainWorkplace(s *supervisor.Supervisor, steward *rootless.Steward) (*workplace, error) {
	own, err := s.NewDir()
	if err != nil {
		return nil, failure("make directory", "rootfs", err)
	}
	return &workplace{dir: filepath.Dir(own), shop: steward}, nil
}

func newWorkplace(s *supervisor.Supervisor) (_ *workplace, err error) {
	own, err := s.NewDir()
	if err != nil {
		return nil, failure("make directory", "rootfs", err)
	}
	w := &workplace{dir: filepath.Dir(own)}
	// Those who are root of a container only must get through to its root.
	if w.bench, err = rootfs.NewBench(rootfs.Options{Backend: Name, Workbench: w.dir, Open: true}); err != nil {
		return nil, err
	}
	w.shop = w.bench
	all := hierarchies()
	for _, h := range all {
		if h.name == "devices" {
			w.devices = h.own
		}
	}
	err = w.bench.Do(func() (err error) {
		if w.ns, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		return errors.Join(os.Mkdir(w.stateDir(), 0o700), hide(all))
	})
	if err != nil {
		_ = w.ns.Close() // nil is fine
		w.bench.Close()
		return nil, failure("make workplace", "rootfs", err)
	}
	return w, nil
}

// claim takes our place on the machine at first use.
func (b *Backend) claim() (*supervisor.Supervisor, *workplace, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.place.Take()
	if err != nil {
		return nil, nil, err
	}
	if b.work == nil && b.self.Privileged {
		if b.work, err = newWorkplace(s); err != nil {
			return nil, nil, err
		}
	} else if b.work == nil {
		if err := b.stewardLocked(); err != nil {
			return nil, nil, err
		}
		if b.work, err = newPlainWorkplace(s, b.steward); err != nil {
			return nil, nil, err
		}
	}
	return s, b.work, nil
}

// stewardLocked starts a plain user's steward at first use. With mu held.
func (b *Backend) stewardLocked() (err error) {
	if b.steward == nil {
		b.steward, err = rootless.NewSteward(Name, b.self)
	}
	return err
}

// filter makes both shapes of a policy once. An init that is to make a program of itself needs some calls more.
func (b *Backend) filter(p seccomp.Policy) (filters, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.filters[p]; ok {
		return f, nil
	}
	program, err := seccomp.Compile(p, "")
	if err != nil {
		return filters{}, failure("compile filter", "seccomp", err)
	}
	f := filters{program: program}
	if !b.runtime.kernel {
		var also []string
		if !b.self.Privileged {
			also = inmateCalls
		}
		if f.bundle, err = newFilter(p, also...); err != nil {
			return filters{}, failure("make profile", "seccomp", err)
		}
	}
	b.filters[p] = f
	return f, nil
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	var left []sandbox.Residue
	if b.self.Privileged { // a plain user's runtimes make no groups
		left = sweep(dryRun)
	}
	more, err := b.place.Collect(ctx, dryRun)
	return append(left, more...), err
}

// Close gives up the claim and the workplace. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error {
	b.beside.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work != nil {
		b.work.close()
		b.work = nil
	}
	if b.steward != nil {
		b.steward.Close()
	}
	err := b.place.Close()
	b.dropping.Wait()
	err = errors.Join(append(b.left, err)...)
	b.left = nil
	return err
}
