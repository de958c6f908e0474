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

// Options bound what is kept. The zero value serves.
type Options struct {
	// Memory is what members and zygotes may take in all; default 1 GiB.
	Memory sandbox.Size
	// CPU is how many processors' time making them may take, on average; default half of the machine's.
	CPU float64
	// Members is how many there may be in all, and PerShape of one shape; default 64 and 16.
	Members, PerShape int
	// Parallel is how many are made at a time; default 1 for every two processors.
	Parallel int
	// MaxAge is how long a member waits before it is replaced; default 10 minutes.
	MaxAge time.Duration
	// Keep is for how long a shape that nobody asks for any more has a member; default 10 minutes.
	Keep time.Duration
	// ZygoteAge and ZygoteForks are when a zygote is replaced: its forks share an address layout and a hash secret; default 5 minutes and 1000.
	ZygoteAge   time.Duration
	ZygoteForks int
	// PerTenant is a label; sandboxes that differ in it do not share a zygote. Empty: all of a shape do.
	PerTenant string
	// Patience is what a process may take to become ready; default 30 s.
	Patience time.Duration
	// Answer is how long a process may take to read its message; default 5 s.
	Answer time.Duration
	// Busy reports that requests wait for the machine: members are then made one at a time, and slowly. nil is never.
	Busy func() bool
	// OnFailure is told why something of that name could not be made ready, once until it could: requests are served cold meanwhile. May be nil.
	OnFailure func(name string, err error)
}

func (o Options) complete() Options {
	cpus := runtime.NumCPU()
	o.Memory = cmp.Or(o.Memory, 1*sandbox.GiB)
	o.CPU = cmp.Or(o.CPU, float64(cpus)/2)
	o.Members = cmp.Or(o.Members, 64)
	o.PerShape = cmp.Or(o.PerShape, 16)
	o.Parallel = cmp.Or(o.Parallel, max(1, cpus/2))
	o.MaxAge = cmp.Or(o.MaxAge, 10*time.Minute)
	o.Keep = cmp.Or(o.Keep, 10*time.Minute)
	o.ZygoteAge = cmp.Or(o.ZygoteAge, 5*time.Minute)
	o.ZygoteForks = cmp.Or(o.ZygoteForks, 1000)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.Answer = cmp.Or(o.Answer, 5*time.Second)
	return o
}

// Pool is a backend whose sandboxes are often there already. It owns the backend below.
type Pool struct {
	inner  sandbox.Backend
	forker sandbox.Forker // the same, or nil
	opts   Options

	lives context.Context // until Close
	ends  context.CancelFunc

	starting atomic.Int32 // requests that are being served, and programs in their first moments
	wake     chan struct{}
	work     sync.WaitGroup // the keeper, refills, what is being discarded

	mu      sync.Mutex
	shapes  map[string]*shape
	began   bool // the keeper runs
	closed  bool
	filling int // refills under way
	budget  bucket
	most    sandbox.Size // Options.Memory, or less while memory is short
	held    time.Time    // since when refills are held back for requests; zero: they are not
	count   counters
}

var _ sandbox.Backend = (*Pool)(nil)

// New puts a pool over a backend, which it owns from here on.
func New(inner sandbox.Backend, o Options) *Pool {
	p := &Pool{inner: inner, opts: o.complete(), shapes: map[string]*shape{}, wake: make(chan struct{}, 1)}
	p.forker, _ = inner.(sandbox.Forker)
	p.lives, p.ends = context.WithCancel(context.Background())
	p.budget = newBucket(p.opts.CPU)
	p.most = p.opts.Memory
	return p
}

// Backend is the one below, for who asks what else it can do.
func (p *Pool) Backend() sandbox.Backend { return p.inner }

// Name is that of the backend below: a pool changes nothing but how soon.
func (p *Pool) Name() string { return p.inner.Name() }

// Probe is that of the backend below.
func (p *Pool) Probe(ctx context.Context) sandbox.Isolation { return p.inner.Probe(ctx) }

// Collect is that of the backend below.
func (p *Pool) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	return p.inner.Collect(ctx, dryRun)
}

// Create hands out a member, or makes a sandbox.
func (p *Pool) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	t, ok := p.templateOf(spec)
	if !ok {
		return p.inner.Create(ctx, spec)
	}
	p.starting.Add(1)
	defer p.starting.Add(-1)
	s, m := p.take(t)
	p.nudge()
	if m != nil {
		return &instance{Instance: m.inner, p: p, s: s, m: m, leave: p.firstMoments()}, nil
	}
	in, err := p.inner.Create(ctx, spec)
	if err != nil || s == nil || !s.forks {
		return in, err
	}
	// No sandbox was ready, but a zygote may be.
	return &instance{Instance: in, p: p, s: s, m: &member{inner: in, t: t}, leave: p.firstMoments()}, nil
}

// take finds the shape's oldest member that is well, and counts the demand.
func (p *Pool) take(t *template) (*shape, *member) {
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
		if why := m.unwell(now, p.opts.MaxAge); why != "" {
			p.count.unwell++
			p.discardLocked(m)
			continue
		}
		s.count.hits++
		return s, m
	}
	s.count.misses++
	return s, nil
}

// shapeLocked finds a shape or begins it. With mu held.
func (p *Pool) shapeLocked(t *template, now time.Time) *shape {
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
		p.work.Go(p.keep)
	}
	return s
}

// maxShapes is how many shapes are remembered: programs of many names, or with limits that each request chooses, are one each, and the keeper
// looks at all of them whenever somebody asks.
const maxShapes = 1024

// forgetLocked forgets the shape that was asked for longest ago, of those that have nothing. With mu held.
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

// nudge wakes the keeper.
func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Warm makes sure that shapes have a member from now on, whether they are asked for or not, and waits until they do, or can not.
// Specs are complete. What has nothing to wait for is left out. An error says what could not be made ready; requests are served all the same.
func (p *Pool) Warm(ctx context.Context, specs ...*sandbox.Spec) error {
	var wait []*shape
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return &sandbox.Error{Backend: p.Name(), Op: "warm", Kind: sandbox.ErrState, Err: errors.New("the pool is closed")}
	}
	for _, spec := range specs {
		if t, ok := p.templateOf(spec); ok {
			s := p.shapeLocked(t, time.Now())
			s.pinned = true
			wait = append(wait, s)
		}
	}
	p.mu.Unlock()
	p.nudge()
	var errs []error
	for _, s := range wait {
		errs = append(errs, p.await(ctx, s))
	}
	return errors.Join(errs...)
}

// await waits until a shape has what it needs, or making it has failed.
func (p *Pool) await(ctx context.Context, s *shape) error {
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

// Close discards every member and zygote, and closes the backend below. Sandboxes that were handed out must be destroyed before. Twice is fine.
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

// discardLocked ends a member in the background. With mu held.
func (p *Pool) discardLocked(m *member) {
	p.work.Go(func() {
		if err := m.destroy(context.Background()); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.count.undone++
		}
	})
}
