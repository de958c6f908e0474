package batch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// batch is a batch under way.
type batch struct {
	h         *Handler
	b         *wire.Batch
	principal *api.Principal
	parallel  int
	out       *writer
	summary   wire.BatchSummary // used by the writing goroutine only
}

// outcome is the end of one item.
type outcome struct {
	index int
	name  string
	f     *api.Finished
	err   error
	skip  bool
}

// run runs all items and writes their outcomes. It returns an error only if nothing was written.
func (t *batch) run(ctx context.Context) error {
	begun := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()

	done := make(chan outcome)
	// An item holds a place from its start until it is written, which also bounds the finished items that wait to be written.
	window := make(chan struct{}, 2*t.parallel)
	workers.Go(func() { t.feed(ctx, &workers, window, done) })

	defer t.out.ClearDeadline()
	stop := t.out.KeepAlive(func() bool { return true })
	defer stop()
	if err := t.write(ctx, done, window); err != nil {
		return err
	}
	cancel()
	t.summary.Took = time.Since(begun).Seconds()
	_ = t.out.writeSummary(&t.summary) // fails when the client is gone
	t.sendWebhook()
	return nil
}

// feed starts items in their order, each when there is a place for it.
func (t *batch) feed(ctx context.Context, workers *sync.WaitGroup, window chan struct{}, done chan<- outcome) {
	failed := make(chan struct{})
	fail := sync.OnceFunc(func() { close(failed) })
	slots := make(chan struct{}, t.parallel)
	compiled := t.compiles()
	for i := range t.b.Len() {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		run, name := t.b.Item(i)
		if t.b.StopOnFailure && isClosed(failed) {
			select {
			case done <- outcome{index: i, name: name, skip: true}:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if i > 0 {
			select {
			case <-compiled.over:
			case <-ctx.Done():
				return
			}
		}
		// Another item may have failed while this one waited for its place.
		skip := t.b.StopOnFailure && isClosed(failed)
		workers.Go(func() {
			defer func() { <-slots }()
			s := outcome{index: i, name: name, skip: skip}
			if !skip {
				if s.f, s.err = t.safely(ctx, run, i, compiled); !s.success() {
					fail() // before the slot is free for the next item
				}
			}
			if i == 0 {
				compiled.release()
			}
			select {
			case done <- s:
			case <-ctx.Done():
				s.close()
			}
		})
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// compiling is the compile phase of the first item, for which the others wait.
type compiling struct {
	over    chan struct{}
	release func()
	seen    bool // a phase before the run began
	timer   *time.Timer
}

// grace is how long the others wait after the first item's run began: its compiled program goes into the cache meanwhile.
const grace = time.Second

// compiles returns the compile phase to wait for; it is over at once where items have no common program.
func (t *batch) compiles() *compiling {
	c := &compiling{over: make(chan struct{})}
	c.release = sync.OnceFunc(func() { close(c.over) })
	if t.b.Run == nil || t.b.Run.NoCache || t.b.Len() == 1 {
		c.release()
	}
	return c
}

// event reads the first item's events, which come in order.
func (c *compiling) event(line []byte) {
	if isClosed(c.over) {
		return
	}
	ev, err := wire.DecodeEvent(line)
	if err != nil || ev.Kind != "phase" {
		return
	}
	switch {
	case ev.Phase != executor.PhaseRun:
		c.seen = true
	case !c.seen:
		c.release() // not compiled, or found in the cache
	case c.timer == nil:
		c.timer = time.AfterFunc(grace, c.release)
	}
}

func (c *compiling) stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// safely runs one item and returns a panic as its error: no HTTP server recovers it here.
func (t *batch) safely(ctx context.Context, run *wire.Run, i int, c *compiling) (f *api.Finished, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			f, err = nil, fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return t.do(ctx, run, i, c)
}

// do runs one item. An item that is refused for now is retried until RetryTimeout, except the first one: its refusal is the batch's.
func (t *batch) do(ctx context.Context, run *wire.Run, i int, c *compiling) (*api.Finished, error) {
	call := api.Call{}
	if i == 0 && !isClosed(c.over) {
		call.OnEvent = c.event
		defer c.stop()
	}
	deadline := time.Now().Add(t.h.o.RetryTimeout)
	for {
		f, err := t.h.server.Do(ctx, t.principal, run, call)
		if f != nil && f.Err != nil && f.Started.IsZero() {
			err = f.Err // it was never admitted
		}
		var refusal *api.Refusal
		if !errors.As(err, &refusal) || refusal.Code == wire.CodeDraining || i == 0 && !t.out.Started() || time.Now().After(deadline) {
			return f, err
		}
		wait := time.NewTimer(max(refusal.RetryAfter, 10*time.Millisecond))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return f, err
		}
	}
}

// write writes items as they end or in their order, until all are written, ctx ends or a write fails.
func (t *batch) write(ctx context.Context, done <-chan outcome, window <-chan struct{}) error {
	waiting := map[int]outcome{}
	defer func() {
		for _, s := range waiting {
			s.close()
		}
	}()
	for next, written := 0, 0; written < t.b.Len(); {
		var s outcome
		select {
		case s = <-done:
		case <-ctx.Done():
			t.summary.Cancelled = true
			return nil
		}
		if !t.out.Started() && t.failsAll(ctx, s) {
			return s.err
		}
		ready := []outcome{s}
		if t.b.Order != "done" {
			waiting[s.index] = s
			ready = ready[:0]
			for ; ; next++ {
				s, ok := waiting[next]
				if !ok {
					break
				}
				delete(waiting, next)
				ready = append(ready, s)
			}
		}
		for i, s := range ready {
			item, result := t.item(ctx, s)
			err := t.out.writeItem(&item, result)
			s.close()
			if err != nil {
				for _, s := range ready[i+1:] {
					s.close()
				}
				t.summary.Cancelled = true
				return nil
			}
			written++
			<-window
		}
	}
	return nil
}

// failsAll reports whether the first item's error holds for the whole batch, so that the status can report it: the server has no room, or
// the common program is refused.
func (t *batch) failsAll(ctx context.Context, s outcome) bool {
	if s.index != 0 || s.err == nil {
		return false
	}
	p := t.h.server.Problem(ctx, s.err)
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		return true
	}
	return t.b.Run != nil && p.Status/100 == 4 && !slices.ContainsFunc(p.Errors, func(e wire.FieldError) bool {
		name, _, _ := strings.Cut(e.Field, "[")
		return slices.Contains([]string{"stdin", "stdin_encoding", "args", "env", "in"}, name)
	})
}

func (s *outcome) success() bool {
	return s.err == nil && s.f != nil && s.f.Err == nil && s.f.Result != nil && s.f.Result.Verdict == "ok"
}

// close returns the disk space of the item's output.
func (s *outcome) close() {
	if s.f != nil {
		s.f.Close()
	}
}

// item returns the document of one outcome, and counts it in the summary.
func (t *batch) item(ctx context.Context, s outcome) (item wire.BatchItem, result *sandbox.JSON) {
	item = wire.BatchItem{Index: s.index, Name: s.name, Skipped: s.skip}
	err := s.err
	if s.f != nil {
		item.ID = s.f.ID
		if err == nil {
			err = s.f.Err
		}
	}
	switch {
	case s.skip:
		t.summary.Skipped++
	case err != nil:
		item.Error = t.h.server.Problem(ctx, err)
		t.summary.Errors++
	default:
		result = s.f.Document
		t.summary.Verdicts[string(s.f.Result.Verdict)]++
		if s.success() {
			t.summary.Succeeded++
		} else {
			t.summary.Failed++
		}
		for _, p := range s.f.Result.Phases {
			if p.Cached {
				t.summary.Cached++
				break
			}
		}
	}
	return item, result
}
