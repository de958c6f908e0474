package pool

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// zygote is what processes of a shape are forked from, one for each phase that has any. Guarded by Pool.mu but for the zygotes themselves.
type zygote struct {
	phases map[string]sandbox.Zygote
	made   time.Time
	forks  int
	users  int  // forks under way
	old    bool // to be closed when nobody uses it
}

// lives reports whether all of it is there.
func (z *zygote) lives() bool {
	for _, each := range z.phases {
		select {
		case <-each.Done():
			return false
		default:
		}
	}
	return true
}

// spent reports whether it has served its time or its number, or soon will have, by so much of both: from then on the next one is made.
func (z *zygote) spent(now time.Time, o *Options, part float64) bool {
	return now.Sub(z.made) > time.Duration(part*float64(o.ZygoteAge)) || float64(z.forks) >= part*float64(o.ZygoteForks)
}

// successor is how much of its time and number a zygote has served when the next one is begun: requests go on being forked meanwhile.
const successor = 0.8

// loan is a zygote that is not closed until it is given back.
type loan struct {
	sandbox.Zygote
	of *zygote
}

// borrow returns a shape's zygote for a process, or nil.
func (p *Pool) borrow(s *shape, like *sandbox.Process) *loan {
	if like == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	z := s.zygote
	if z == nil || !z.lives() {
		p.nudge()
		return nil
	}
	each := z.phases[like.Phase]
	if each == nil {
		return nil
	}
	z.users++
	z.forks++
	return &loan{each, z}
}

func (p *Pool) giveBack(l *loan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.of.users--; l.of.old && l.of.users == 0 {
		p.closeZygoteLocked(l.of)
	}
}

// retireLocked has a shape's zygote closed as soon as nobody uses it: forks that run go on. With mu held.
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
			_ = each.Close() // what is left is for the next start to find
		}
	})
}

// forkedLike is the template of a process that can be forked, or nil.
func (t *template) forkedLike(p *sandbox.Process) *sandbox.Process {
	for n := range t.fork {
		if f := &t.fork[n]; f.Phase == p.Phase && serves(f, p) {
			return f
		}
	}
	return nil
}

// conceive has forks wait in a member. What there is no fork for is forked when it is asked for.
func (p *Pool) conceive(s *shape, m *member, c *cost) {
	began := time.Now()
	m.forks = make([]sandbox.Fork, len(s.t.fork))
	for n := range s.t.fork {
		like := s.t.fork[n]
		z := p.borrow(s, &like)
		if z == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(p.lives, p.opts.Patience)
		if f, err := z.Fork(ctx, m.inner, &like); err == nil {
			m.forks[n] = f
			c.memory += 1 * sandbox.MiB // what it does not share with its zygote
		}
		cancel()
		p.giveBack(z)
	}
	c.time += time.Since(began)
}

// prepare makes a zygote for each process of a shape that can be forked.
func (p *Pool) prepare(ctx context.Context, t *template) (*zygote, error) {
	z := &zygote{phases: map[string]sandbox.Zygote{}}
	ctx, cancel := context.WithTimeout(ctx, p.opts.Patience)
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
