package pool

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// How often the keeper looks, how often when there is something to do, and how long it holds back for requests that wait.
const (
	lookEvery = time.Second
	lookSoon  = 10 * time.Millisecond
	holdBack  = 100 * time.Millisecond
	// courtesy is for how long a program that was started, or a compiler, has the machine's cores before what it used up is made again, unless it
	// ends sooner.
	courtesy = holdBack
	// parting is for how long it still has them then: somebody has to be told how it ended.
	parting = 2 * time.Millisecond
	// retryAfter is how soon what could not be made is tried again at first.
	retryAfter = 100 * time.Millisecond
)

// keep looks after the members until the pool is closed.
func (p *Pool) keep() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-p.lives.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		if p.look(time.Now()) {
			timer.Reset(lookSoon)
		} else {
			timer.Reset(lookEvery)
		}
	}
}

// look drops what is not needed, begins to make what is, and reports whether more is to be made as soon as may be.
func (p *Pool) look(now time.Time) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.sweepLocked(now)
	p.shrinkLocked(now)        // what was being made when memory became short
	unfit := map[*shape]bool{} // there is no room for another of these
	for {
		s := p.neediestLocked(now, unfit)
		if s == nil {
			return false
		}
		if p.filling >= p.opts.Parallel || !p.budget.has(now) || p.busyLocked(now) && !s.short(now) {
			return true
		}
		if !p.makeRoomLocked(s, now) {
			unfit[s] = true
			continue
		}
		p.held = time.Time{}
		p.fillLocked(s, now)
	}
}

// short reports whether requests come faster than members are made, and there is none: to wait for a quiet moment is no use, the next
// request makes its sandbox itself.
func (s *shape) short(now time.Time) bool { return len(s.ready) == 0 && s.used(now) >= 1 }

// busyLocked: requests come first, but not for ever: without members they only take longer. Making one more takes about a core, so half of them
// have to be free of programs that have just begun.
func (p *Pool) busyLocked(now time.Time) bool {
	if int(p.starting.Load()) < max(1, runtime.GOMAXPROCS(0)/2) && (p.opts.Busy == nil || !p.opts.Busy()) {
		p.held = time.Time{}
		return false
	}
	if p.held.IsZero() {
		p.held = now
	}
	return now.Sub(p.held) < holdBack
}

// firstMoments keeps the keeper from what a program that is handed out would have to share its first moments with, until leave is called, or
// for a while.
func (p *Pool) firstMoments() (leave func()) {
	p.starting.Add(1)
	leave = sync.OnceFunc(func() {
		p.starting.Add(-1)
		p.nudge()
	})
	time.AfterFunc(courtesy, leave)
	return leave
}

// sweepLocked drops members that are unwell, too many, or of no use any more, zygotes that are to be replaced, and shapes that nobody asks for.
func (p *Pool) sweepLocked(now time.Time) {
	for key, s := range p.shapes {
		keep := s.ready[:0:0]
		most := s.wants(now, &p.opts)
		for _, m := range s.ready {
			switch {
			case m.unwell(now, p.opts.MaxAge) != "":
				p.count.unwell++
				p.discardLocked(m)
			case most == 0 || len(keep) > most: // one more than needed does no harm, and demand goes up and down
				p.discardLocked(m)
			default:
				keep = append(keep, m)
			}
		}
		s.ready = keep
		if z := s.zygote; z != nil && (most == 0 || !z.lives() || z.spent(now, &p.opts, 1)) {
			p.retireLocked(s)
		}
		if most == 0 && now.Sub(s.seen) > p.opts.Keep && s.idle() {
			p.count.add(&s.count)
			delete(p.shapes, key)
		}
	}
}

// neediestLocked is the shape that lacks most of what it wants, but for some, or nil.
func (p *Pool) neediestLocked(now time.Time, but map[*shape]bool) (most *shape) {
	var need float64
	for _, s := range p.shapes {
		if now.Before(s.retry) || but[s] {
			continue
		}
		want := s.wants(now, &p.opts)
		if want == 0 {
			continue
		}
		lack := float64(want-len(s.ready)-s.filling) / float64(want)
		if s.lacksZygote(now, &p.opts) {
			if lack = max(lack, 1); s.zygote == nil {
				lack = 2 // every request starts cold meanwhile
			}
		}
		if lack > need || lack > 0 && lack == need && s.rate(now) > most.rate(now) {
			most, need = s, lack
		}
	}
	return most
}

// makeRoomLocked sees to it that one more fits, at the cost of shapes that are used less. With mu held.
func (p *Pool) makeRoomLocked(s *shape, now time.Time) bool {
	for {
		memory, members := p.heldLocked()
		if members < p.opts.Members && memory+s.memoryEach() <= p.most {
			return true
		}
		others := make([]*shape, 0, len(p.shapes))
		for _, o := range p.shapes {
			if o != s && (len(o.ready) > 0 || o.zygote != nil) && o.lessUsed(s, now) {
				others = append(others, o)
			}
		}
		if len(others) == 0 {
			return false
		}
		least := slices.MinFunc(others, func(a, b *shape) int {
			if a.lessUsed(b, now) {
				return -1
			}
			return 1
		})
		if len(least.ready) > 0 {
			p.discardLocked(least.ready[0])
			least.ready = least.ready[1:]
		} else {
			p.retireLocked(least)
		}
		p.count.evicted++
	}
}

