package pool

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// instance is a member that was handed out.
type instance struct {
	sandbox.Instance
	p *Pool
	s *shape
	// leave ends the program's first moments.
	leave func()

	mu sync.Mutex
	m  *member
}

var (
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
)

// Start has the process that waits for p become p, or forks it, or starts it as if nothing had been made ready.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	i.p.starting.Add(1)
	defer i.p.starting.Add(-1)
	waits := i.takeFork(p) // in any case: nothing foreign runs beside a fork that waits
	if waits == nil {
		if t, err := i.wake(ctx, p); t != nil || err != nil {
			return t, err
		}
	}
	if t, err := i.fork(ctx, p, waits); t != nil || err != nil {
		return t, err
	}
	return i.Instance.Start(ctx, p)
}

// wake sends p to the process that waits for it. Neither a task nor an error: it is to be started like any other.
func (i *instance) wake(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	w := i.takeWaiting(p.Phase)
	if w == nil {
		return nil, nil
	}
	err := errMismatch
	if serves(&w.process, p) {
		if why := w.unwell(); why != "" {
			err = errors.New(why)
		} else {
			err = w.send(ctx, p, i.p.opts.Answer)
		}
	}
	if err == nil {
		i.p.served(i.s)
		return &task{Task: w.task, w: w, began: time.Now()}, nil
	}
	// Nothing foreign has run in it. It has to be gone before another takes its place in the phase.
	i.p.fellBack(i.s)
	_ = w.end(context.WithoutCancel(ctx)) // what is left of it, Destroy says
	if errors.Is(err, errLost) {
		return nil, &sandbox.Error{Backend: i.p.Name(), Op: "start", Err: err, Hint: "run it again"}
	}
	return nil, ctx.Err()
}

var errMismatch = errors.New("it waits for something else")

func (i *instance) takeWaiting(phase string) *waiting {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, w := range i.m.waits {
		if w != nil && w.process.Phase == phase {
			i.m.waits = append(i.m.waits[:n:n], i.m.waits[n+1:]...)
			return w
		}
	}
	return nil
}

// takeFork returns the fork that waits for p, and ends all others.
func (i *instance) takeFork(p *sandbox.Process) (mine sandbox.Fork) {
	i.mu.Lock()
	forks := i.m.forks
	i.m.forks = nil
	i.mu.Unlock()
	like := i.m.t.forkedLike(p)
	for n, f := range forks {
		switch {
		case f == nil:
		case like == &i.m.t.fork[n]:
			mine = f
		default:
			_ = f.Close() // what is left of it, Destroy says
		}
	}
	return mine
}

// fork starts p as the fork that waits for it, or from its zygote, if there is one.
func (i *instance) fork(ctx context.Context, p *sandbox.Process, waits sandbox.Fork) (t sandbox.Task, err error) {
	if waits != nil {
		t, err = waits.Start(ctx, p)
	} else {
		z := i.p.borrow(i.s, i.m.t.forkedLike(p))
		if z == nil {
			return nil, nil
		}
		defer i.p.giveBack(z)
		t, err = z.Start(ctx, i.Instance, p)
	}
	if errors.Is(err, sandbox.ErrState) && ctx.Err() == nil {
		i.p.fellBack(i.s)
		return nil, nil
	}
	if err == nil {
		i.p.served(i.s)
	}
	return t, err
}

// Destroy ends what was never asked for, too.
func (i *instance) Destroy(ctx context.Context) error {
	time.AfterFunc(parting, i.leave)
	i.mu.Lock()
	left := member{inner: i.Instance, waits: i.m.waits, forks: i.m.forks}
	i.m.waits, i.m.forks = nil, nil
	i.mu.Unlock()
	return left.destroy(ctx)
}

// Put is that of the sandbox below.
func (i *instance) Put(ctx context.Context, files []sandbox.File) error {
	f, ok := i.Instance.(sandbox.Filer)
	if !ok {
		return i.unsupported("put files")
	}
	return f.Put(ctx, files)
}

// Take is that of the sandbox below.
func (i *instance) Take(ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	f, ok := i.Instance.(sandbox.Filer)
	if !ok {
		return nil, i.unsupported("take files")
	}
	return f.Take(ctx, s, each)
}

// unsupported is what the Manager says of a backend that can not.
func (i *instance) unsupported(op string) error {
	return &sandbox.Error{Backend: i.p.Name(), Op: op, Kind: sandbox.ErrUnsupported}
}
