package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// Name is the value of --backend for this backend.
const Name = "oci"

// Options configure a Backend; the zero value is usable.
type Options struct {
	// Runtime is a name (see Runtimes) or a path; default the first that is found.
	Runtime string
	// CacheDir holds the formatted image files of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
	// DiskFloor is the free space that the file system of CacheDir keeps; 0 is the smaller of 1 GiB and 5 % of it. A
	// sandbox that would take from it is refused, and running sandboxes are stopped when it is reached.
	DiskFloor sandbox.Size
	// Eager is for callers that are sure to create one sandbox soon. New makes the runtime namespace before Create is
	// called, and Close, not Destroy, waits for the removal of the disk.
	Eager bool
	// Delegate allows New to move this process into a cgroup of its own, directly or by systemd, where it could not set
	// limits otherwise: for executables, not for libraries.
	Delegate bool
}

// startTimeout bounds a start. A runtime needs about ten milliseconds, gVisor some hundred, and either needs seconds on
// an overloaded machine.
const startTimeout = 30 * time.Second

// cleanupTimeout bounds the end of a runtime.
const cleanupTimeout = 5 * time.Second

// Backend makes sandboxes with an OCI runtime. It owns its registration on the machine and its runtime namespace.
type Backend struct {
	host     *box.Host
	runtime  *found
	look     func() sandbox.Isolation
	obstacle func() (reason, remedy string) // why no container is possible here, and the remedy

	background sync.WaitGroup
	collect    sync.Once

	mu      sync.Mutex
	ns      *runtimeNamespace
	helper  *rootless.HelperProcess // an ordinary user's; nil before it is needed
	filters map[seccomp.Policy]*seccompFilter
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ box.Kind         = (*instance)(nil)
	_ box.Container    = (*container)(nil)
)

// New finds the runtime. It does not register the supervisor yet. Probe reports a missing or unfit runtime.
func New(o Options) (*Backend, error) {
	f, err := find(o.Runtime)
	if err != nil {
		return nil, err
	}
	self := rootless.Look()
	common := box.Options{CacheDir: o.CacheDir, DiskFloor: o.DiskFloor, Eager: o.Eager}
	h, err := box.NewHost(Name, common, self, self.Groups(o.Delegate && !self.Privileged))
	if err != nil {
		return nil, err
	}
	b := &Backend{host: h, runtime: f, filters: map[seccomp.Policy]*seccompFilter{}}
	h.Timeout, h.Opaque, h.TerminalRelay, h.Limits, h.Grade = startTimeout, f.kernel, f.relays, b.groupLimits, b.grade
	b.look, b.obstacle = sync.OnceValue(b.probe), sync.OnceValues(b.findObstacle)
	if o.Eager {
		b.background.Go(func() {
			if self.Privileged && f.reason == "" {
				_, _, _ = b.register() // Create registers too, and reports the error
				h.Masks()
			}
		})
	}
	return b, nil
}

func failure(op, stage string, err error) error { return faults.Wrap(Name, op, stage, err) }

// Name is "oci".
func (b *Backend) Name() string { return Name }

// runtimeNamespace is the mount namespace in which root's bundles are made and runtimes run. No other process sees it,
// and it ends with this one. A file system in memory covers the directory of the supervisor's registration there.
//
// An ordinary user has none: each container's runtime helper is one, and a mount helper makes the mounts there.
type runtimeNamespace struct {
	mounts rootless.MountHelper
	helper *rootfs.MountHelper // the same as mounts; nil for an ordinary user
	mnt    *os.File            // the mount namespace; nil for an ordinary user
	dir    string
	next   atomic.Uint64
	// devices is this process's cgroup in the v1 hierarchy for devices; empty without one.
	devices string
}

func (n *runtimeNamespace) close() {
	_ = n.mnt.Close() // Close of nil is allowed
	n.mounts.Close()
}

