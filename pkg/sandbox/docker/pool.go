package docker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	maxWarm     = 64
	maxSettings = 16               // different settings of prepared containers
	maxAge      = 10 * time.Minute // of an unused prepared container
)

// refillPause delays a refill: making a container would take CPU time from the program that has just got one.
const refillPause = 150 * time.Millisecond

// pool keeps prepared containers, by settings. Each serves one sandbox and never comes back.
type pool struct {
	b *Backend

	mu     sync.Mutex
	ready  map[string][]*readyContainer
	coming map[string]int
	recent []string // keys of settings, the most recent at the end
}

// take returns a prepared container, or nil.
func (p *pool) take(s *settings) *readyContainer {
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
		p.discard(c) // killed from outside, or with its daemon: no request fails because of it
	}
	return nil
}

func (c *readyContainer) alive() bool {
	select {
	case <-c.connection.done:
		return false
	default:
		return time.Since(c.made) < maxAge
	}
}

func (p *pool) discard(c *readyContainer) {
	p.b.runBackground(func(context.Context) { _ = c.remove() })
}

// fill starts making containers in the background until Options.Warm are ready.
func (p *pool) fill(d *daemon, s *settings) {
	if p.b.opts.Warm == 0 {
		return
	}
	key := s.key()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready == nil {
		p.ready, p.coming = map[string][]*readyContainer{}, map[string]int{}
	}
	p.touch(key)
	for len(p.ready[key])+p.coming[key] < p.b.opts.Warm {
		p.coming[key]++
		pause := time.Duration(0)
		if len(p.ready[key]) > 0 {
			pause = refillPause
		}
		p.b.runBackground(func(ctx context.Context) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			c, err := p.b.newContainer(ctx, d, s)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.coming[key]--
			if err == nil { // else the next Create tries again and returns the error
				p.ready[key] = append(p.ready[key], c)
			}
		})
	}
}

// touch records the use of settings, and drops the containers of the least recent ones if there are too many.
func (p *pool) touch(key string) {
	p.recent = append(slices.DeleteFunc(p.recent, func(k string) bool { return k == key }), key)
	if len(p.recent) <= maxSettings {
		return
	}
	oldest := p.recent[0]
	p.recent = p.recent[1:]
	for _, c := range p.ready[oldest] {
		p.discard(c)
	}
	delete(p.ready, oldest)
}

// empty removes all containers of the pool. No refill runs any more.
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
