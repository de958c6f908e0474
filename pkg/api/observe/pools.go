package observe

import (
	"maps"
	"slices"
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
	read  func() PoolStats
	names growing

	hits, misses, warm, fallbacks, refills, failures *prometheus.Desc
	refillTime, refillCPU, unwell, evicted, memory   *prometheus.Desc
	shapeHits, shapeMisses                           *prometheus.Desc
	members, zygotes, wanted                         *prometheus.Desc

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is the counters of one name. A pool forgets shapes without requests, and a counter must not fall.
type kept struct{ hits, misses lasting }

// lasting is a counter whose source may restart at zero.
type lasting struct{ base, last uint64 }

func (l *lasting) at(now uint64) float64 {
	if now < l.last {
		l.base += l.last
	}
	l.last = now
	return float64(l.base + now)
}

func newPools(read func() PoolStats) *pools {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "pool", name), help, labels, nil)
	}
	return &pools{
		read: read, names: growing{most: mostShapes}, kept: map[string]*kept{},
		hits:        desc("hits_total", "Requests that got a pooled sandbox."),
		misses:      desc("misses_total", "Requests for which a sandbox had to be made."),
		warm:        desc("warm_starts_total", "Programs that started in a waiting process."),
		fallbacks:   desc("fallbacks_total", "Programs that started cold though a process was prepared."),
		refills:     desc("refills_total", "Pooled sandboxes made."),
		failures:    desc("refill_failures_total", "Pooled sandboxes that could not be made."),
		refillTime:  desc("refill_seconds_total", "Time spent on making pooled sandboxes."),
		refillCPU:   desc("refill_cpu_seconds_total", "CPU time spent on making pooled sandboxes."),
		unwell:      desc("unwell_total", "Pooled sandboxes removed because they were dead, unhealthy or old."),
		evicted:     desc("evicted_total", "Pooled sandboxes removed to make room."),
		memory:      desc("memory_bytes", "Memory that pooled sandboxes use."),
		shapeHits:   desc("shape_hits_total", "Requests that got a pooled sandbox, by shape.", "shape"),
		shapeMisses: desc("shape_misses_total", "Requests for which a sandbox had to be made, by shape.", "shape"),
		members:     desc("members", "Pooled sandboxes.", "shape"),
		zygotes:     desc("zygotes", "Processes from which sandboxes are forked.", "shape"),
		wanted:      desc("wanted_members", "Pooled sandboxes that the demand calls for.", "shape"),
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
	s := p.read()
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
