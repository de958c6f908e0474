package monitor

import (
	"encoding/json"
	"sync"
	"time"
)

// Sample holds a sandbox's counters at one moment. Totals (CPU, I/O, Throttled, the counts) count from the sandbox's start.
// A value that the source does not have is zero.
type Sample struct {
	At time.Time // when it was taken; set by the Monitor when zero

	CPUUser   time.Duration
	CPUSystem time.Duration
	Throttled time.Duration // time stopped by the CPU limit

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

// sampleJSON is a Sample with the JSON names of Metrics.
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

// MarshalJSON writes s with the JSON names of Metrics. It omits At.
func (s Sample) MarshalJSON() ([]byte, error) {
	return json.Marshal(sampleJSON{
		Seconds(s.CPUUser), Seconds(s.CPUSystem), Seconds(s.Throttled), s.Memory, s.MemoryPeak, s.IORead, s.IOWrite, s.Processes, s.ProcessesPeak,
		s.OOMKills, s.ProcessLimitHits, s.DiskUsed, s.DiskFull,
	})
}

// UnmarshalJSON reads what MarshalJSON writes; At stays zero.
func (s *Sample) UnmarshalJSON(b []byte) error {
	var j sampleJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*s = Sample{
		CPUUser: j.CPUUser.Duration(), CPUSystem: j.CPUSystem.Duration(), Throttled: j.Throttled.Duration(), Memory: j.Memory,
		MemoryPeak: j.MemoryPeak,
		IORead:     j.IORead, IOWrite: j.IOWrite, Processes: j.Processes, ProcessesPeak: j.ProcessesPeak, OOMKills: j.OOMKills,
		ProcessLimitHits: j.ProcessLimitHits, DiskUsed: j.DiskUsed, DiskFull: j.DiskFull,
	}
	return nil
}

// Source takes samples. Sample should return quickly and may fail. The sampling goroutine and callers of Peek may call it
// at the same time.
type Source interface {
	Sample() (Sample, error)
}

// SourceFunc makes a function a Source.
type SourceFunc func() (Sample, error)

// Sample calls f().
func (f SourceFunc) Sample() (Sample, error) { return f() }

// Defaults of Options.
const (
	DefaultInterval = 100 * time.Millisecond
	DefaultTimeout  = 100 * time.Millisecond
	minInterval     = time.Millisecond // below it, sampling itself would dominate the counters
)

// Options configures a Monitor; the zero value is useful.
type Options struct {
	Interval time.Duration // between samples; DefaultInterval when zero, negative for only the final one
	OnSample func(Sample)  // called after each sample, with peaks filled in; while it runs, ticks are dropped
	Timeout  time.Duration // how long Finish waits for a running Sample or OnSample; DefaultTimeout when zero

	Begin   time.Time     // when the program began; Start's time when zero
	Startup time.Duration // from the request to Begin: the time to make the sandbox
}

// Monitor samples one source. Make one with Start.
type Monitor struct {
	source  Source
	options Options

	stop    chan struct{} // closed by the first Finish
	stopped chan struct{} // closed when the sampling goroutine ends

	once    sync.Once
	summary Metrics // written by the first Finish; other calls read it after once

	mu       sync.Mutex
	finished bool
	end      time.Time
	have     bool // latest is set
	latest   Sample
	samples  int
	failures int
}

// Start begins to sample source and returns at once. With a nil source only Finish's final sample counts.
func Start(source Source, o Options) *Monitor {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	} else if o.Interval > 0 {
		o.Interval = max(o.Interval, minInterval)
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
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
	ticker := time.NewTicker(m.options.Interval) // a ticker drops ticks while OnSample is slow
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
			continue // the cgroup may not exist yet, or no longer; try again at the next tick
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

// record merges a sample into the latest and returns it. It drops a sample that arrives after Finish.
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

// merge is called with mu held. Totals and peaks only rise: a source whose cgroup is half removed reads low, and a caller
// that subtracts two samples must not get a negative number.
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

// Latest returns the newest sample with all peaks so far; false when there is none yet.
func (m *Monitor) Latest() (Sample, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest, m.have
}

// Peek takes a sample now, between two ticks, so that GetMetrics on a young sandbox does not wait for an interval. When
// the source fails, or the Monitor is finished, it returns Latest.
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

// Counts returns how many samples were taken and how often the source failed.
func (m *Monitor) Counts() (samples, failures int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.samples, m.failures
}

// Metrics returns a summary of the samples so far. Until Finish, the wall time ends now.
func (m *Monitor) Metrics() Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.end
	if end.IsZero() {
		end = time.Now()
	}
	live := m.latest
	if m.finished { // the sandbox uses nothing after its end
		live.Memory, live.Processes = 0, 0
	}
	return Summarize(live, end.Sub(m.options.Begin), m.options.Startup)
}

// Finish ends the sampling, merges final as the last sample and returns the summary. final.At is the program's end; zero
// means now. When the cgroup is already gone, final may be the zero Sample: the last good values stay. Finish blocks for
// at most Options.Timeout. Further calls return the same summary and ignore their argument.
func (m *Monitor) Finish(final Sample) Metrics {
	m.once.Do(func() {
		if final.At.IsZero() {
			final.At = time.Now()
		}
		close(m.stop)
		select { // usually the goroutine is idle and ends at once
		case <-m.stopped:
		default:
			timer := time.NewTimer(m.options.Timeout)
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
