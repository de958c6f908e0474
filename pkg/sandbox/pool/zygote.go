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

// borrow returns a shape's zygote of a phase, or nil.
func (p *Pool) borrow(s *shape, phase string) *loan {
	p.mu.Lock()
	defer p.mu.Unlock()
	z := s.zygote
	if z == nil || !z.lives() {
		p.nudge()
		return nil
	}
	each := z.phases[phase]
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
