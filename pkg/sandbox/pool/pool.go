package pool

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options bound the pool. The zero value has the defaults.
type Options struct {
	// Memory is the limit of all pooled sandboxes and zygotes together; default 1 GiB.
	Memory sandbox.Size
	// CPU is the average number of processors that refills may use; default half of the machine's.
	CPU float64
	// Sandboxes is the maximum number of pooled sandboxes, and PerShape that of one shape; default 64 and 16.
	Sandboxes, PerShape int
	// Parallel is the number of refills at a time; default 1 for every two processors.
	Parallel int
	// MaxAge is how long a pooled sandbox waits before it is replaced; default 10 minutes.
	MaxAge time.Duration
	// Keep is how long a shape keeps a pooled sandbox after its last request; default 10 minutes.
	Keep time.Duration
	// ZygoteAge and ZygoteForks are when a zygote is replaced: its forks share an address layout and a hash secret; default 5
	// minutes and 1000.
	ZygoteAge   time.Duration
	ZygoteForks int
	// PerTenant is a label; sandboxes that differ in it do not share a zygote. Empty: all of a shape do.
	PerTenant string
	// ReadyTimeout bounds the time until a process is ready; default 30 s.
	ReadyTimeout time.Duration
	// MessageTimeout bounds the time until a process has read its message; default 5 s.
	MessageTimeout time.Duration
	// Busy reports that requests wait for the machine: refills then run one at a time, and slowly. nil is never.
	Busy func() bool
	// OnFailure is called with the reason when a process of that name can not be prepared, once until it can: requests start cold
	// meanwhile. May be nil.
	OnFailure func(name string, err error)
}

func (o Options) complete() Options {
	cpus := runtime.NumCPU()
	o.Memory = cmp.Or(o.Memory, 1*sandbox.GiB)
	o.CPU = cmp.Or(o.CPU, float64(cpus)/2)
	o.Sandboxes = cmp.Or(o.Sandboxes, 64)
	o.PerShape = cmp.Or(o.PerShape, 16)
	o.Parallel = cmp.Or(o.Parallel, max(1, cpus/2))
	o.MaxAge = cmp.Or(o.MaxAge, 10*time.Minute)
	o.Keep = cmp.Or(o.Keep, 10*time.Minute)
	o.ZygoteAge = cmp.Or(o.ZygoteAge, 5*time.Minute)
	o.ZygoteForks = cmp.Or(o.ZygoteForks, 1000)
	o.ReadyTimeout = cmp.Or(o.ReadyTimeout, 30*time.Second)
	o.MessageTimeout = cmp.Or(o.MessageTimeout, 5*time.Second)
	return o
}

// Pool is a backend that hands out prepared sandboxes. It owns the backend below.
type Pool struct {
	inner  sandbox.Backend
	forker sandbox.Forker // the same, or nil
	opts   Options

	lives context.Context // until Close
	ends  context.CancelFunc

	starting atomic.Int32 // requests that are being served, and programs that have just started
	wake     chan struct{}
	work     sync.WaitGroup // the refill loop, refills, sandboxes that are being destroyed

	mu      sync.Mutex
	shapes  map[string]*shape
	began   bool // the refill loop runs
	closed  bool
	filling int // running refills
	budget  bucket
	most    sandbox.Size // Options.Memory, or less while memory is short
	held    time.Time    // since when refills are delayed for requests; zero: they are not
	count   counters
}

var _ sandbox.Backend = (*Pool)(nil)

// New puts a pool over a backend. The pool owns the backend from here on.
func New(inner sandbox.Backend, o Options) *Pool {
	p := &Pool{inner: inner, opts: o.complete(), shapes: map[string]*shape{}, wake: make(chan struct{}, 1)}
	p.forker, _ = inner.(sandbox.Forker)
	p.lives, p.ends = context.WithCancel(context.Background())
	p.budget = newBucket(p.opts.CPU)
	p.most = p.opts.Memory
	return p
}

// Backend is the backend below, for callers that need its other interfaces.
func (p *Pool) Backend() sandbox.Backend { return p.inner }

// Name is that of the backend below.
func (p *Pool) Name() string { return p.inner.Name() }

// Probe is that of the backend below.
func (p *Pool) Probe(ctx context.Context) sandbox.Isolation { return p.inner.Probe(ctx) }

// Collect is that of the backend below.
func (p *Pool) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	return p.inner.Collect(ctx, dryRun)
}

