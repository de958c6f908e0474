package serve

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/memory"
)

// shrinking counts what is asked of a pool.
type shrinking struct{ shrunk, grown int }

func (s *shrinking) Shrink() { s.shrunk++ }
func (s *shrinking) Grow()   { s.grown++ }

const mib = 1 << 20

// The pool shrinks first, then runs are refused; recovery needs more memory than the mark.
func TestPressure(t *testing.T) {
	pool, log := &shrinking{}, &lines{}
	var holds []string
	var next memory.Reading
	var fails error
	p := &pressure{
		read: func() (memory.Reading, error) { return next, fails }, hold: func(r string) { holds = append(holds, r) }, pool: pool,
		log: slog.New(slog.NewJSONHandler(log, nil)),
	}
	// Of 16 GiB the marks are 1 GiB and 512 MiB.
	for i, step := range []struct {
		available    uint64
		stalled      float64
		shrunk, back int
		held         bool
		calls        int
	}{
		{available: 4000},
		{available: 1025, stalled: 0.9}, // one program thrashes at its own limit
		{available: 1000, shrunk: 1},
		{available: 1000, shrunk: 2},
		{available: 1500, shrunk: 3},
		{available: 1600, shrunk: 3, back: 1},
		{available: 500, shrunk: 4, back: 1, held: true, calls: 1},
		{available: 400, shrunk: 5, back: 1, held: true, calls: 1},
		{available: 700, shrunk: 6, back: 1, held: true, calls: 1},
		{available: 800, shrunk: 7, back: 1, calls: 2},
		{available: 1000, stalled: 0.2, shrunk: 8, back: 1, held: true, calls: 3},
		{available: 1000, shrunk: 9, back: 1, calls: 4},
		{available: 9000, shrunk: 9, back: 2, calls: 4},
		{available: 1, shrunk: 10, back: 2, held: true, calls: 5},
		{available: 9000, shrunk: 10, back: 3, calls: 6},
	} {
		next = memory.Reading{Total: 16384 * mib, Available: step.available * mib, Stalled: step.stalled, Where: "the machine"}
		p.sample()
		held := len(holds) > 0 && holds[len(holds)-1] != ""
		if pool.shrunk != step.shrunk || pool.grown != step.back || held != step.held || len(holds) != step.calls {
			t.Errorf("%d: %+v, held %v by %q", i, *pool, held, holds)
		}
	}
	if !slices.ContainsFunc(holds, func(r string) bool { return strings.Contains(r, "500 MiB") && strings.Contains(r, "the machine") }) {
		t.Errorf("%q", holds)
	}
	fails = errors.New("no /proc")
	before := len(holds)
	p.sample()
	p.sample()
	if len(holds) != before || strings.Count(log.String(), "no /proc") != 1 {
		t.Errorf("%q\n%s", holds, log.String())
	}
	for total, want := range map[uint64]uint64{512 * mib: 128, 4096 * mib: 256, 24576 * mib: 1536, 1 << 40: 2048} {
		if shrink, hold := marks(total); shrink != want*mib || hold != want*mib/2 {
			t.Errorf("%d MiB: %d, %d", total/mib, shrink/mib, hold/mib)
		}
	}
}
