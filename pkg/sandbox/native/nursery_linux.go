package native

import (
	"context"
	"runtime"
	"sync"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// newborn is an init in fresh namespaces that knows nothing yet: no root, no scratch, no program. Its
// ids are taken at once; the rest is there when born closes.
type newborn struct {
	id   *rootless.Identity
	nest *cgroup.PhaseGroup
	born chan struct{}
	init *spawn.Init
	err  error
}

// nursery starts inits. Once a backend has shown that it makes more than one sandbox, one is kept
// ready, so that the next does not wait for a process to start. A newborn is used once, like any
// other.
type nursery struct {
	supervisor *supervisor.Supervisor
	self       rootless.Self

	mu       sync.Mutex
	next     *newborn // for whoever comes next, or nil
	taken    int
	closed   bool
	inFlight sync.WaitGroup
}

// take returns the newborn that was kept, or one that is on its way from now on. The caller buries it,
// or has the instance that it becomes part of do so.
func (n *nursery) take(user sandbox.User, own bool) (*newborn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken++
	if b := n.next; b != nil && user == sandbox.DefaultUser && !own {
		n.next = nil
		if !b.stillborn() {
			return b, nil
		}
		n.discard(b)
	}
	return n.startLocked(user, own)
}

// stillborn: it failed to start, for a reason that may be gone by now. It is not the next sandbox's.
func (b *newborn) stillborn() bool {
	select {
	case <-b.born:
		return b.err != nil
	default:
		return false
	}
}

func (n *nursery) startLocked(user sandbox.User, own bool) (*newborn, error) {
	id, err := n.self.Identify(n.supervisor, user, own)
	if err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	b := &newborn{id: id, nest: n.supervisor.NewNest(id.Init), born: make(chan struct{})}
	n.inFlight.Go(func() {
		b.init, b.err = start(id, b.nest)
		close(b.born)
	})
	return b, nil
}

// refill keeps a newborn for the next sandbox. A lone sandbox does not pay for a second.
func (n *nursery) refill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken >= 2 {
		n.keepLocked()
	}
}

// expect keeps a newborn for a sandbox that is sure to come.
func (n *nursery) expect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepLocked()
	runtime.Gosched() // whoever expects one waits for nothing longer than for that
}

func (n *nursery) keepLocked() {
	if n.closed || n.next != nil {
		return
	}
	// Whoever comes next tries again, and has somebody to tell.
	n.next, _ = n.startLocked(sandbox.DefaultUser, false)
}

// close ends the newborn that nobody needed. Twice is fine.
func (n *nursery) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.inFlight.Wait()
	if b := n.next; b != nil {
		n.next = nil
		if b.init != nil {
			_ = b.init.Abandon() // one that does not die is for the next start to find
		}
		n.discard(b)
	}
}

// discard lets go of what a newborn had that nobody needs.
func (n *nursery) discard(b *newborn) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupPatience)
	defer cancel()
	_ = b.nest.Remove(ctx) // what is left goes with the claim
	n.supervisor.Release(b.id.Root)
}

// start clones an init into fresh namespaces, and into its nest.
func start(id *rootless.Identity, nest *cgroup.PhaseGroup) (*spawn.Init, error) {
	cradle, err := nest.OpenInitLeaf()
	if err != nil {
		return nil, failure("make cgroup of init", "cgroup", err)
	}
	defer cradle.Close() // nil is fine
	init, err := spawn.Start(spawn.Options{
		Namespaces: cloneFlags, UIDs: id.UIDs, GIDs: id.GIDs, Owner: id.Namespaces, KeepGroups: id.KeepGroups, Map: id.Mapper, Cgroup: cradle,
	})
	return init, failure("start init", "namespaces", err)
}