// Create hands out a pooled sandbox, or makes a sandbox.
func (p *Pool) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	t, ok := p.shapeSpecOf(spec)
	if !ok {
		return p.inner.Create(ctx, spec)
	}
	p.starting.Add(1)
	defer p.starting.Add(-1)
	s, m := p.take(t)
	p.wakeRefill()
	if m != nil {
		return &instance{Instance: m.inner, p: p, s: s, m: m, resume: p.delayRefills()}, nil
	}
	in, err := p.inner.Create(ctx, spec)
	if err != nil || s == nil || !s.forks {
		return in, err
	}
	// No sandbox was ready, but a zygote may be.
	return &instance{Instance: in, p: p, s: s, m: &pooled{inner: in, t: t}, resume: p.delayRefills()}, nil
}

// take removes and returns the shape's oldest healthy pooled sandbox, and counts the demand.
func (p *Pool) take(t *shapeSpec) (*shape, *pooled) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil
	}
	s := p.shapeLocked(t, now)
	s.arrived(now)
	for len(s.ready) > 0 {
		m := s.ready[0]
		s.ready = s.ready[1:]
		if why := m.unhealthy(now, p.opts.MaxAge); why != "" {
			p.count.unhealthy++
			p.discardLocked(m)
			continue
		}
		s.count.hits++
		return s, m
	}
	s.count.misses++
	return s, nil
}

// shapeLocked finds a shape or adds it. The caller holds mu.
func (p *Pool) shapeLocked(t *shapeSpec, now time.Time) *shape {
	s := p.shapes[t.key]
	if s == nil {
		if len(p.shapes) >= maxShapes {
			p.forgetLocked()
		}
		s = &shape{key: t.key, t: t, forks: t.forks, names: t.names, seen: now}
		p.shapes[t.key] = s
	}
	if !p.began {
		p.began = true
		p.work.Go(p.runRefillLoop)
	}
	return s
}

// maxShapes is how many shapes are remembered: each program name, and each combination of limits, is a shape, and the refill loop
// goes through all of them after every request.
const maxShapes = 1024

// forgetLocked removes the least recently requested shape that has nothing prepared. The caller holds mu.
func (p *Pool) forgetLocked() {
	var oldest *shape
	for _, s := range p.shapes {
		if s.idle() && !s.pinned && (oldest == nil || s.seen.Before(oldest.seen)) {
			oldest = s
		}
	}
	if oldest != nil {
		p.count.add(&oldest.count)
		delete(p.shapes, oldest.key)
	}
}

// wakeRefill wakes the refill loop.
func (p *Pool) wakeRefill() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Warm makes sure that shapes have a pooled sandbox from now on, whether requested or not. It blocks until they do, or can not, or ctx
// ends. Specs must be complete; a spec without a process that can wait is ignored. The error names what could not be prepared;
// requests are served nevertheless.
func (p *Pool) Warm(ctx context.Context, specs ...*sandbox.Spec) error {
	var wait []*shape
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return &sandbox.Error{Backend: p.Name(), Op: "warm", Kind: sandbox.ErrState, Err: errors.New("the pool is closed")}
	}
	for _, spec := range specs {
		if t, ok := p.shapeSpecOf(spec); ok {
			s := p.shapeLocked(t, time.Now())
			s.pinned = true
			wait = append(wait, s)
		}
	}
	p.mu.Unlock()
	p.wakeRefill()
	var errs []error
	for _, s := range wait {
		errs = append(errs, p.waitUntilReady(ctx, s))
	}
	return errors.Join(errs...)
}

// waitUntilReady waits until a shape has what it needs, or its refill has failed.
func (p *Pool) waitUntilReady(ctx context.Context, s *shape) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		p.mu.Lock()
		there := (len(s.ready) > 0 || s.count.hits > 0) && (!s.forks || s.zygote != nil || p.forker == nil)
		err := s.failed
		p.mu.Unlock()
		if there || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.lives.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Close destroys every pooled sandbox and zygote, and closes the backend below. Sandboxes that were handed out must be destroyed
// before. It blocks until all refills have ended, and may be called twice.
func (p *Pool) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	p.ends()
	if first {
		p.mu.Lock()
		for _, s := range p.shapes {
			for _, m := range s.ready {
				p.discardLocked(m)
			}
			s.ready = nil
			p.retireLocked(s)
		}
		p.mu.Unlock()
	}
	p.work.Wait()
	return p.inner.Close()
}

// discardLocked destroys a pooled sandbox in the background. The caller holds mu.
func (p *Pool) discardLocked(m *pooled) {
	p.work.Go(func() {
		if err := m.destroy(context.Background()); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.count.undone++
		}
	})
}
