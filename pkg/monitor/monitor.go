package monitor

import (
	"encoding/json"
	"sync"
	"time"
)

// Sample is what a sandbox's counters say at one moment. Totals (CPU, I/O, Throttled, the counts) are since its start.
// A value the source does not have stays zero.
type Sample struct {
	At time.Time // when it was taken; set by the Monitor when zero

	CPUUser   time.Duration
	CPUSystem time.Duration
	Throttled time.Duration // held back by the CPU limit

	Memory     uint64 // bytes in use now
	MemoryPeak uint64 // highest so far, where the kernel keeps it
	IORead     uint64 // bytes
	IOWrite    uint64

	Processes     int // now
	ProcessesPeak int

	OOMKills         uint64 // processes killed for memory
	ProcessLimitHits uint64 // forks refused

	DiskUsed uint64 // bytes of scratch in use
	DiskFull bool   // a write was refused for lack of scratch
}

// sampleJSON is a sample by the names that Metrics have.
type sampleJSON struct {
	CPUUser          Seconds `json:"cpu_user"`
	CPUSystem        Seconds `json:"cpu_system"`
	Throttled        Seconds `json:"throttled_time"`
	Memory           uint64  `json:"memory_current"`
	MemoryPeak       uint64  `json:"memory_peak"`
	IORead           uint64  `json:"io_read_bytes"`
	IOWrite          uint64  `json:"io_write_bytes"`
	Processes        int     `json:"processes_current"`
	ProcessesPeak    int     `json:"processes_peak"`
	OOMKills         uint64  `json:"oom_kills"`
	ProcessLimitHits uint64  `json:"process_limit_hits,omitempty"`
	DiskUsed         uint64  `json:"disk_used_bytes,omitempty"`
	DiskFull         bool    `json:"disk_full,omitempty"`
}

// MarshalJSON writes a sample by the names that Metrics have.
func (s Sample) MarshalJSON() ([]byte, error) {
	return json.Marshal(sampleJSON{
		Seconds(s.CPUUser), Seconds(s.CPUSystem), Seconds(s.Throttled), s.Memory, s.MemoryPeak, s.IORead, s.IOWrite, s.Processes, s.ProcessesPeak,
		s.OOMKills, s.ProcessLimitHits, s.DiskUsed, s.DiskFull,
	})
}

// UnmarshalJSON reads what MarshalJSON writes; when it was taken is not in it.
func (s *Sample) UnmarshalJSON(b []byte) error {
	var j sampleJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*s = Sample{
		CPUUser: j.CPUUser.Duration(), CPUSystem: j.CPUSystem.Duration(), Throttled: j.Throttled.Duration(), Memory: j.Memory, MemoryPeak: j.MemoryPeak,
		IORead: j.IORead, IOWrite: j.IOWrite, Processes: j.Processes, ProcessesPeak: j.ProcessesPeak, OOMKills: j.OOMKills,
		ProcessLimitHits: j.ProcessLimitHits, DiskUsed: j.DiskUsed, DiskFull: j.DiskFull,
	}
	return nil
}

// Source gives samples. Sample should return quickly and may fail; it is called by one goroutine, and by those that call
// Peek beside it.
type Source interface {
	Sample() (Sample, error)
}

// SourceFunc makes a function a Source.
type SourceFunc func() (Sample, error)

// Sample calls f.
func (f SourceFunc) Sample() (Sample, error) { return f() }

// Defaults of Options.
const (
	DefaultInterval = 100 * time.Millisecond
	DefaultPatience = 100 * time.Millisecond
	minInterval     = time.Millisecond // less would measure the measuring
)

// Options of a Monitor; the zero value is useful.
type Options struct {
	Interval time.Duration // between samples; DefaultInterval when zero, negative for none but the final one
	OnSample func(Sample)  // called after each sample, with peaks filled in; a slow one makes samples rarer, not later
	Patience time.Duration // how long Finish waits for a sample or OnSample under way; DefaultPatience when zero

	Begin   time.Time     // when the program began; Start's time when zero
	Startup time.Duration // from the request to Begin: what making the sandbox took
}

// Monitor samples one source. Make it with Start.
type Monitor struct {
	source  Source
	options Options

	stop    chan struct{} // closed by the first Finish
	stopped chan struct{} // closed when the sampling goroutine ends

	once    sync.Once
	summary Metrics // written by the first Finish; read by others after once

	mu       sync.Mutex
	finished bool
	end      time.Time
	have     bool // latest holds a sample
	latest   Sample
	samples  int
	failures int
}

