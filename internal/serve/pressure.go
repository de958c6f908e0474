package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/memory"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What runs are promised may be more than there is: compilers count for less than they may take, and the machine has other programs. So it is looked at
// what is left. Below the first mark what waits is given up, a half each time, and below the second nobody is let in:
//
//	left of the machine     1/16 ─────────────── 1/32 ───────────── 0
//	                  all is well │ the pool shrinks │ and runs are refused
//
// Either holds until half as much again is free, so that it does not flutter.
//
// How long tasks wait for memory (PSI) counts only below the first mark: one program that thrashes at a limit of its own raises that for the whole machine, and must
// not shut the door for everybody.
const (
	pressureEvery = 500 * time.Millisecond
	stallsMost    = 0.1 // of the time
)

// limitMemory has the garbage collector keep below nine tenths of the cgroup's memory limit, unless GOMEMLIMIT says otherwise: a server that grows to
// the limit is killed, with all its runs. restore takes it back.
func limitMemory(log *slog.Logger) (restore func()) {
	most, ok := memory.Limit()
	if !ok || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	limit := int64(most / 10 * 9)
	before := debug.SetMemoryLimit(limit)
	log.Info("memory limit set from the cgroup", "cgroup", sandbox.Size(most).String(), "limit", sandbox.Size(limit).String())
	return func() { debug.SetMemoryLimit(before) }
}

// level is how short memory is.
type level int

const (
	ample level = iota
	short
	scarce
)

// pressure watches the memory, and does what is to be done. It is one goroutine's.
type pressure struct {
	read func() (memory.Reading, error)
	hold func(reason string)
	pool interface { // nil where nothing waits
		Shrink()
		Grow()
	}
	log *slog.Logger

	now  level
	said bool // that it can not be read
}

// marks are the two, for so much memory.
func marks(total uint64) (shrink, hold uint64) {
	shrink = min(max(total/16, uint64(128*sandbox.MiB)), uint64(2*sandbox.GiB))
	return shrink, shrink / 2
}

// levelOf says how short it is, with some more wanted for it to be well again.
func levelOf(r memory.Reading, was level) level {
	shrink, hold := marks(r.Total)
	if was >= short {
		shrink += shrink / 2
	}
	if was == scarce {
		hold += hold / 2
	}
	switch {
	case r.Available < hold, r.Available < shrink && r.Stalled >= stallsMost:
		return scarce
	case r.Available < shrink:
		return short
	}
	return ample
}

// watch looks until ctx ends, and lets everybody in then: what ends refuses by itself.
func (p *pressure) watch(ctx context.Context) {
	ticker := time.NewTicker(pressureEvery)
	defer ticker.Stop()
	defer p.hold("")
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.look()
		}
	}
}

// look looks once.
func (p *pressure) look() {
	r, err := p.read()
	if err != nil {
		if !p.said {
			p.said = true
			p.log.Warn("nobody knows how much memory is left; runs are let in by what they are promised alone", "error", err.Error())
		}
		return
	}
	next := levelOf(r, p.now)
	left := sandbox.Size(r.Available)
	if p.pool != nil && next > ample {
		p.pool.Shrink()
	}
	if next == p.now {
		return
	}
	if p.pool != nil && next == ample {
		p.pool.Grow()
	}
	switch {
	case next == scarce:
		p.hold(fmt.Sprintf("memory is short: %s has %s left; runs are let in again when there is more", r.Where, left))
		p.log.Warn("memory is short: no runs are let in", "left", left.String(), "of", r.Where, "stalled", r.Stalled)
	case p.now == scarce:
		p.hold("")
		p.log.Info("runs are let in again", "left", left.String(), "of", r.Where)
	case next == short:
		p.log.Warn("memory is short: what waits is given up", "left", left.String(), "of", r.Where)
	default:
		p.log.Info("there is memory again", "left", left.String(), "of", r.Where)
	}
	p.now = next
}
