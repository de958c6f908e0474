package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Stats are the counters and the current state of a pool.
type Stats struct {
	// Hits are requests that got a pooled sandbox; Misses are requests for which a sandbox was made.
	Hits, Misses uint64
	// Warm are processes that were woken or forked; Fallbacks those that should have been, and started cold.
	Warm, Fallbacks uint64
	// Refills are pooled sandboxes that were made, with the time that took; Failures those that could not be made.
	Refills, Failures uint64
	RefillTime        time.Duration
	RefillCPU         time.Duration
	// Unhealthy are pooled sandboxes that were dead, had written output, or were too old; Evicted those that had to make room.
	Unhealthy, Evicted uint64
	// Undone are pooled sandboxes that could not be removed completely.
	Undone uint64
	// Forked are zygotes that were made.
	Forked uint64

	Sandboxes, Zygotes, Filling int
	Memory                      sandbox.Size
	// Shapes are the current shapes, the most used first.
	Shapes []ShapeStats
}

// ShapeStats are the state and counters of one shape: one language, one image, one policy.
type ShapeStats struct {
	Name                        string // of the waiting processes: "node"
	Hits, Misses                uint64
	Warm, Fallbacks             uint64
	Refills, Failures           uint64
	RefillTime                  time.Duration
	RefillCPU                   time.Duration
	Sandboxes, Zygotes, Filling int
	Wanted                      int
	Rate                        float64 // requests per second
	Memory                      sandbox.Size
	Problem                     string // the error of the latest refill
}

// shapeCounters never decrease.
type shapeCounters struct {
	hits, misses, warm, fallbacks, refills, failures, zygotes uint64
	refillTime, refillCPU                                     time.Duration
}

// counters are those of the whole pool, with those of forgotten shapes.
type counters struct {
	shapeCounters
	unhealthy, evicted, undone uint64
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

// increment adds one to a counter of a shape.
func (p *Pool) increment(counter *uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*counter++
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.count.shapeCounters
	st := Stats{Unhealthy: p.count.unhealthy, Evicted: p.count.evicted, Undone: p.count.undone}
	for _, s := range p.shapes {
		sum.add(&s.count)
		one := ShapeStats{
			Name: s.names, Hits: s.count.hits, Misses: s.count.misses, Warm: s.count.warm, Fallbacks: s.count.fallbacks,
			Refills: s.count.refills, Failures: s.count.failures, RefillTime: s.count.refillTime, RefillCPU: s.count.refillCPU,
			Sandboxes: len(s.ready), Filling: s.filling, Wanted: s.wants(now, &p.opts), Rate: s.rate(now),
			Memory: sandbox.Size(len(s.ready)) * s.memory,
		}
		if s.zygote != nil {
			one.Zygotes = len(s.zygote.phases)
		}
		if s.failed != nil {
			one.Problem = s.failed.Error()
		}
		st.Sandboxes += one.Sandboxes
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