// Start begins to sample source. A nil source is allowed: then only Finish's final sample counts.
func Start(source Source, o Options) *Monitor {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	} else if o.Interval > 0 {
		o.Interval = max(o.Interval, minInterval)
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.Begin.IsZero() {
		o.Begin = time.Now()
	}
	m := &Monitor{source: source, options: o, stop: make(chan struct{}), stopped: make(chan struct{})}
	if source == nil || o.Interval < 0 {
		close(m.stopped)
		return m
	}
	go m.run()
	return m
}

func (m *Monitor) run() {
	defer close(m.stopped)
	ticker := time.NewTicker(m.options.Interval) // drops ticks for a slow reader: samples never pile up
	defer ticker.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-ticker.C:
		}
		s, err := m.source.Sample()
		if err != nil {
			m.mu.Lock()
			m.failures++
			m.mu.Unlock()
			continue // the group may not be there yet, or not any more: the next one may be
		}
		s, ok := m.record(s)
		if !ok {
			return
		}
		if m.options.OnSample != nil {
			m.options.OnSample(s)
		}
	}
}

// record merges a sample into the latest. It refuses one that arrives after Finish has given up waiting for it.
func (m *Monitor) record(s Sample) (Sample, bool) {
	if s.At.IsZero() {
		s.At = time.Now()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.finished {
		return s, false
	}
	m.merge(s)
	return m.latest, true
}

// merge is called with mu held. Totals and peaks only ever rise: a source whose group is half gone reads low, and a
// total that falls would look like time running backwards to whoever subtracts two samples.
func (m *Monitor) merge(s Sample) {
	old := m.latest
	s.CPUUser = max(s.CPUUser, old.CPUUser)
	s.CPUSystem = max(s.CPUSystem, old.CPUSystem)
	s.Throttled = max(s.Throttled, old.Throttled)
	s.MemoryPeak = max(s.MemoryPeak, s.Memory, old.MemoryPeak)
	s.IORead = max(s.IORead, old.IORead)
	s.IOWrite = max(s.IOWrite, old.IOWrite)
	s.ProcessesPeak = max(s.ProcessesPeak, s.Processes, old.ProcessesPeak)
	s.OOMKills = max(s.OOMKills, old.OOMKills)
	s.ProcessLimitHits = max(s.ProcessLimitHits, old.ProcessLimitHits)
	s.DiskFull = s.DiskFull || old.DiskFull
	if s.At.Before(old.At) {
		s.At = old.At
	}
	m.latest, m.have = s, true
	m.samples++
}

// Latest is the newest sample with all peaks so far; false when there is none yet.
func (m *Monitor) Latest() (Sample, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest, m.have
}

// Peek takes a sample now, outside the rhythm, so that GetMetrics on a young sandbox need not wait for an interval. When
// the source fails, or the Monitor is finished, it is Latest. The source must allow it beside the sampling goroutine.
func (m *Monitor) Peek() (Sample, bool) {
	m.mu.Lock()
	done := m.finished
	m.mu.Unlock()
	if !done && m.source != nil {
		if s, err := m.source.Sample(); err == nil {
			m.record(s)
		}
	}
	return m.Latest()
}

// Counts are how many samples were taken and how often the source failed.
func (m *Monitor) Counts() (samples, failures int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.samples, m.failures
}

// Metrics summarises what is known now; while the program runs its wall time is still growing.
func (m *Monitor) Metrics() Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.end
	if end.IsZero() {
		end = time.Now()
	}
	live := m.latest
	if m.finished { // nothing is in use any more
		live.Memory, live.Processes = 0, 0
	}
	return Summarize(live, end.Sub(m.options.Begin), m.options.Startup)
}

// Finish ends the sampling, takes final as the last sample and returns the summary. final.At is when the program ended;
// now when zero. A final sample of a group that is already gone may be the zero Sample: the last good values stay.
// Further calls return the same summary and ignore their argument.
func (m *Monitor) Finish(final Sample) Metrics {
	m.once.Do(func() {
		if final.At.IsZero() {
			final.At = time.Now()
		}
		close(m.stop)
		select { // nearly always the goroutine is idle and gone at once
		case <-m.stopped:
		default:
			timer := time.NewTimer(m.options.Patience)
			select {
			case <-m.stopped:
			case <-timer.C:
			}
			timer.Stop()
		}
		m.mu.Lock()
		m.merge(final)
		m.finished, m.end = true, final.At
		m.mu.Unlock()
		m.summary = m.Metrics()
	})
	return m.summary
}
