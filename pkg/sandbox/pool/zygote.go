package pool

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// zygote is the processes that a shape's processes are forked from, one for each phase that has any. Guarded by Pool.mu but for the
// zygotes themselves.
type zygote struct {
	phases map[string]sandbox.Zygote
	made   time.Time
	forks  int
	users  int  // running forks
	old    bool // to be closed after the last use
}

// alive reports whether all its processes run.
func (z *zygote) alive() bool {
	for _, each := range z.phases {
		select {
		case <-each.Done():
			return false
		default:
		}
	}
	return true
}

// isSpent reports whether it has reached the given part of its maximum age or number of forks.
func (z *zygote) isSpent(now time.Time, o *Options, part float64) bool {
	return now.Sub(z.made) > time.Duration(part*float64(o.ZygoteAge)) || float64(z.forks) >= part*float64(o.ZygoteForks)
}

// successor is the part at which the next zygote is made: requests are still forked from this one meanwhile.
const successor = 0.8

// zygoteRef is a zygote in use, which is not closed before releaseZygote.
type zygoteRef struct {
	sandbox.Zygote
	of *zygote
}

// acquireZygote returns a shape's zygote for a process, or nil.
func (p *Pool) acquireZygote(s *shape, like *sandbox.Process) *zygoteRef {
	if like == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	z := s.zygote
	if z == nil || !z.alive() {
		p.wakeRefill()
		return nil
	}
	each := z.phases[like.Phase]
	if each == nil {
		return nil
	}
	z.users++
	z.forks++
	return &zygoteRef{each, z}
}

func (p *Pool) releaseZygote(l *zygoteRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.of.users--; l.of.old && l.of.users == 0 {
		p.closeZygoteLocked(l.of)
	}
}

// retireLocked closes a shape's zygote after its last use: running forks continue. The caller holds mu.
func (p *Pool) retireLocked(s *shape) {
	z := s.zygote
	if z == nil {
		return
	}
	s.zygote = nil
	if z.old = true; z.users == 0 {
		p.closeZygoteLocked(z)
	}
}

func (p *Pool) closeZygoteLocked(z *zygote) {
	p.work.Go(func() {
		for _, each := range z.phases {
			_ = each.Close() // the next start collects what is left
		}
	})
}

// forkedLike is the process of a shape that p can be forked as, or nil. A fork gets its pipes with its request, merged or not.
func (t *shapeSpec) forkedLike(p *sandbox.Process) *sandbox.Process {
	apart := *p
	apart.MergeOutput = false
	p = &apart
	for n := range t.fork {
		if f := &t.fork[n]; f.Phase == p.Phase && canBecome(f, p) {
			return f
		}
	}
	return nil
}

// addForks adds waiting forks to a pooled sandbox. Processes without one are forked on request.
func (p *Pool) addForks(s *shape, m *pooled, c *cost) {
	began := time.Now()
	m.forks = make([]sandbox.Fork, len(s.t.fork))
	for n := range s.t.fork {
		like := s.t.fork[n]
		z := p.acquireZygote(s, &like)
		if z == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(p.lives, p.opts.ReadyTimeout)
		if f, err := z.Fork(ctx, m.inner, &like); err == nil {
			m.forks[n] = f
			c.memory += 1 * sandbox.MiB // memory that it does not share with its zygote
		}
		cancel()
		p.releaseZygote(z)
	}
	c.time += time.Since(began)
}

// makeZygote starts a zygote for each process of a shape that can be forked.
func (p *Pool) makeZygote(ctx context.Context, t *shapeSpec) (*zygote, error) {
	z := &zygote{phases: map[string]sandbox.Zygote{}}
	ctx, cancel := context.WithTimeout(ctx, p.opts.ReadyTimeout)
	defer cancel()
	for i := range t.fork {
		process, spec := t.fork[i], t.spec
		made, err := p.forker.Prepare(ctx, &spec, &process)
		if err != nil {
			for _, each := range z.phases {
				err = errors.Join(err, each.Close())
			}
			return nil, err
		}
		z.phases[process.Phase] = made
	}
	z.made = time.Now()
	return z, nil
}
