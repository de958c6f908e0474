package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// Options are those that the backends have in common.
type Options struct {
	CacheDir  string // holds the formatted images of scratch disks; default /var/cache/sandbox-run
	DiskFloor sandbox.Size
	Eager     bool
	Delegate  bool // for the caller of NewHost
}

// cleanupTimeout bounds the removal of a phase. The kernel needs milliseconds, and seconds for many processes with much
// memory on a busy machine; the final sample is worth the wait.
const cleanupTimeout = 5 * time.Second

// Host is the part that all sandboxes of a backend share. The fields are set before the first Instance is made.
type Host struct {
	Name    string // of the backend, for errors
	Options Options
	Self    rootless.Self
	Cgroups *cgroup.Tree
	Counts  Counts
	Masks   func() rootfs.Masks // looked up once
	// Timeout bounds an answer of an init: it needs milliseconds, and seconds only on an overloaded machine.
	Timeout time.Duration
	// Limits are the limits that the cgroup of a phase's programs enforces.
	Limits func(sandbox.Limits) cgroup.Limits
	// Grade derives the tier of a report; nil where started programs are not measured.
	Grade func(*sandbox.Isolation)
	// Opaque: programs run on a kernel of the runtime's own, and are no processes of the host. Only the limits around
	// them are measured.
	Opaque bool
	// TerminalRelay: that kernel takes a terminal from the runtime only (Container.RunOnTerminal).
	TerminalRelay bool

	registration registration
	reaping      sync.WaitGroup // inits whose sandboxes are finished with them
	dropping     sync.WaitGroup // scratches of an eager backend's sandboxes

	mu      sync.Mutex
	filters map[seccomp.Policy][]byte
	early   *earlyScratch // made for the first sandbox of an eager backend, or nil
	begun   bool          // early was made once
	left    []error       // of scratches that could not be dropped
}

// NewHost checks the machine. It does not register the supervisor yet.
func NewHost(name string, o Options, self rootless.Self, groups cgroup.Options) (*Host, error) {
	tree, err := cgroup.Open(groups)
	if err != nil {
		return nil, faults.Wrap(name, "look at cgroups", "cgroup", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = "/var/cache/sandbox-run"
	}
	h := &Host{
		Name: name, Options: o, Self: self, Cgroups: tree, Counts: lookAtCounts(tree),
		Masks: sync.OnceValue(rootfs.FindMasks), Timeout: 20 * time.Second, filters: map[seccomp.Policy][]byte{},
	}
	h.Limits = h.Counts.Limits
	return h, nil
}

// Failure returns err as an error of the backend; nil for nil.
func (h *Host) Failure(op, stage string, err error) error { return faults.Wrap(h.Name, op, stage, err) }

func (h *Host) diskFailure(err error) error { return faults.Disk(h.Name, h.Options.CacheDir, err) }

// Filter compiles a system-call policy once.
func (h *Host) Filter(p seccomp.Policy) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f, ok := h.filters[p]; ok {
		return f, nil
	}
	f, err := seccomp.Compile(p, "")
	if err != nil {
		return nil, h.Failure("compile filter", "seccomp", err)
	}
	h.filters[p] = f
	return f, nil
}

// dropLater makes Close wait for the end of a scratch and its ids, and report errors.
func (h *Host) dropLater(drop func() error) {
	h.dropping.Go(func() {
		if err := drop(); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.left = append(h.left, err)
		}
	})
}

// Close ends the registration. Every instance must be destroyed, and the mount helper closed. Close may be called twice.
func (h *Host) Close() error {
	h.reaping.Wait() // otherwise the end of the registration would remove their cgroups
	err := h.unregister()
	h.dropping.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	err = errors.Join(append(h.left, err)...)
	h.left = nil
	return err
}

// Answered calls f with a context that ends after timeout, and adds that to an error of f if it is the reason.
func Answered[T any](ctx context.Context, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	v, err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v; is the machine overloaded, or its kernel stuck? %w", timeout, err)
	}
	return v, err
}
