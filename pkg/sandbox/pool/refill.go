package pool

import (
	"cmp"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Intervals of the refill loop: when idle, when there is work, and how long it delays refills for waiting requests.
const (
	adjustEvery = time.Second
	adjustSoon  = 10 * time.Millisecond
	holdBack    = 100 * time.Millisecond
	// courtesy is how long a started program, or a compiler, has the machine's cores before its pooled sandbox is replaced, unless
	// it ends sooner.
	courtesy = holdBack
	// parting is how long it still has them after its end, so that its result is delivered first.
	parting = 2 * time.Millisecond
	// retryAfter is the first delay after a failed refill.
	retryAfter = 100 * time.Millisecond
)

// runRefillLoop keeps the shapes filled until the pool is closed.
func (p *Pool) runRefillLoop() {
	timer := time.NewTimer(adjustEvery)
	defer timer.Stop()
	looked := time.Now() // at the files of the host
	for {
		select {
		case <-p.lives.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		now := time.Now()
		if now.Sub(looked) >= adjustEvery {
			p.forgetOutdated()
			looked = now
		}
		if p.adjust(now) {
			timer.Reset(adjustSoon)
		} else {
			timer.Reset(adjustEvery)
		}
	}
}

// adjust drops what is not needed, starts the refills, and reports whether more are needed as soon as possible.
func (p *Pool) adjust(now time.Time) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.dropUnneededLocked(now)
	p.shrinkLocked(now)        // what was being made when memory became short
	unfit := map[*shape]bool{} // shapes without room for another pooled sandbox
	for {
		s := p.neediestLocked(now, unfit)
		if s == nil {
			return false
		}
		if p.filling >= p.opts.Parallel || !p.budget.has(now) || p.busyLocked(now) && !s.undersupplied(now) {
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

// undersupplied reports whether requests arrive faster than refills end, and no pooled sandbox is left: delaying a refill has no
// use then, because the next request makes its sandbox itself.
func (s *shape) undersupplied(now time.Time) bool { return len(s.ready) == 0 && s.used(now) >= 1 }

// busyLocked reports whether refills have to wait. Requests come first, but not for ever: without pooled sandboxes they only take
// longer. A refill takes about a core, so half of the cores must be free of programs that have just started.
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

// delayRefills delays refills while a program starts, until resume is called, or for a while.
func (p *Pool) delayRefills() (resume func()) {
	p.starting.Add(1)
	resume = sync.OnceFunc(func() {
		p.starting.Add(-1)
		p.wakeRefill()
	})
	time.AfterFunc(courtesy, resume)
	return resume
}

// dropUnneededLocked drops pooled sandboxes that are unhealthy, too many, or unused, zygotes that are to be replaced, and shapes
// without requests.
func (p *Pool) dropUnneededLocked(now time.Time) {
	for key, s := range p.shapes {
		keep := s.ready[:0:0]
		most := s.wants(now, &p.opts)
		for _, m := range s.ready {
			switch {
			case m.unhealthy(now, p.opts.MaxAge) != "":
				p.count.unhealthy++
				p.discardLocked(m)
			case most == 0 || len(keep) > most: // one more than needed may stay: demand goes up and down
				p.discardLocked(m)
			default:
				keep = append(keep, m)
			}
		}
		s.ready = keep
		if z := s.zygote; z != nil && (most == 0 || !z.alive() || z.isSpent(now, &p.opts, 1)) {
			p.retireLocked(s)
		}
		if most == 0 && now.Sub(s.seen) > p.opts.Keep && s.idle() {
			p.count.add(&s.count)
			delete(p.shapes, key)
		}
	}
}

// forgetOutdated forgets the shapes that are outdated, so that no pooled sandbox and no zygote goes on to show a removed layer.
func (p *Pool) forgetOutdated() {
	p.mu.Lock()
	shapes := slices.Collect(maps.Values(p.shapes))
	p.mu.Unlock()
	for _, s := range shapes {
		if s.t.outdated() { // without the lock: the disk may be slow
			p.mu.Lock()
			p.forgetShapeLocked(s)
			p.mu.Unlock()
		}
	}
}

// forgetShapeLocked forgets a shape with all that is prepared for it; what is being made is dropped when it is ready. The caller holds mu.
func (p *Pool) forgetShapeLocked(s *shape) {
	if p.shapes[s.key] != s {
		return
	}
	for _, m := range s.ready {
		p.discardLocked(m)
	}
	s.ready, s.failed = nil, errOutdated
	p.retireLocked(s)
	p.count.add(&s.count)
	delete(p.shapes, s.key)
}

// errOutdated is the failure of a shape that is outdated.
var errOutdated = errors.New("files of the host have changed")

// neediestLocked is the shape with the largest shortage, except those in but, or nil.
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
		if s.needsZygote(now, &p.opts) {
			if lack = max(lack, 1); s.zygote == nil {
				lack = 2 // without a zygote every request starts cold
			}
		}
		if lack > need || lack > 0 && lack == need && s.rate(now) > most.rate(now) {
			most, need = s, lack
		}
	}
	return most
}

// makeRoomLocked makes room for one more by dropping those of less used shapes, and reports success. The caller holds mu.
func (p *Pool) makeRoomLocked(s *shape, now time.Time) bool {
	for {
		memory, count := p.usageLocked()
		if count < p.opts.Sandboxes && memory+s.memoryEach() <= p.most {
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
		p.evictLocked(least)
	}
}

// evictLocked drops a pooled sandbox of a shape or, if it has none, its zygote. The caller holds mu.
func (p *Pool) evictLocked(s *shape) {
	if len(s.ready) > 0 {
		p.discardLocked(s.ready[0])
		s.ready = s.ready[1:]
	} else {
		p.retireLocked(s)
	}
	p.count.evicted++
}

// Shrink halves the memory of the pool: pooled sandboxes go before zygotes, and the least used first. Nothing is made in their
// place until Grow is called. Repeated calls drop everything: requests then start cold.
func (p *Pool) Shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	memory, count := p.usageLocked()
	if p.most = min(p.most, memory/2); count <= 1 {
		p.most = 0
	}
	p.shrinkLocked(time.Now())
}

// Grow undoes Shrink.
func (p *Pool) Grow() {
	p.mu.Lock()
	p.most = p.opts.Memory
	p.mu.Unlock()
	p.wakeRefill()
}

// shrinkLocked drops what exceeds the limit while memory is short. The caller holds mu.
func (p *Pool) shrinkLocked(now time.Time) {
	if p.most == p.opts.Memory || p.closed {
		return
	}
	for {
		memory, _ := p.usageLocked()
		if memory <= p.most {
			return
		}
		var least *shape
		for _, s := range p.shapes {
			filled, others := len(s.ready) > 0, least != nil && len(least.ready) > 0
			switch {
			case !filled && s.zygote == nil:
			case least == nil, filled && !others, filled == others && s.lessUsed(least, now):
				least = s
			}
		}
		if least == nil {
			return // the rest is being made
		}
		p.evictLocked(least)
	}
}

// lessUsed orders shapes by demand; pinned shapes come last.
func (s *shape) lessUsed(than *shape, now time.Time) bool {
	if s.pinned != than.pinned {
		return than.pinned
	}
	return cmp.Or(cmp.Compare(s.rate(now), than.rate(now)), s.seen.Compare(than.seen)) < 0
}

// usageLocked is the memory and the number of pooled sandboxes and zygotes, those being made included.
func (p *Pool) usageLocked() (memory sandbox.Size, count int) {
	for _, s := range p.shapes {
		n := len(s.ready) + s.filling
		count += n
		memory += sandbox.Size(n) * s.memoryEach()
		if s.zygote != nil {
			memory += guessedMemory
		}
		if s.makingZygote {
			memory += guessedMemory
		}
	}
	return memory, count
}

// fillLocked makes a zygote or a pooled sandbox of a shape in the background. The caller holds mu.
func (p *Pool) fillLocked(s *shape, now time.Time) {
	replaceZygote := s.needsZygote(now, &p.opts)
	if replaceZygote {
		s.makingZygote = true
	} else {
		s.filling++
	}
	p.filling++
	p.budget.take(s.cpuEach())
	p.work.Go(func() {
		if replaceZygote {
			p.replaceZygote(s)
		} else {
			p.refill(s)
		}
		p.wakeRefill()
	})
}

// refill makes one pooled sandbox.
func (p *Pool) refill(s *shape) {
	m, c, err := s.t.makeSandbox(p.lives, p.inner, p.opts.ReadyTimeout)
	if err == nil && s.forks {
		p.addForks(s, m, &c)
	}
	outdated := s.t.outdated() // after it was made: see there
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling--
	s.filling--
	p.budget.take(c.cpu - s.cpuEach())
	if outdated {
		p.forgetShapeLocked(s)
		if m != nil {
			p.discardLocked(m)
		}
		return
	}
	if p.failedLocked(s, err) {
		return
	}
	s.updateAverages(c.time, c.cpu, c.memory)
	s.count.refills++
	s.count.refillTime += c.time
	s.count.refillCPU += c.cpu
	if p.closed || p.shapes[s.key] != s {
		p.discardLocked(m)
		return
	}
	s.ready = append(s.ready, m)
}

// replaceZygote makes a zygote and retires the previous one.
func (p *Pool) replaceZygote(s *shape) {
	z, err := p.makeZygote(p.lives, s.t)
	outdated := s.t.outdated()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling--
	s.makingZygote = false
	if outdated {
		p.forgetShapeLocked(s)
		if z != nil {
			p.closeZygoteLocked(z)
		}
		return
	}
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

// failedLocked records a failure: the delay before the next attempt grows. The caller holds mu.
func (p *Pool) failedLocked(s *shape, err error) bool {
	if err == nil {
		s.failures, s.failed = 0, nil
		return false
	}
	if p.lives.Err() != nil {
		return true // the pool is closing
	}
	s.count.failures++
	if s.failures++; s.failures == 1 && p.opts.OnFailure != nil {
		p.work.Go(func() { p.opts.OnFailure(s.names, err) })
	}
	s.failed = err
	s.retry = time.Now().Add(min(retryAfter<<min(s.failures-1, 10), time.Minute))
	return true
}

// bucket rations CPU time.
type bucket struct {
	rate, most, left float64 // seconds
	at               time.Time
}

// burst is how many seconds of CPU time can be saved up.
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