// Shrink gives up half of what waits, members before zygotes and those that are used least first, and makes nothing in its place until Grow is called. Called
// again and again it gives up everything: requests are then served cold.
func (p *Pool) Shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	memory, members := p.heldLocked()
	if p.most = min(p.most, memory/2); members <= 1 {
		p.most = 0
	}
	p.shrinkLocked(time.Now())
}

// Grow lets it have all that it may again.
func (p *Pool) Grow() {
	p.mu.Lock()
	p.most = p.opts.Memory
	p.mu.Unlock()
	p.nudge()
}

// shrinkLocked gives up what is too much while memory is short. With mu held.
func (p *Pool) shrinkLocked(now time.Time) {
	if p.most == p.opts.Memory || p.closed {
		return
	}
	for {
		memory, _ := p.heldLocked()
		if memory <= p.most {
			return
		}
		var least *shape
		for _, s := range p.shapes {
			members, others := len(s.ready) > 0, least != nil && len(least.ready) > 0
			switch {
			case !members && s.zygote == nil:
			case least == nil, members && !others, members == others && s.lessUsed(least, now):
				least = s
			}
		}
		switch {
		case least == nil:
			return // the rest is being made
		case len(least.ready) > 0:
			p.discardLocked(least.ready[0])
			least.ready = least.ready[1:]
		default:
			p.retireLocked(least)
		}
		p.count.evicted++
	}
}

// lessUsed orders shapes by demand; those that are to be there anyway come last.
func (s *shape) lessUsed(than *shape, now time.Time) bool {
	if s.pinned != than.pinned {
		return than.pinned
	}
	return cmp.Or(cmp.Compare(s.rate(now), than.rate(now)), s.seen.Compare(than.seen)) < 0
}

// heldLocked is what members and zygotes take, those that are being made included.
func (p *Pool) heldLocked() (memory sandbox.Size, members int) {
	for _, s := range p.shapes {
		n := len(s.ready) + s.filling
		members += n
		memory += sandbox.Size(n) * s.memoryEach()
		if s.zygote != nil {
			memory += guessedMemory
		}
		if s.hatches {
			memory += guessedMemory
		}
	}
	return memory, members
}

// fillLocked makes a zygote or a member of a shape in the background. With mu held.
func (p *Pool) fillLocked(s *shape, now time.Time) {
	hatch := s.lacksZygote(now, &p.opts)
	if hatch {
		s.hatches = true
	} else {
		s.filling++
	}
	p.filling++
	p.budget.take(s.cpuEach())
	p.work.Go(func() {
		if hatch {
			p.hatch(s)
		} else {
			p.fill(s)
		}
		p.nudge()
	})
}

// fill makes one member.
func (p *Pool) fill(s *shape) {
	m, c, err := s.t.make(p.lives, p.inner, p.opts.Patience)
	if err == nil && s.forks {
		p.conceive(s, m, &c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling--
	s.filling--
	p.budget.take(c.cpu - s.cpuEach())
	if p.failedLocked(s, err) {
		return
	}
	s.learn(c.time, c.cpu, c.memory)
	s.count.refills++
	s.count.refillTime += c.time
	s.count.refillCPU += c.cpu
	if p.closed || p.shapes[s.key] != s {
		p.discardLocked(m)
		return
	}
	s.ready = append(s.ready, m)
}

// hatch makes a zygote, in the place of the one there was.
func (p *Pool) hatch(s *shape) {
	z, err := p.prepare(p.lives, s.t)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling--
	s.hatches = false
	if p.failedLocked(s, err) {
		return
	}
	s.count.zygotes++
	p.retireLocked(s)
	s.zygote = z
	if p.closed || p.shapes[s.key] != s {
		p.retireLocked(s)
	}
}

// failedLocked notes a failure: the next attempt comes later each time. With mu held.
func (p *Pool) failedLocked(s *shape, err error) bool {
	if err == nil {
		s.failures, s.failed = 0, nil
		return false
	}
	if p.lives.Err() != nil {
		return true // nobody is to blame
	}
	s.count.failures++
	if s.failures++; s.failures == 1 && p.opts.OnFailure != nil {
		p.work.Go(func() { p.opts.OnFailure(s.names, err) })
	}
	s.failed = err
	s.retry = time.Now().Add(min(retryAfter<<min(s.failures-1, 10), time.Minute))
	return true
}

// bucket rations processor time.
type bucket struct {
	rate, most, left float64 // seconds
	at               time.Time
}

// burst is for how long nothing is rationed.
const burst = 4 // seconds

func newBucket(rate float64) bucket {
	return bucket{rate: rate, most: rate * burst, left: rate * burst}
}

func (b *bucket) has(now time.Time) bool {
	if !b.at.IsZero() {
		b.left = min(b.most, b.left+b.rate*max(0, now.Sub(b.at).Seconds()))
	}
	b.at = now
	return b.left > 0
}

func (b *bucket) take(d time.Duration) { b.left -= d.Seconds() }
