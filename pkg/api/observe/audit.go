package observe

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// gather is how long refusals of one kind are gathered for one entry.
const gather = time.Second

// mostGathered bounds the kinds of refusals that are told apart within that time.
const mostGathered = 256

// auditor writes what is no run to the audit log.
type auditor struct {
	log    *audit.Log
	failed func(error)

	mu      sync.Mutex
	refused map[refusal]*times
	closed  bool
	wake    chan struct{} // there is something to be written
	over    chan struct{}
}

type refusal struct{ key, code string }

type times struct {
	count uint64
	first time.Time
}

func newAuditor(log *audit.Log, failed func(error)) *auditor {
	a := &auditor{log: log, failed: failed, refused: map[refusal]*times{}, wake: make(chan struct{}, 1), over: make(chan struct{})}
	go a.write()
	return a
}

func (a *auditor) Queued(context.Context, api.Info)  {}
func (a *auditor) Started(context.Context, api.Info) {}

// Finished notes what the engine has not: a run that was not let in, or was wrong from the beginning.
func (a *auditor) Finished(_ context.Context, f *api.Finished) {
	switch {
	case verdictOf(f) == turnedBy:
		a.count(refusal{keyOf(f.Principal), refusalCode(f.Err)})
	case f.Result == nil && errors.Is(f.Err, sandbox.ErrInvalid):
		a.count(refusal{keyOf(f.Principal), wire.CodeInvalid})
	}
}

func (a *auditor) Refused(_ context.Context, r api.Refused) {
	a.count(refusal{keyOf(r.Principal), codes.of(r.Code)})
}

func (a *auditor) count(what refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	t := a.refused[what]
	if t == nil {
		if len(a.refused) >= mostGathered {
			what = refusal{code: other}
		}
		if t = a.refused[what]; t == nil {
			t = &times{first: time.Now()}
			a.refused[what] = t
		}
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	t.count++
}

// write writes what was gathered, until close.
func (a *auditor) write() {
	defer close(a.over)
	for range a.wake {
		a.mu.Lock()
		closed := a.closed
		a.mu.Unlock()
		if !closed {
			pause(a.wake, gather)
		}
		a.mu.Lock()
		refused := a.refused
		a.refused = map[refusal]*times{}
		a.mu.Unlock()
		kinds := slices.SortedFunc(maps.Keys(refused), func(x, y refusal) int { return refused[x].first.Compare(refused[y].first) })
		for _, what := range kinds {
			e := a.entry(audit.KindRefused)
			e.Who.Key, e.Reason, e.Count, e.Time = what.key, what.code, refused[what].count, refused[what].first
			a.append(e)
		}
	}
}

// pause waits, but not when the channel is closed meanwhile.
func pause(wake <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case _, open := <-wake:
			if !open {
				return
			}
		}
	}
}

func (a *auditor) entry(kind audit.Kind) audit.Entry {
	return audit.Entry{Kind: kind, Who: audit.Me(audit.DoorAPI)}
}

func (a *auditor) append(e audit.Entry) {
	if err := a.log.Append(e); err != nil {
		a.failed(err)
	}
}

func (a *auditor) close() {
	a.mu.Lock()
	twice := a.closed
	a.closed = true
	a.mu.Unlock()
	if twice {
		<-a.over
		return
	}
	select { // what was gathered and not seen yet
	case a.wake <- struct{}{}:
	default:
	}
	close(a.wake)
	<-a.over
}

// complain tells the operator that an entry is missing.
func complain(log *slog.Logger, m *metrics) func(error) {
	return func(err error) {
		m.unaudited.Inc()
		log.LogAttrs(context.Background(), slog.LevelError, "not in the audit log", slog.String("error", clip(err.Error())))
	}
}
