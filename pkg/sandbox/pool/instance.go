package pool

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// instance is a pooled sandbox that was handed out.
type instance struct {
	sandbox.Instance
	p *Pool
	s *shape
	// resume ends the delay of refills for this program.
	resume func()

	mu   sync.Mutex
	m    *pooled
	cold []sandbox.File // for a cold start, in place of a driver: see sandbox.Warm
}

var (
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
)

// Start turns the waiting process into p, or forks p, or starts it without preparation.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	i.p.starting.Add(1)
	defer i.p.starting.Add(-1)
	waits := i.takeFork(p) // always: no program runs beside a waiting fork
	if waits == nil {
		if t, err := i.wake(ctx, p); t != nil || err != nil {
			return t, err
		}
	}
	if t, err := i.fork(ctx, p, waits); t != nil || err != nil {
		return t, err
	}
	if err := i.putCold(ctx, p); err != nil {
		return nil, err
	}
	return i.Instance.Start(ctx, p)
}

// putCold puts the files that only a cold start of p needs.
func (i *instance) putCold(ctx context.Context, p *sandbox.Process) error {
	i.mu.Lock()
	files := slices.DeleteFunc(slices.Clone(i.cold), func(f sandbox.File) bool { return !isDriver(p, f) })
	i.mu.Unlock()
	if len(files) == 0 {
		return nil
	}
	return i.Instance.(sandbox.Filer).Put(ctx, files) // Put has checked that
}

// isDriver reports whether a file has the path of a file of the process's driver.
func isDriver(p *sandbox.Process, f sandbox.File) bool {
	return p.Warm != nil && slices.ContainsFunc(p.Warm.Files, func(own sandbox.File) bool { return own.Path == f.Path })
}

// wake sends p to the process that waits for it. Without a task and an error, the caller starts p cold.
func (i *instance) wake(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	w := i.takeWaiting(p.Phase)
	if w == nil {
		return nil, nil
	}
	err := errMismatch
	if canBecome(&w.process, p) {
		if why := w.unhealthy(); why != "" {
			err = errors.New(why)
		} else {
			err = w.send(ctx, p, i.p.opts.MessageTimeout)
		}
	}
	if err == nil {
		i.p.increment(&i.s.count.warm)
		return &task{Task: w.task, w: w, began: time.Now()}, nil
	}
	// No untrusted code has run in it. It has to end before another process takes its place in the phase.
	i.p.increment(&i.s.count.fallbacks)
	_ = w.end(context.WithoutCancel(ctx)) // Destroy reports what is left
	if errors.Is(err, errLost) {
		return nil, &sandbox.Error{Backend: i.p.Name(), Op: "start", Err: err, Hint: "run it again"}
	}
	return nil, ctx.Err()
}

var errMismatch = errors.New("the process waits for another program")

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
			_ = f.Close() // Destroy reports what is left
		}
	}
	return mine
}

// fork starts p as the waiting fork, or from its zygote, if there is one.
func (i *instance) fork(ctx context.Context, p *sandbox.Process, waits sandbox.Fork) (t sandbox.Task, err error) {
	if waits != nil {
		t, err = waits.Start(ctx, p)
	} else {
		z := i.p.acquireZygote(i.s, i.m.t.forkedLike(p))
		if z == nil {
			return nil, nil
		}
		defer i.p.releaseZygote(z)
		t, err = z.Start(ctx, i.Instance, p)
	}
	if errors.Is(err, sandbox.ErrState) && ctx.Err() == nil {
		i.p.increment(&i.s.count.fallbacks)
		return nil, nil
	}
	if err == nil {
		i.p.increment(&i.s.count.warm)
	}
	return t, err
}

// Destroy ends unused waiting processes, too.
func (i *instance) Destroy(ctx context.Context) error {
	time.AfterFunc(parting, i.resume)
	i.mu.Lock()
	left := pooled{inner: i.Instance, waits: i.m.waits, forks: i.m.forks}
	i.m.waits, i.m.forks = nil, nil
	i.mu.Unlock()
	return left.destroy(ctx)
}

// Put is that of the sandbox below. It keeps files for cold starts until there is one.
func (i *instance) Put(ctx context.Context, files []sandbox.File) error {
	f, ok := i.Instance.(sandbox.Filer)
	if !ok {
		return i.unsupported("put files")
	}
	waits := slices.Concat(i.m.t.ahead, i.m.t.fork)
	now := make([]sandbox.File, 0, len(files))
	i.mu.Lock()
	for _, file := range files {
		if slices.ContainsFunc(waits, func(p sandbox.Process) bool { return isDriver(&p, file) }) {
			i.cold = append(i.cold, file)
		} else {
			now = append(now, file)
		}
	}
	i.mu.Unlock()
	return f.Put(ctx, now)
}

// Take is that of the sandbox below.
func (i *instance) Take(ctx context.Context, s sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	f, ok := i.Instance.(sandbox.Filer)
	if !ok {
		return nil, i.unsupported("take files")
	}
	return f.Take(ctx, s, each)
}

// unsupported is the Manager's error for a backend without that operation.
func (i *instance) unsupported(op string) error {
	return &sandbox.Error{Backend: i.p.Name(), Op: op, Kind: sandbox.ErrUnsupported}
}
