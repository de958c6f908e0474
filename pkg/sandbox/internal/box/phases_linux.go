package box

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// enter finds the phase of a process, or makes it. The process counts in the returned phase.
func (i *Instance) enter(ctx context.Context, process *sandbox.Process) (*Phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	name := process.Phase
	if i.phases[name] == nil && i.spare == nil {
		i.waitForSpareLocked()
	}
	if i.destroyed {
		return nil, faults.Destroyed(i.Host.Name)
	}
	if p := i.phases[name]; p != nil {
		select {
		case <-p.Init.Done(): // ended a moment ago; its last process is about to report it
		default:
			if err := i.Kind.Admit(p, process); err != nil {
				return nil, err // the process does not count in the phase
			}
			p.tasks++
			return p, nil
		}
	}
	p, err := i.nextLocked(ctx, process.Network)
	if err != nil {
		return nil, err
	}
	err = i.nameLocked(p, process)
	if err == nil {
		err = i.Kind.Admit(p, process)
	}
	if err != nil {
		p.leaveLocked()
		return nil, errors.Join(err, p.Discard(ctx))
	}
	return p, nil
}

// nextLocked returns a phase that has run no process: the spare one, or another. With mu held.
func (i *Instance) nextLocked(ctx context.Context, n network.Policy) (*Phase, error) {
	p := i.spare
	i.spare = nil
	if p != nil && p.NetworkFixed && !p.Network.Equal(n) {
		if err := p.Discard(ctx); err != nil {
			return nil, err
		}
		p = nil
	}
	if p != nil {
		return p, nil
	}
	p, err := i.Kind.NewPhase()
	if err == nil {
		err = i.Kind.SetUp(ctx, p, n)
	}
	if err != nil {
		return nil, errors.Join(err, p.Discard(ctx))
	}
	return p, nil
}

// nameLocked gives a phase its name and its limits, before its first process. With mu held.
func (i *Instance) nameLocked(p *Phase, process *sandbox.Process) error {
	p.name, p.tasks = process.Phase, 1
	p.hasNetwork(process.Network)
	i.phases[p.name] = p
	return p.limit(process.Limits)
}

// SetSpare keeps the first phase of the sandbox, which is set up, for the first process.
func (i *Instance) SetSpare(p *Phase) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.spare = p
}

// Spare returns the spare phase, or nil, and waits for one in preparation.
func (i *Instance) Spare() *Phase {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waitForSpareLocked()
	return i.spare
}

// SetAside returns a phase that no process enters, for a fork. The caller names or abandons it.
func (i *Instance) SetAside(ctx context.Context, n network.Policy) (*Phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.spare == nil {
		i.waitForSpareLocked()
	}
	if i.destroyed {
		return nil, faults.Destroyed(i.Host.Name)
	}
	p, err := i.nextLocked(ctx, n)
	if err == nil {
		i.aside = append(i.aside, p)
	}
	return p, err
}

// NamePhase gives a phase that was set aside its name and limits. An error of kind ErrState says that a phase of that
// name exists, or that the sandbox is destroyed.
func (i *Instance) NamePhase(p *Phase, process *sandbox.Process) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return faults.Destroyed(i.Host.Name)
	}
	if i.phases[process.Phase] != nil {
		return &sandbox.Error{
			Backend: i.Host.Name, Op: "fork", Kind: sandbox.ErrState, Hint: "start it cold",
			Err: fmt.Errorf("a process was started in phase %q before", process.Phase),
		}
	}
	i.aside = slices.DeleteFunc(i.aside, func(o *Phase) bool { return o == p })
	return i.nameLocked(p, process)
}

// Abandon ends a phase that was set aside, named or not.
func (i *Instance) Abandon(ctx context.Context, p *Phase) error {
	i.mu.Lock()
	p.abandoned.Store(true)
	p.forgetLocked()
	i.mu.Unlock()
	err := p.Discard(ctx)
	i.addEndError(err) // its ids stay in use, whether or not the caller reports the error
	return err
}

// ExpectPhase makes the next phase while a program runs in another.
func (i *Instance) ExpectPhase() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed || i.spare != nil || i.coming != nil {
		return
	}
	i.coming = make(chan struct{})
	go func() {
		p, err := i.Kind.NewPhase()
		i.mu.Lock()
		defer i.mu.Unlock()
		defer func() {
			close(i.coming)
			i.coming = nil
		}()
		if err == nil {
			p.BeginNetwork(i.Spec.Network)
			err = i.Kind.SetUp(i.lives, p, i.Spec.Network)
		}
		if err != nil { // the next process tries again, and its caller gets the error
			_ = p.Discard(i.lives)
			return
		}
		i.spare = p
	}()
}

// waitForSpareLocked waits for a spare phase in preparation. With mu held, which it releases meanwhile.
func (i *Instance) waitForSpareLocked() {
	for i.coming != nil {
		coming := i.coming
		i.mu.Unlock()
		<-coming
		i.mu.Lock()
	}
}

// Leave removes a process from the count and reports whether it was the last.
func (p *Phase) Leave() (last bool) {
	p.Instance.mu.Lock()
	defer p.Instance.mu.Unlock()
	return p.leaveLocked()
}

func (p *Phase) leaveLocked() (last bool) {
	p.tasks--
	if p.tasks > 0 {
		return false
	}
	p.forgetLocked()
	return true
}

// forgetLocked removes a phase that is about to be finished from the map. Destroy has found it, or waits for it.
func (p *Phase) forgetLocked() {
	i := p.Instance
	if !i.destroyed && !p.leaves {
		p.leaves = true
		i.ending.Add(1)
	}
	i.aside = slices.DeleteFunc(i.aside, func(o *Phase) bool { return o == p })
	if i.phases[p.name] == p {
		delete(i.phases, p.name)
	}
}
