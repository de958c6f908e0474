package observe

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PoolStats is the state of a pool. Counts only grow.
type PoolStats struct {
	Hits, Misses      uint64 // requests that got a pooled sandbox, and that did not
	Warm, Fallbacks   uint64 // processes that started warm, and that started cold though prepared
	Refills, Failures uint64 // pooled sandboxes made, and failures to make one
	RefillTime        time.Duration
	RefillCPU         time.Duration
	Unwell, Evicted   uint64 // pooled sandboxes removed: unhealthy or old, or to make room
	Memory            uint64 // bytes in use by pooled sandboxes
	Shapes            []ShapeStats
}

// ShapeStats is the state of one shape.
type ShapeStats struct {
	Name             string
	Hits, Misses     uint64
	Members, Zygotes int
	Wanted           int
}

// mostShapes bounds the names of shapes that are counted separately.
const mostShapes = 32

// pools is a Prometheus collector that reads the pool's state at each scrape.
type pools struct {
	read   func() PoolStats
	names  growing
	whole  []poolMetric[PoolStats]
	shapes []poolMetric[ShapeStats]

	mu   sync.Mutex
	kept map[string]*kept
}

// poolMetric is a counter if its name ends in _total, and a gauge otherwise.
type poolMetric[T any] struct {
	name  string
	value func(*T) float64
	desc  *prometheus.Desc
}

func newPoolMetric[T any](name, help string, value func(*T) float64, labels ...string) poolMetric[T] {
	return poolMetric[T]{name, value, prometheus.NewDesc(prometheus.BuildFQName(namespace, "pool", name), help, labels, nil)}
}

func (m *poolMetric[T]) collect(to chan<- prometheus.Metric, from *T, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(m.name, "_total") {
		kind = prometheus.CounterValue
	}
	to <- prometheus.MustNewConstMetric(m.desc, kind, m.value(from), labels...)
}

// kept is the counters of one name. A pool forgets shapes without requests, and a counter must not fall.
type kept struct{ hits, misses lasting }

// lasting is a counter whose source may restart at zero.
type lasting struct{ base, last uint64 }

func (l *lasting) at(now uint64) uint64 {
	if now < l.last {
		l.base += l.last
	}
	l.last = now
	return l.base + now
}

func newPools(read func() PoolStats) *pools {
	return &pools{
		read: read, names: growing{most: mostShapes}, kept: map[string]*kept{},
		whole: []poolMetric[PoolStats]{
			newPoolMetric("hits_total", "Requests that got a pooled sandbox.", func(s *PoolStats) float64 { return float64(s.Hits) }),
			newPoolMetric("misses_total", "Requests for which a sandbox had to be made.",
				func(s *PoolStats) float64 { return float64(s.Misses) }),
			newPoolMetric("warm_starts_total", "Programs that started in a waiting process.",
				func(s *PoolStats) float64 { return float64(s.Warm) }),
			newPoolMetric("fallbacks_total", "Programs that started cold though a process was prepared.",
				func(s *PoolStats) float64 { return float64(s.Fallbacks) }),
			newPoolMetric("refills_total", "Pooled sandboxes made.", func(s *PoolStats) float64 { return float64(s.Refills) }),
			newPoolMetric("refill_failures_total", "Pooled sandboxes that could not be made.",
				func(s *PoolStats) float64 { return float64(s.Failures) }),
			newPoolMetric("refill_seconds_total", "Time spent on making pooled sandboxes.",
				func(s *PoolStats) float64 { return s.RefillTime.Seconds() }),
			newPoolMetric("refill_cpu_seconds_total", "CPU time spent on making pooled sandboxes.",
				func(s *PoolStats) float64 { return s.RefillCPU.Seconds() }),
			newPoolMetric("unwell_total", "Pooled sandboxes removed because they were dead, unhealthy or old.",
				func(s *PoolStats) float64 { return float64(s.Unwell) }),
			newPoolMetric("evicted_total", "Pooled sandboxes removed to make room.", func(s *PoolStats) float64 { return float64(s.Evicted) }),
			newPoolMetric("memory_bytes", "Memory that pooled sandboxes use.", func(s *PoolStats) float64 { return float64(s.Memory) }),
		},
		shapes: []poolMetric[ShapeStats]{
			newPoolMetric("shape_hits_total", "Requests that got a pooled sandbox, by shape.",
				func(s *ShapeStats) float64 { return float64(s.Hits) }, "shape"),
			newPoolMetric("shape_misses_total", "Requests for which a sandbox had to be made, by shape.",
				func(s *ShapeStats) float64 { return float64(s.Misses) }, "shape"),
			newPoolMetric("members", "Pooled sandboxes.", func(s *ShapeStats) float64 { return float64(s.Members) }, "shape"),
			newPoolMetric("zygotes", "Processes from which sandboxes are forked.",
				func(s *ShapeStats) float64 { return float64(s.Zygotes) }, "shape"),
			newPoolMetric("wanted_members", "Pooled sandboxes that the demand calls for.",
				func(s *ShapeStats) float64 { return float64(s.Wanted) }, "shape"),
		},
	}
}

func (p *pools) Describe(to chan<- *prometheus.Desc) {
	for _, m := range p.whole {
		to <- m.desc
	}
	for _, m := range p.shapes {
		to <- m.desc
	}
}

func (p *pools) Collect(to chan<- prometheus.Metric) {
	s := p.read()
	for _, m := range p.whole {
		m.collect(to, &s)
	}

	// Several shapes can have one name: the same language on two images.
	sums := map[string]ShapeStats{}
	for _, one := range s.Shapes {
		name := p.names.of(one.Name)
		sum := sums[name]
		sum.Hits += one.Hits
		sum.Misses += one.Misses
		sum.Members += one.Members
		sum.Zygotes += one.Zygotes
		sum.Wanted += one.Wanted
		sums[name] = sum
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range sums {
		if p.kept[name] == nil {
			p.kept[name] = &kept{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.kept)) {
		sum, k := sums[name], p.kept[name]
		sum.Hits, sum.Misses = k.hits.at(sum.Hits), k.misses.at(sum.Misses)
		for _, m := range p.shapes {
			m.collect(to, &sum, name)
		}
	}
}
