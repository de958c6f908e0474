package monitor

import (
	"encoding/json"
	"math"
	"time"
)

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// Duration returns s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalJSON writes s as a number of seconds, to the nanosecond.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads a number of seconds. A number beyond the range of a Duration becomes its largest or smallest value.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	// Go does not define the conversion of a float beyond an integer's range, so clamp first.
	switch ns := math.Round(f * 1e9); {
	case ns >= math.MaxInt64:
		*s = math.MaxInt64
	case ns <= math.MinInt64:
		*s = math.MinInt64
	default:
		*s = Seconds(ns)
	}
	return nil
}

// Metrics is the `metrics` object of a result. The names of the first block are a promise to users. Those of the second
// block describe the present moment and appear only where they are not zero.
type Metrics struct {
	WallTime      Seconds `json:"wall_time"`
	CPUTime       Seconds `json:"cpu_time"`
	CPUUser       Seconds `json:"cpu_user"`
	CPUSystem     Seconds `json:"cpu_system"`
	MemoryPeak    uint64  `json:"memory_peak,omitempty"` // bytes; absent: not known
	IORead        uint64  `json:"io_read_bytes"`
	IOWrite       uint64  `json:"io_write_bytes"`
	ProcessesPeak int     `json:"processes_peak"`
	OOMKills      uint64  `json:"oom_kills"`
	ThrottledTime Seconds `json:"throttled_time"`
	StartupTime   Seconds `json:"startup_time"`
	CPUPercent    float64 `json:"cpu_percent"` // of one core: two busy cores are 200

	MemoryCurrent    uint64 `json:"memory_current,omitempty"`
	ProcessesCurrent int    `json:"processes_current,omitempty"`
	ProcessLimitHits uint64 `json:"process_limit_hits,omitempty"`
	DiskUsed         uint64 `json:"disk_used_bytes,omitempty"`
	DiskFull         bool   `json:"disk_full,omitempty"`

	Network []Destination `json:"network,omitempty"` // of a network with rules
}

// Destination is how much went to and came from a host.
type Destination struct {
	Host        string `json:"host"`
	Port        uint16 `json:"port,omitempty"`
	Protocol    string `json:"protocol"`
	Connections int    `json:"connections"`
	Sent        int64  `json:"sent_bytes"`
	Received    int64  `json:"received_bytes"`
}

// Subtract subtracts the figures of an earlier time.
func (d *Destination) Subtract(earlier Destination) {
	d.Connections, d.Sent, d.Received = d.Connections-earlier.Connections, d.Sent-earlier.Sent, d.Received-earlier.Received
}

// Summarize makes Metrics of one sample, for backends that get all counters at the end and need no Monitor.
func Summarize(s Sample, wall, startup time.Duration) Metrics {
	wall = max(wall, 0) // a clock that was set back would give a negative time
	cpu := s.CPUUser + s.CPUSystem
	return Metrics{
		WallTime: Seconds(wall), CPUTime: Seconds(cpu), CPUUser: Seconds(s.CPUUser), CPUSystem: Seconds(s.CPUSystem),
		MemoryPeak: max(s.MemoryPeak, s.Memory), IORead: s.IORead, IOWrite: s.IOWrite,
		ProcessesPeak: max(s.ProcessesPeak, s.Processes), OOMKills: s.OOMKills, ThrottledTime: Seconds(s.Throttled),
		StartupTime: Seconds(max(startup, 0)), CPUPercent: percent(cpu, wall),
		MemoryCurrent: s.Memory, ProcessesCurrent: s.Processes, ProcessLimitHits: s.ProcessLimitHits,
		DiskUsed: s.DiskUsed, DiskFull: s.DiskFull,
	}
}

// percent returns 0 for a wall time of zero: JSON has neither NaN nor infinity.
func percent(cpu, wall time.Duration) float64 {
	if wall <= 0 {
		return 0
	}
	return float64(cpu) / float64(wall) * 100
}
