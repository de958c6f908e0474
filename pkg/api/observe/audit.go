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

// gatherTime is how long refusals of one kind are collected into one entry.
const gatherTime = time.Second

// maxKinds bounds the kinds of refusals that are counted separately within gatherTime.
const maxKinds = 256

// auditor writes refusals and the server's start and stop to the audit log.
type auditor struct {
	api.Observers // none: other events are ignored

	log    *audit.Log
	failed func(error)

	mu      sync.Mutex
	refused map[refusal]*times
	closed  bool
	wake    chan struct{} // there is a refusal to write
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

// Finished counts runs that the executor has not written to the log: those that were not admitted, or invalid.
func (a *auditor) Finished(_ context.Context, f *api.Finished) {
	switch {
	case verdictOf(f) == refused:
		a.count(refusal{keyOf(f.Principal), refusalCode(f.Err)})
	case f.Result == nil && errors.Is(f.Err, sandbox.ErrInvalid):
		a.count(refusal{keyOf(f.Principal), wire.CodeInvalid})
	}
}

func (a *auditor) Refused(_ context.Context, r api.Refused) {
	a.count(refusal{keyOf(r.Principal), codes.of(r.Code)})
}

// Session writes the creation and the end of a session. The executor writes its cells.
func (a *auditor) Session(_ context.Context, e api.SessionEvent) {
	entry := a.entry(audit.KindSession)
	entry.Run, entry.Who.Key, entry.Language, entry.Reason = e.ID, e.Owner, e.Language, "created"
	if e.Ended != "" {
		entry.Reason = "ended"
	}
	a.append(entry)
}

func (a *auditor) count(what refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	t := a.refused[what]
	if t == nil {
		if len(a.refused) >= maxKinds {
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

// write writes the collected refusals until close is called.
func (a *auditor) write() {
	defer close(a.over)
	for range a.wake {
		a.mu.Lock()
		closed := a.closed
		a.mu.Unlock()
		if !closed {
			waitOrClosed(a.wake, gatherTime)
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

// waitOrClosed waits for d, or until the channel is closed.
func waitOrClosed(wake <-chan struct{}, d time.Duration) {
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
	return audit.Entry{Kind: kind, Who: audit.Me(audit.EntryAPI)}
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
	select { // write what is collected now
	case a.wake <- struct{}{}:
	default:
	}
	close(a.wake)
	<-a.over
}

// reportFailure returns a function that logs and counts an entry that could not be written.
func reportFailure(log *slog.Logger, m *metrics) func(error) {
	return func(err error) {
		m.unaudited.Inc()
		log.LogAttrs(context.Background(), slog.LevelError, "audit entry not written", slog.String("error", clip(err.Error())))
	}
}
