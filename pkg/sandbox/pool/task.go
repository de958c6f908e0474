package pool

import (
	"context"
	"iter"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// task is a formerly waiting process, from its message on. What its driver used and was refused before is not the program's.
type task struct {
	sandbox.Task
	w     *waiting
	began time.Time // when the message was read
}

var (
	_ sandbox.Task    = (*task)(nil)
	_ sandbox.Timed   = (*task)(nil)
	_ sandbox.Watched = (*task)(nil)
	_ sandbox.Witness = (*task)(nil)
	_ sandbox.Routed  = (*task)(nil)

	_ sandbox.Measured  = (*task)(nil)
	_ sandbox.Networked = (*task)(nil)
)

// ReadOutput reads what the program prints.
func (t *task) ReadOutput(p []byte) (stream, n int, err error) { return t.w.early.ReadOutput(p) }

// Took is the time since the message was read.
func (t *task) Took() (time.Duration, bool) {
	timed, ok := t.Task.(sandbox.Timed)
	if !ok {
		return 0, false
	}
	took, known := timed.Took()
	return max(0, took-t.began.Sub(t.w.started)), known
}

// Lost is that of the task below.
func (t *task) Lost() bool {
	w, ok := t.Task.(sandbox.Watched)
	return ok && w.Lost()
}

// NoRoutes is that of the task below: drivers use no network.
func (t *task) NoRoutes() uint64 {
	r, ok := t.Task.(sandbox.Routed)
	if !ok {
		return 0
	}
	return r.NoRoutes()
}

// NetworkRefusals, Published and Network are those of the task below.
func (t *task) NetworkRefusals() iter.Seq[network.Refused] {
	if n, ok := t.Task.(sandbox.Networked); ok {
		return n.NetworkRefusals()
	}
	return func(func(network.Refused) bool) {}
}

// Published are ports on the host's loopback.
func (t *task) Published() []network.Port {
	n, ok := t.Task.(sandbox.Networked)
	if !ok {
		return nil
	}
	return n.Published()
}

// Network is what the network did.
func (t *task) Network() (report *network.Report, unknown string) {
	n, ok := t.Task.(sandbox.Networked)
	if !ok {
		return nil, ""
	}
	return n.Network()
}

// Isolation is that of the task below: the program is the process that was measured when it was prepared.
func (t *task) Isolation() (sandbox.Isolation, bool) {
	m, ok := t.Task.(sandbox.Measured)
	if !ok {
		return sandbox.Isolation{}, false
	}
	return m.Isolation()
}

// Finish is that of the task below, minus what the driver used.
func (t *task) Finish(ctx context.Context) (monitor.Sample, error) {
	s, err := t.Task.Finish(ctx)
	return t.subtractDriver(s), err
}

// Sample is that of the task below, minus what the driver used.
func (t *task) Sample() (monitor.Sample, error) {
	s, err := t.Task.Sample()
	return t.subtractDriver(s), err
}

// subtractDriver returns the program's part of a sample.
func (t *task) subtractDriver(s monitor.Sample) monitor.Sample {
	d := &t.w.used
	s.CPUUser, s.CPUSystem = less(s.CPUUser, d.CPUUser), less(s.CPUSystem, d.CPUSystem)
	s.Throttled = less(s.Throttled, d.Throttled)
	s.IORead, s.IOWrite = less(s.IORead, d.IORead), less(s.IOWrite, d.IOWrite)
	s.OOMKills, s.ProcessLimitHits = less(s.OOMKills, d.OOMKills), less(s.ProcessLimitHits, d.ProcessLimitHits)
	return s
}

// less subtracts and never goes below zero: unreadable counters are zero.
func less[T time.Duration | uint64](all, before T) T { return all - min(all, before) }

// Refusals yields the calls refused to the program.
func (t *task) Refusals() iter.Seq[sandbox.Violation] {
	return func(yield func(sandbox.Violation) bool) {
		w, ok := t.Task.(sandbox.Witness)
		if !ok {
			return
		}
		for v := range w.Refusals() {
			if t.refusedToDriver(v) == 0 && !yield(v) {
				return
			}
		}
	}
}

// Refused are the calls refused to the program.
func (t *task) Refused() (violations []sandbox.Violation, unknown string) {
	w, ok := t.Task.(sandbox.Witness)
	if !ok {
		return nil, ""
	}
	all, unknown := w.Refused()
	for _, v := range all {
		if v.Count = less(v.Count, t.refusedToDriver(v)); v.Count > 0 {
			violations = append(violations, v)
		}
	}
	return violations, unknown
}

// refusedToDriver is how often the same call was refused to the driver.
func (t *task) refusedToDriver(v sandbox.Violation) uint64 {
	for _, b := range t.w.refused {
		if b.Kind == v.Kind && b.Name == v.Name && b.Detail == v.Detail {
			return b.Count
		}
	}
	return 0
}
