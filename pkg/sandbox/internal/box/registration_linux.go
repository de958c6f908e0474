package box

import (
	"context"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// registration is a backend's entry in the registry of live supervisors, made at first use.
type registration struct {
	mu         sync.Mutex
	supervisor *supervisor.Supervisor
	collecting sync.WaitGroup
	stop       context.CancelFunc // ends the collecting
	closed     bool
}

// Register registers this process at first use, and starts to collect the leftovers of dead supervisors.
func (h *Host) Register() (*supervisor.Supervisor, error) {
	r := &h.registration
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, faults.Closed(h.Name)
	}
	if r.supervisor == nil {
		s, err := supervisor.Open(h.Cgroups)
		if err != nil {
			return nil, h.Failure("register", "supervisor", err)
		}
		r.supervisor = s
		// The collection runs in parallel: the leftovers of other supervisors do not delay this caller.
		ctx, cancel := context.WithCancel(context.Background())
		r.stop = cancel
		r.collecting.Go(func() { _, _ = supervisor.Collect(ctx, false) })
	}
	return r.supervisor, nil
}

// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them.
func (h *Host) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	h.registration.collecting.Wait()
	found, err := supervisor.Collect(ctx, dryRun)
	all := make([]sandbox.Residue, len(found))
	for i, f := range found {
		all[i] = sandbox.Residue{Kind: f.Kind, Name: f.Name, Removed: f.Removed}
		if f.Problem != nil {
			all[i].Problem = f.Problem.Error()
		}
	}
	return all, h.Failure("collect", "supervisor", err)
}

// collectTimeout is how long Close waits for the removal of leftovers: ordinary ones take milliseconds, and a leftover
// that can not be removed (a process that the kernel does not let die) stays for the next collector.
const collectTimeout = 200 * time.Millisecond

// unregister ends the registration and closes the tree of cgroups. It may be called twice.
func (h *Host) unregister() error {
	r := &h.registration
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	s, stop := r.supervisor, r.stop
	r.supervisor = nil
	r.mu.Unlock()
	if first {
		defer h.Cgroups.Close()
	}
	if s == nil {
		return nil
	}
	insist := time.AfterFunc(collectTimeout, stop)
	r.collecting.Wait()
	insist.Stop()
	stop()
	return h.Failure("close", "supervisor", s.Close())
}
