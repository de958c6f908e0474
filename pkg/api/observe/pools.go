package observe

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PoolStats is how sandboxes that were made beforehand stand. Counts only grow.
type PoolStats struct {
	Hits, Misses      uint64 // requests that found a member, and that did not
	Warm, Fallbacks   uint64 // processes that were woken or forked, and those that were to be and were started cold
	Refills, Failures uint64 // members made, and those that could not be
	RefillTime        time.Duration
	RefillCPU         time.Duration
	Unwell, Evicted   uint64 // members thrown away: dead or old, or to make room
	Memory            uint64 // bytes held
	Shapes            []ShapeStats
}

// ShapeStats are of what waits for one kind of program.
type ShapeStats struct {
	Name             string
	Hits, Misses     uint64
	Members, Zygotes int
	Wanted           int
}

// mostShapes bounds the names of shapes that are told apart.
const mostShapes = 32

// pools asks the pool when somebody asks for metrics.
type pools struct {
	ask   func() PoolStats
	names growing

	hits, misses, warm, fallbacks, refills, failures *prometheus.Desc
	refillTime, refillCPU, unwell, evicted, memory   *prometheus.Desc
	shapeHits, shapeMisses                           *prometheus.Desc
	members, zygotes, wanted                         *prometheus.Desc

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is the count of a name. A pool forgets shapes that nobody asks for, and a counter must not fall.
type kept struct{ hits, misses lasting }

type lasting struct{ base, last uint64 }

func (l *lasting) at(now uint64) float64 {
	if now < l.last {
		l.base += l.last
	}
	l.last = now
	return float64(l.base + now)
}

func newPools(ask func() PoolStats) *pools {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "pool", name), help, labels, nil)
	}
	return &pools{
		ask: ask, names: growing{most: mostShapes}, kept: map[string]*kept{},
		hits:        desc("hits_total", "Sandboxes that were there when they were asked for."),
		misses:      desc("misses_total", "Sandboxes that had to be made."),
		warm:        desc("warm_starts_total", "Programs that began in a process that was waiting."),
		fallbacks:   desc("fallbacks_total", "Programs that were to begin so, and were started cold."),
		refills:     desc("refills_total", "Sandboxes made beforehand."),
		failures:    desc("refill_failures_total", "Sandboxes that could not be made beforehand."),
		refillTime:  desc("refill_seconds_total", "Time it took to make sandboxes beforehand."),
		refillCPU:   desc("refill_cpu_seconds_total", "CPU time it took to make sandboxes beforehand."),
		unwell:      desc("unwell_total", "Members thrown away because they had died, spoken or aged."),
		evicted:     desc("evicted_total", "Members thrown away to make room."),
		memory:      desc("memory_bytes", "Memory that members hold."),
		shapeHits:   desc("shape_hits_total", "Sandboxes that were there when they were asked for, by shape.", "shape"),
		shapeMisses: desc("shape_misses_total", "Sandboxes that had to be made, by shape.", "shape"),
		members:     desc("members", "Sandboxes that wait.", "shape"),
		zygotes:     desc("zygotes", "Processes that sandboxes are forked from.", "shape"),
		wanted:      desc("wanted_members", "Sandboxes that should be waiting, by demand.", "shape"),
	}
}

func (p *pools) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		p.hits, p.misses, p.warm, p.fallbacks, p.refills, p.failures, p.refillTime, p.refillCPU, p.unwell, p.evicted, p.memory,
		p.shapeHits, p.shapeMisses, p.members, p.zygotes, p.wanted,
	} {
		to <- d
	}
}

func (p *pools) Collect(to chan<- prometheus.Metric) {
	s := p.ask()
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count(p.hits, float64(s.Hits))
	count(p.misses, float64(s.Misses))
	count(p.warm, float64(s.Warm))
	count(p.fallbacks, float64(s.Fallbacks))
	count(p.refills, float64(s.Refills))
	count(p.failures, float64(s.Failures))
	count(p.refillTime, s.RefillTime.Seconds())
	count(p.refillCPU, s.RefillCPU.Seconds())
	count(p.unwell, float64(s.Unwell))
	count(p.evicted, float64(s.Evicted))
	gauge(p.memory, float64(s.Memory))

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
		count(p.shapeHits, k.hits.at(sum.Hits), name)
		count(p.shapeMisses, k.misses.at(sum.Misses), name)
		gauge(p.members, float64(sum.Members), name)
		gauge(p.zygotes, float64(sum.Zygotes), name)
		gauge(p.wanted, float64(sum.Wanted), name)
	}
}
