package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// Name is what --backend calls this backend.
const Name = "oci"

// Options configure a Backend; the zero value serves.
type Options struct {
	// Runtime is the name of one (see Runtimes) or its path; default the first that is found.
	Runtime string
	// CacheDir holds the templates of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
}

// Backend makes sandboxes with an OCI runtime. It owns its claim on the machine and its workplace.
type Backend struct {
	opts    Options
	runtime *found
	cgroups *cgroup.Tree
	place   *launch.Claim
	covers  func() rootfs.Covers
	look    func() sandbox.Isolation

	sweeping sync.WaitGroup

	mu      sync.Mutex
	work    *workplace
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
	_ sandbox.Freezer  = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ launch.Phase     = (*phase)(nil)
)

// New looks for the runtime and claims nothing yet. One that is missing or unfit is for Probe to tell.
func New(o Options) (*Backend, error) {
	f, err := find(o.Runtime)
	if err != nil {
		return nil, err
	}
	tree, err := cgroup.Open()
	if err != nil {
		return nil, failure("look at cgroups", "cgroup", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = "/var/cache/sandbox-run"
	}
	b := &Backend{
		opts: o, runtime: f, cgroups: tree, place: launch.NewClaim(Name, tree), covers: sync.OnceValue(rootfs.LookAtProc),
		filters: map[seccomp.Policy]filters{},
	}
	b.look = sync.OnceValue(b.probe)
	return b, nil
}

func failure(op, stage string, err error) error { return launch.Failure(Name, op, stage, err) }

// Name is "oci".
func (b *Backend) Name() string { return Name }

// workplace is where bundles are made and runtimes run: a mount namespace that nobody else sees and that ends with this
// process, with a file system in memory over the directory of our claim.
type workplace struct {
	bench *rootfs.Bench
	ns    *os.File
	dir   string
	next  atomic.Uint64
	// devices is our own group in the v1 hierarchy for devices; empty without one.
	devices string
}

func (w *workplace) close() {
	_ = w.ns.Close()
	w.bench.Close()
}

// stateDir is where the runtime keeps what it knows of its containers.
func (w *workplace) stateDir() string { return filepath.Join(w.dir, "state") }

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
	if w.ns, err = w.bench.Namespace(); err == nil {
		all := hierarchies()
		for _, h := range all {
			if h.name == "devices" {
				w.devices = h.own
			}
		}
		err = failure("make workplace", "rootfs", w.bench.Do(func() error { return errors.Join(os.Mkdir(w.stateDir(), 0o700), hide(all)) }))
	}
	if err != nil {
		_ = w.ns.Close() // nil is fine
		w.bench.Close()
		return nil, err
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
	if b.work == nil {
		if b.work, err = newWorkplace(s); err != nil {
			return nil, nil, err
		}
		b.sweeping.Go(func() { sweep(false) }) // what runtimes left that were killed with their supervisors
	}
	return s, b.work, nil
}

// filter makes both shapes of a policy once.
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
		if f.bundle, err = newFilter(p); err != nil {
			return filters{}, failure("make profile", "seccomp", err)
		}
	}
	b.filters[p] = f
	return f, nil
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	left := sweep(dryRun)
	more, err := b.place.Collect(ctx, dryRun)
	return append(left, more...), err
}

// Close gives up the claim and the workplace. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error {
	b.sweeping.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work != nil {
		b.work.close()
		b.work = nil
	}
	return b.place.Close()
}

func hasCapability(c int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[c/32].Effective&(1<<(c%32)) != 0
}