// path returns a name in the namespace that is used only once.
func (n *runtimeNamespace) path(prefix string) string {
	return filepath.Join(n.dir, prefix+strconv.FormatUint(n.next.Add(1), 10))
}

// stateDir is the directory of the runtime's container state.
func (n *runtimeNamespace) stateDir() string { return stateDir(n.dir) }

func stateDir(dir string) string { return filepath.Join(dir, "state") }

// newRuntimeNamespace makes root's namespace or, with a mount helper, an ordinary user's.
func newRuntimeNamespace(s *supervisor.Supervisor, helper *rootless.HelperProcess) (_ *runtimeNamespace, err error) {
	own, err := s.NewDir()
	if err != nil {
		return nil, failure("make directory", "rootfs", err)
	}
	n := &runtimeNamespace{dir: filepath.Dir(own)}
	if helper != nil {
		n.mounts = helper
		return n, nil
	}
	// A user who is root only in a container must have access to the container's root.
	if n.helper, err = rootfs.NewMountHelper(rootfs.Options{Backend: Name, Dir: n.dir, Open: true}); err != nil {
		return nil, err
	}
	n.mounts = n.helper
	all := hierarchies()
	for _, h := range all {
		if h.name == "devices" {
			n.devices = h.own
		}
	}
	err = n.helper.Do(func() (err error) {
		if n.mnt, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		return errors.Join(os.Mkdir(n.stateDir(), 0o700), hide(all))
	})
	if err != nil {
		n.close()
		return nil, failure("make runtime namespace", "rootfs", err)
	}
	return n, nil
}

// register registers this process at first use, and makes the runtime namespace.
func (b *Backend) register() (*supervisor.Supervisor, *runtimeNamespace, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.host.Register()
	if err == nil && b.ns == nil {
		if !b.host.Self.Privileged {
			err = b.startHelperLocked()
		}
		if err == nil {
			b.ns, err = newRuntimeNamespace(s, b.helper)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return s, b.ns, nil
}

// startHelperLocked starts an ordinary user's mount helper at first use. With mu held.
func (b *Backend) startHelperLocked() (err error) {
	if b.helper == nil {
		b.helper, err = rootless.StartHelperProcess(Name, b.host.Self)
	}
	return err
}

// bundleFilter makes the filter around a container once; nil for a runtime with a kernel of its own. An init that turns
// itself into a program needs some more calls.
func (b *Backend) bundleFilter(p seccomp.Policy) (f *seccompFilter, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.filters[p]; ok || b.runtime.kernel {
		return f, nil
	}
	var also []string
	if !b.host.Self.Privileged {
		also = initCalls
	}
	if f, err = newFilter(p, also...); err != nil {
		return nil, failure("make profile", "seccomp", err)
	}
	b.filters[p] = f
	return f, nil
}

// The threads that a runtime's kernel needs: its own, and some for each process.
const (
	roomForKernel    = 64
	threadsOfProcess = 4
)

// groupLimits are the limits of the cgroup of a container's programs.
func (b *Backend) groupLimits(l sandbox.Limits) cgroup.Limits {
	g := cgroup.Limits{Memory: uint64(l.Memory), Pids: l.Processes, CPU: l.CPUs}
	if !b.host.Self.Privileged {
		g = b.host.Counts.Limits(l)
	}
	if b.runtime.kernel {
		g.Pids = roomForKernel + threadsOfProcess*l.Processes
	}
	return g
}

// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	var left []sandbox.Residue
	if b.host.Self.Privileged { // an ordinary user's runtimes make no groups
		left = append(collectGroups(dryRun), collectRuntimes(dryRun)...)
	}
	more, err := b.host.Collect(ctx, dryRun)
	return append(left, more...), err
}

// Close ends the registration and the runtime namespace. Every instance must be destroyed. Close may be called twice.
func (b *Backend) Close() error {
	b.background.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ns != nil {
		b.ns.close()
		b.ns = nil
	}
	if b.helper != nil {
		b.helper.Close()
	}
	return b.host.Close()
}
