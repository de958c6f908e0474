package executor

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxHeld is how much of what a compiler says is held back. One that has so much to say has found something to say it of.
const maxHeld = 1 << 20

// runPhase runs a phase's command, or two of them: then what the first one said is held back until it is known to count.
func (x *execution) runPhase(ctx context.Context, p *Phase, io sandbox.IO) (*sandbox.Result, error) {
	if p.Again == nil {
		return x.e.manager.Run(ctx, x.id, p.Process, io)
	}
	hold := &holding{to: io.OnEvent}
	first := io
	if io.OnEvent != nil {
		first.OnEvent = hold.event
	}
	r, err := x.e.manager.Run(ctx, x.id, p.Process, first)
	if err == nil && r.Verdict == sandbox.VerdictNonzeroExit && p.Misled(r.Stderr.Edges(sandbox.OutputMemory)) && !hold.told() {
		again, left := p.rest(r)
		if left {
			second, err := x.e.manager.Run(ctx, x.id, again, io)
			r.Close()
			if err != nil {
				return nil, err
			}
			return together(r, second), nil
		}
	}
	hold.tell()
	return r, err
}

// rest is the second command of a phase, with what the first has left of the time, and whether there is any.
func (p *Phase) rest(first *sandbox.Result) (again sandbox.Process, left bool) {
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

// together is the result of the second of two commands, with the phase's limits and what both have used.
func together(first, second *sandbox.Result) *sandbox.Result {
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
	b.MemoryPeak = max(a.MemoryPeak, b.MemoryPeak)
	b.ProcessesPeak = max(a.ProcessesPeak, b.ProcessesPeak)
	if b.WallTime > 0 {
		b.CPUPercent = 100 * float64(b.CPUTime) / float64(b.WallTime)
	}
	return &r
}

// holding keeps events back until it is told to tell them, or until they are too many.
type holding struct {
	to func(sandbox.Event)

	mu    sync.Mutex // what was under way when the run was called off may come late
	held  []sandbox.Event
	size  int
	loose bool
}

func (h *holding) event(ev sandbox.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loose {
		h.to(ev)
		return
	}
	ev.Data = bytes.Clone(ev.Data)
	h.held = append(h.held, ev)
	if h.size += len(ev.Data); h.size > maxHeld {
		h.release()
	}
}

// told reports whether anything has been passed on.
func (h *holding) told() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.loose
}

func (h *holding) tell() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release()
}

// release is called with mu held.
func (h *holding) release() {
	for _, ev := range h.held {
		h.to(ev)
	}
	h.held, h.loose = nil, true
}
