package executor

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxBuffered is how much output of a phase's first command is buffered. A compiler that prints more reports errors of the
// program.
const maxBuffered = 1 << 20

// runPhase runs the command of a phase. With a second command, it buffers the events of the first until its result is known to
// count.
func (x *execution) runPhase(ctx context.Context, p *Phase, io sandbox.IO) (*sandbox.Result, error) {
	if p.Again == nil {
		return x.e.manager.Run(ctx, x.id, p.Process, io)
	}
	buffer := &eventBuffer{to: io.OnEvent}
	first := io
	if io.OnEvent != nil {
		first.OnEvent = buffer.add
	}
	r, err := x.e.manager.Run(ctx, x.id, p.Process, first)
	if err == nil && r.Verdict == sandbox.VerdictNonzeroExit && p.Misled(r.Stderr.Edges(sandbox.OutputMemory)) && !buffer.passedOn() {
		again, left := secondCommand(p, r)
		if left {
			second, err := x.e.manager.Run(ctx, x.id, again, io)
			r.Close()
			if err != nil {
				return nil, err
			}
			return joinResults(r, second), nil
		}
	}
	buffer.flush()
	return r, err
}

// secondCommand returns the second command of a phase with the time that the first has left, and whether there is any.
func secondCommand(p *Phase, first *sandbox.Result) (again sandbox.Process, left bool) {
	again, left = *p.Again, true
	rest := func(limit time.Duration, used monitor.Seconds) time.Duration {
		if limit <= 0 {
			return limit // there is none
		}
		left = left && limit > used.Duration()
		return limit - used.Duration()
	}
	again.Limits.Wall = rest(first.Limits.Wall, first.Metrics.WallTime)
	again.Limits.CPUTime = rest(first.Limits.CPUTime, first.Metrics.CPUTime)
	return again, left
}

// joinResults returns the result of the second of two commands, with the phase's limits and the metrics of both.
func joinResults(first, second *sandbox.Result) *sandbox.Result {
	r := *second
	r.Limits = first.Limits
	a, b := first.Metrics, &r.Metrics
	b.WallTime += a.WallTime
	b.CPUTime += a.CPUTime
	b.CPUUser += a.CPUUser
	b.CPUSystem += a.CPUSystem
	b.ThrottledTime += a.ThrottledTime
	b.StartupTime += a.StartupTime
	b.IORead += a.IORead
	b.IOWrite += a.IOWrite
	b.OOMKills += a.OOMKills
	b.Network = append(slices.Clip(a.Network), b.Network...)
	r.Violations = append(refusals(first.Violations), r.Violations...)
	b.MemoryPeak = max(a.MemoryPeak, b.MemoryPeak)
	b.ProcessesPeak = max(a.ProcessesPeak, b.ProcessesPeak)
	if b.WallTime > 0 {
		b.CPUPercent = 100 * float64(b.CPUTime) / float64(b.WallTime)
	}
	return &r
}

// eventBuffer delays events until flush, or until they exceed its size.
type eventBuffer struct {
	to func(sandbox.Event)

	mu      sync.Mutex // events may arrive after a run is cancelled
	events  []sandbox.Event
	size    int
	flushed bool
}

func (b *eventBuffer) add(ev sandbox.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flushed {
		b.to(ev)
		return
	}
	ev.Data = bytes.Clone(ev.Data)
	b.events = append(b.events, ev)
	if b.size += len(ev.Data); b.size > maxBuffered {
		b.flushLocked()
	}
}

// passedOn reports whether events have been passed on.
func (b *eventBuffer) passedOn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flushed
}

// flush passes on the buffered events, and from now on every event at once.
func (b *eventBuffer) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushLocked()
}

func (b *eventBuffer) flushLocked() {
	for _, ev := range b.events {
		b.to(ev)
	}
	b.events, b.flushed = nil, true
}
