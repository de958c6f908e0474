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

// Promised memory may exceed that of the machine: compilers count for less than their limit, and other programs need memory, too. So the
// server samples the available memory. Below the first mark it shrinks the pool by half at each sample; below the second it admits no runs:
//
//	left of the machine     1/16 ─────────────── 1/32 ───────────── 0
//	                     ample    │ the pool shrinks │ and runs are refused
//
// A level ends only when 1.5 times its mark is free, so that it does not oscillate.
//
// Memory stalls (PSI) count only below the first mark: one program that thrashes at its own limit raises them for the whole machine, and
// must not stop the runs of others.
const (
	pressureEvery = 500 * time.Millisecond
	stallsMost    = 0.1 // of the time
	idleSamples   = 10  // after so many samples, the memory of idle sessions is measured: there may be many
)

// limitMemory sets the garbage collector's limit to nine tenths of the cgroup's memory limit, unless GOMEMLIMIT is set: a server that
// reaches its cgroup limit is killed with all its runs. restore resets it.
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

// level is the degree of memory shortage.
type level int

const (
	ample level = iota
	short
	scarce
)

// pressure samples the memory and reacts to shortage. One goroutine uses it.
type pressure struct {
	read func() (memory.Reading, error)
	hold func(reason string)
	pool interface { // nil without a pool
		Shrink()
		Grow()
	}
	idle func() sandbox.Size // that idle sessions use; nil: there are none
	keep func(sandbox.Size)
	log  *slog.Logger

	samples int
	now     level
	said    bool // the failure to read was logged
}

// marks returns the two marks for a machine with that much memory.
func marks(total uint64) (shrink, hold uint64) {
	shrink = min(max(total/16, uint64(128*sandbox.MiB)), uint64(2*sandbox.GiB))
	return shrink, shrink / 2
}

// levelOf returns the level of a reading. A higher level ends later than it begins.
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

// watch samples until ctx ends, and then lifts the hold: a server that ends refuses runs by itself.
func (p *pressure) watch(ctx context.Context) {
	ticker := time.NewTicker(pressureEvery)
	defer ticker.Stop()
	defer p.hold("")
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.sample()
		}
	}
}

// sample reads the memory once and applies the level.
func (p *pressure) sample() {
	if p.idle != nil && p.samples%idleSamples == 0 {
		p.keep(p.idle())
	}
	p.samples++
	r, err := p.read()
	if err != nil {
		if !p.said {
			p.said = true
			p.log.Warn("memory reading failed, admitting runs by promised memory only", "error", err.Error())
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
		p.hold(fmt.Sprintf("memory is short: %s has %s left; try again later", r.Where, left))
		p.log.Warn("memory is short, refusing runs", "left", left.String(), "of", r.Where, "stalled", r.Stalled)
	case p.now == scarce:
		p.hold("")
		p.log.Info("memory recovered, admitting runs", "left", left.String(), "of", r.Where)
	case next == short:
		p.log.Warn("memory is short, shrinking the pool", "left", left.String(), "of", r.Where)
	default:
		p.log.Info("memory recovered", "left", left.String(), "of", r.Where)
	}
	p.now = next
}
