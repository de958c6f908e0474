package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Stats are what a pool has done, and has now.
type Stats struct {
	// Hits were given a member; Misses found none, and were made a sandbox.
	Hits, Misses uint64
	// Warm are processes that were woken or forked; Fallbacks those that were to be, and were started cold.
	Warm, Fallbacks uint64
	// Refills are members made, with what that took; Failures those that could not be.
	Refills, Failures uint64
	RefillTime        time.Duration
	RefillCPU         time.Duration
	// Unwell are members that were found dead, talkative or old; Evicted those that had to make room.
	Unwell, Evicted uint64
	// Undone are members that could not be removed whole.
	Undone uint64
	// Forked are zygotes that were made.
	Forked uint64

	Members, Zygotes, Filling int
	Memory                    sandbox.Size
	// Shapes are those there are now, the most used first.
	Shapes []ShapeStats
}

// ShapeStats are of one shape of sandbox: one language, one image, one policy.
type ShapeStats struct {
	Name                      string // of what waits in it: "node"
	Hits, Misses              uint64
	Warm, Fallbacks           uint64
	Refills, Failures         uint64
	RefillTime                time.Duration
	RefillCPU                 time.Duration
	Members, Zygotes, Filling int
	Wanted                    int
	Rate                      float64 // requests a second
	Memory                    sandbox.Size
	Problem                   string // why the latest could not be made
}

// shapeCounters only ever grow.
type shapeCounters struct {
	hits, misses, warm, fallbacks, refills, failures, zygotes uint64
	refillTime, refillCPU                                     time.Duration
}

// counters are of the pool as a whole, with those of shapes that are forgotten.
type counters struct {
	shapeCounters
	unwell, evicted, undone uint64
}

func (c *shapeCounters) add(o *shapeCounters) {
	c.hits += o.hits
	c.misses += o.misses
	c.warm += o.warm
	c.fallbacks += o.fallbacks
	c.refills += o.refills
	c.failures += o.failures
	c.zygotes += o.zygotes
	c.refillTime += o.refillTime
	c.refillCPU += o.refillCPU
}

// served counts a process that was woken or forked.
func (p *Pool) served(s *shape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.count.warm++
}

// fellBack counts one that was not.
func (p *Pool) fellBack(s *shape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.count.fallbacks++
}

// Stats says how it stands.
func (p *Pool) Stats() Stats {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.count.shapeCounters
	st := Stats{Unwell: p.count.unwell, Evicted: p.count.evicted, Undone: p.count.undone}
	for _, s := range p.shapes {
		sum.add(&s.count)
		one := ShapeStats{
			Name: s.names, Hits: s.count.hits, Misses: s.count.misses, Warm: s.count.warm, Fallbacks: s.count.fallbacks,
			Refills: s.count.refills, Failures: s.count.failures, RefillTime: s.count.refillTime, RefillCPU: s.count.refillCPU,
			Members: len(s.ready), Filling: s.filling, Wanted: s.wants(now, &p.opts), Rate: s.rate(now),
			Memory: sandbox.Size(len(s.ready)) * s.memory,
		}
		if s.zygote != nil {
			one.Zygotes = len(s.zygote.phases)
		}
		if s.failed != nil {
			one.Problem = s.failed.Error()
		}
		st.Members += one.Members
		st.Zygotes += one.Zygotes
		st.Filling += one.Filling
		st.Memory += one.Memory
		st.Shapes = append(st.Shapes, one)
	}
	slices.SortFunc(st.Shapes, func(a, b ShapeStats) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Name, b.Name))
	})
	st.Hits, st.Misses, st.Warm, st.Fallbacks = sum.hits, sum.misses, sum.warm, sum.fallbacks
	st.Refills, st.Failures, st.Forked = sum.refills, sum.failures, sum.zygotes
	st.RefillTime, st.RefillCPU = sum.refillTime, sum.refillCPU
	return st
}
