package launch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Claim is a backend's place on the machine. It owns the tree of cgroups.
type Claim struct {
	backend string
	cgroups *cgroup.Tree

	mu         sync.Mutex
	supervisor *supervisor.Supervisor
	collecting sync.WaitGroup
	hurry      context.CancelFunc // ends the collecting
	closed     bool
}

// NewClaim claims nothing yet.
func NewClaim(backend string, cgroups *cgroup.Tree) *Claim {
	return &Claim{backend: backend, cgroups: cgroups}
}

// Take registers this process at first use, and sets off the removal of what dead ones left.
func (c *Claim) Take() (*supervisor.Supervisor, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &sandbox.Error{Backend: c.backend, Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
	}
	if c.supervisor == nil {
		s, err := supervisor.Open(c.cgroups)
		if err != nil {
			return nil, Failure(c.backend, "register", "supervisor", err)
		}
		c.supervisor = s
		// Beside the run, not before it: somebody else's residue is not this caller's delay.
		ctx, cancel := context.WithCancel(context.Background())
		c.hurry = cancel
		c.collecting.Go(func() { _, _ = supervisor.Collect(ctx, false) })
	}
	return c.supervisor, nil
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (c *Claim) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	c.collecting.Wait()
	found, err := supervisor.Collect(ctx, dryRun)
	return residue(found), Failure(c.backend, "collect", "supervisor", err)
}

// collectPatience is how long Close waits for the removal of what others left: ordinary residue takes
// milliseconds, and what can not be removed (a process the kernel does not let die) is the next one's.
const collectPatience = 200 * time.Millisecond

// Close gives the place up. Every instance must be destroyed. Twice is fine.
func (c *Claim) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	s, hurry := c.supervisor, c.hurry
	c.supervisor = nil
	c.mu.Unlock()
	if first {
		defer c.cgroups.Close()
	}
	if s == nil {
		return nil
	}
	insist := time.AfterFunc(collectPatience, hurry)
	c.collecting.Wait()
	insist.Stop()
	hurry()
	return Failure(c.backend, "close", "supervisor", s.Close())
}
