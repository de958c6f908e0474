package native

import (
	"sync"
	"syscall"

	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// newborn is an init in fresh namespaces that knows nothing yet: no root, no scratch, no program.
// Its ids are taken.
type newborn struct {
	init           *spawn.Init
	rootID, userID int
}

// nursery keeps one newborn ready once a backend has shown that it makes more than one sandbox, so
// that the next does not wait for a process to start. A newborn is used once, like any other; one
// that has died meanwhile is noticed and replaced, and costs only the time it was to save.
type nursery struct {
	supervisor *supervisor.Supervisor

	mu       sync.Mutex
	ready    *newborn
	coming   chan *newborn // where the one on its way is delivered, until somebody waits for it
	births   int
	closed   bool
	inFlight sync.WaitGroup
}

// birth starts an init for a user.
func (n *nursery) birth(user sandbox.User) (*newborn, error) {
	b := &newborn{}
	var err error
	if b.rootID, b.userID, err = n.supervisor.IDs(); err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	if b.init, err = startInit(b.rootID, b.userID, user); err != nil {
		n.supervisor.Release(b.rootID)
		return nil, err
	}
	return b, nil
}

// startInit clones an init into fresh namespaces. Outside, its root and its user are ids that nobody
// else has.
func startInit(rootID, userID int, user sandbox.User) (*spawn.Init, error) {
	maps := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: rootID, Size: 1}, {ContainerID: id, HostID: userID, Size: 1}}
	}
	init, err := spawn.Start(spawn.Options{Namespaces: cloneFlags, UIDs: maps(user.UID), GIDs: maps(user.GID)})
	return init, failure("start init", "namespaces", err)
}

// take returns the newborn that is ready or on its way, or nil.
func (n *nursery) take(user sandbox.User) *newborn {
	n.mu.Lock()
	n.births++
	if user != sandbox.DefaultUser {
		n.mu.Unlock()
		return nil
	}
	b, coming := n.ready, n.coming
	n.ready, n.coming = nil, nil
	n.mu.Unlock()
	if b == nil && coming != nil {
		b = <-coming
	}
	if b != nil && !b.init.Alive() {
		n.bury(b)
		return nil
	}
	return b
}

func (n *nursery) bury(b *newborn) {
	b.init.Abandon()
	n.supervisor.Release(b.rootID)
}

// refill has the next newborn made, beside whatever the caller does. A lone sandbox does not pay for
// a second.
func (n *nursery) refill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.births >= 2 {
		n.startLocked()
	}
}

// start has a newborn made for a sandbox that is sure to come.
func (n *nursery) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.startLocked()
}

func (n *nursery) startLocked() {
	if n.closed || n.coming != nil || n.ready != nil {
		return
	}
	coming := make(chan *newborn, 1)
	n.coming = coming
	n.inFlight.Go(func() {
		b, err := n.birth(sandbox.DefaultUser)
		if err != nil {
			b = nil // whoever needs one tries for itself, and has somebody to tell
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		switch {
		case n.coming != coming:
			coming <- b
		case b != nil && n.closed:
			n.bury(b)
		default:
			n.ready, n.coming = b, nil
		}
	})
}

// close ends the newborn that nobody needed. Twice is fine.
func (n *nursery) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.inFlight.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ready != nil {
		n.bury(n.ready)
		n.ready = nil
	}
}
