package docker

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	maxWarm   = 64
	maxShapes = 16               // of which containers are kept ready
	maxAge    = 10 * time.Minute // of one that nobody took
)

// refillPause is for whoever has just taken one: making the next would take the processors from what it runs.
const refillPause = 150 * time.Millisecond

// pool keeps containers ready, by shape. Each was made for one sandbox and serves one: what is taken never comes back.
type pool struct {
	b *Backend

	mu     sync.Mutex
	ready  map[string][]*box
	coming map[string]int
	recent []string // shapes, the one last asked for at the end
}

// take returns a container that is ready, or nil.
func (p *pool) take(s *shape) *box {
	if p.b.opts.Warm == 0 {
		return nil
	}
	key := s.key()
	p.mu.Lock()
	defer p.mu.Unlock()
	for list := p.ready[key]; len(list) > 0; list = p.ready[key] {
		c := list[0]
		p.ready[key] = list[1:]
		if c.alive() {
			return c
		}
		p.discard(c) // killed from outside, or with its daemon: nobody's request fails because of it
	}
	return nil
}

func (c *box) alive() bool {
	select {
	case <-c.session.done:
		return false
	default:
		return time.Since(c.made) < maxAge
	}
}

func (p *pool) discard(c *box) { p.b.goBeside(func(context.Context) { _ = c.remove() }) }

// fill makes as many ready as are wanted, beside.
func (p *pool) fill(d *daemon, s *shape) {
	if p.b.opts.Warm == 0 {
		return
	}
	key := s.key()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready == nil {
		p.ready, p.coming = map[string][]*box{}, map[string]int{}
	}
	p.touch(key)
	for len(p.ready[key])+p.coming[key] < p.b.opts.Warm {
		p.coming[key]++
		pause := time.Duration(0)
		if len(p.ready[key]) > 0 {
			pause = refillPause
		}
		p.b.goBeside(func(ctx context.Context) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			c, err := p.b.launch(ctx, d, s)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.coming[key]--
			if err == nil { // else whoever needs one tries again, and has somebody to tell
				p.ready[key] = append(p.ready[key], c)
			}
		})
	}
}

// touch notes that a shape was asked for, and lets go of the one that was not for longest if there are too many.
func (p *pool) touch(key string) {
	for i, k := range p.recent {
		if k == key {
			p.recent = append(p.recent[:i], p.recent[i+1:]...)
			break
		}
	}
	p.recent = append(p.recent, key)
	if len(p.recent) <= maxShapes {
		return
	}
	oldest := p.recent[0]
	p.recent = p.recent[1:]
	for _, c := range p.ready[oldest] {
		p.discard(c)
	}
	delete(p.ready, oldest)
}

// empty ends all that are left. Nothing is on its way any more.
func (p *pool) empty() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, list := range p.ready {
		for _, c := range list {
			wg.Go(func() {
				err := c.remove()
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
	}
	wg.Wait()
	p.ready = nil
	return errors.Join(errs...)
}
