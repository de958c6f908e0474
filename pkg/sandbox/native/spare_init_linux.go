package native

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// cloneFlags are the namespaces that an init starts in; the child of each program makes the cgroup namespace, after it
// is in its cgroup.
const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// cleanupTimeout bounds the removal of a cgroup that no sandbox has.
const cleanupTimeout = 5 * time.Second

// spareInit is an init in fresh namespaces without a root, a scratch and a program. Its ids are taken at once; init and err are there
// when started closes.
type spareInit struct {
	id      *rootless.Identity
	cgroup  *cgroup.PhaseGroup
	started chan struct{}
	init    *spawn.Init
	err     error
}

// initStarter starts inits. Once a backend has shown that it makes more than one sandbox, a spare init is kept, so that the next sandbox
// does not wait for a process to start. A spare init is used once, like any other.
type initStarter struct {
	supervisor *supervisor.Supervisor
	self       rootless.Self

	mu       sync.Mutex
	spare    *spareInit // for the next sandbox, or nil
	taken    int
	closed   bool
	inFlight sync.WaitGroup
}

// take returns the spare init, or one that is being started. It then belongs to the caller's sandbox.
func (n *initStarter) take(user sandbox.User, own bool) (*spareInit, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken++
	if s := n.spare; s != nil && user == sandbox.DefaultUser && !own {
		n.spare = nil
		if !s.failed() {
			return s, nil
		}
		n.discard(s)
	}
	return n.startLocked(user, own)
}

// spareOwner returns the id on the host of the user of the spare init's sandbox; false without a spare init.
func (n *initStarter) spareOwner() (owner int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.spare == nil {
		return 0, false
	}
	return n.spare.id.Owner, true
}

// failed reports whether the init could not be started. The cause may be gone by now, so the next sandbox tries again.
func (s *spareInit) failed() bool {
	select {
	case <-s.started:
		return s.err != nil
	default:
		return false
	}
}

func (n *initStarter) startLocked(user sandbox.User, own bool) (*spareInit, error) {
	id, err := n.self.Identify(n.supervisor, user, own)
	if err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	s := &spareInit{id: id, cgroup: n.supervisor.NewPhaseCgroup(id.Init), started: make(chan struct{})}
	n.inFlight.Go(func() {
		s.init, s.err = startInit(id, s.cgroup)
		close(s.started)
	})
	return s, nil
}

// refill starts a spare init for the next sandbox. A process with one sandbox only does not pay for a second init.
func (n *initStarter) refill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken >= 2 {
		n.keepLocked()
	}
}

// expect starts a spare init for a sandbox that is sure to follow.
func (n *initStarter) expect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepLocked()
	runtime.Gosched() // the init is the longest wait of that sandbox
}

func (n *initStarter) keepLocked() {
	if n.closed || n.spare != nil {
		return
	}
	// On an error the next sandbox tries again, and its caller gets the error.
	n.spare, _ = n.startLocked(sandbox.DefaultUser, false)
}

// close ends a spare init that no sandbox needed. It may be called twice.
func (n *initStarter) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.inFlight.Wait()
	if s := n.spare; s != nil {
		n.spare = nil
		if s.init != nil {
			_ = s.init.Abandon() // an init that does not die is left to the next collector
		}
		n.discard(s)
	}
}

// discard releases the resources of a spare init.
func (n *initStarter) discard(s *spareInit) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	_ = s.cgroup.Remove(ctx) // the end of the registration removes the rest
	n.supervisor.Release(s.id.Root)
}

// startInit clones an init into fresh namespaces, and into its leaf of the phase cgroup.
func startInit(id *rootless.Identity, phase *cgroup.PhaseGroup) (*spawn.Init, error) {
	leaf, err := phase.OpenInitLeaf()
	if err != nil {
		return nil, failure("make cgroup of init", "cgroup", err)
	}
	defer leaf.Close() // Close of nil is allowed
	init, err := spawn.Start(spawn.Options{
		Namespaces: cloneFlags, UIDs: id.UIDs, GIDs: id.GIDs, Owner: id.Namespaces, KeepGroups: id.KeepGroups, Map: id.Mapper, Cgroup: leaf,
	})
	return init, failure("start init", "namespaces", err)
}
