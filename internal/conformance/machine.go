package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// moves are the steps of the state machine test. Those with two names do both at once.
var moves = []string{
	"run", "launch", "stop", "kill", "delete", "metrics", "missing",
	"stop+stop", "kill+stop", "stop+delete", "delete+delete", "run+delete", "run+stop", "launch+kill", "run+run", "kill+metrics",
	"launch+delete",
}

// model is the expected state of a sandbox.
type model struct {
	m     *sandbox.Manager
	id    string
	fatal func(format string, args ...any)
	short sandbox.Process // ends at once
	long  sandbox.Process // prints a line and ignores every signal

	state sandbox.State // expected
	jobs  []chan struct{}
}

// walk does moves one after another and checks the state after each.
func (w *model) walk(list []string) {
	w.state = sandbox.StateReady
	for n, move := range list {
		w.move(move)
		w.check(fmt.Sprintf("after %q", list[:n+1]))
	}
	if err := w.m.Delete(context.Background(), w.id); err != nil {
		w.fatal("%q, then delete: %v", list, err)
	}
	for _, j := range w.jobs {
		<-j
	}
}

func (w *model) move(move string) {
	var first, second string
	if i := slices.Index([]byte(move), '+'); i >= 0 {
		first, second = move[:i], move[i+1:]
	} else {
		first = move
	}
	before := w.state
	if second == "" {
		w.act(first, false, before)
	} else {
		var wg sync.WaitGroup
		for _, a := range []string{first, second} {
			wg.Go(func() { w.act(a, true, before) })
		}
		wg.Wait()
	}
	// Whatever the order, the strongest move decides.
	for _, a := range []string{"launch", "stop", "kill", "delete"} {
		if a != first && a != second || w.state == sandbox.StateDeleted {
			continue
		}
		switch {
		case a == "delete":
			w.state = sandbox.StateDeleted
		case a == "stop" || a == "kill":
			w.state = sandbox.StateStopped
		case a == "launch" && before == sandbox.StateReady:
			w.state = sandbox.StateRunning
		}
	}
}

// act does one move. With a concurrent move, errors of kind ErrState are accepted.
func (w *model) act(a string, neighbour bool, before sandbox.State) {
	ctx := context.Background()
	gone := before == sandbox.StateDeleted
	usable := before == sandbox.StateReady || before == sandbox.StateRunning
	allowed := func(err error, ok bool) {
		refused := errors.Is(err, sandbox.ErrState) || errors.Is(err, sandbox.ErrNotFound)
		switch {
		case err == nil && ok, err != nil && refused && (!ok || neighbour):
		case err == nil && neighbour:
		default:
			w.fatal("%s in state %s: %v", a, before, err)
		}
	}
	switch a {
	case "run":
		res, err := w.m.Run(ctx, w.id, w.short, sandbox.IO{})
		allowed(err, usable)
		if err == nil && res.Verdict != sandbox.VerdictOK && !(neighbour && res.Verdict == sandbox.VerdictCancelled) {
			w.fatal("run in state %s: %s", before, describe(res))
		}
	case "launch":
		w.launch(neighbour, usable)
	case "stop":
		allowed(w.m.Stop(ctx, w.id), !gone)
	case "kill":
		allowed(w.m.Kill(w.id), !gone)
	case "delete":
		if err := w.m.Delete(ctx, w.id); err != nil {
			w.fatal("delete in state %s: %v", before, err)
		}
	case "metrics":
		_, err := w.m.GetMetrics(w.id)
		allowed(err, !gone)
	case "missing":
		_, err := w.m.Run(ctx, w.id, sandbox.Process{Args: []string{"no-such-program"}, Phase: "missing"}, sandbox.IO{})
		if usable && !errors.Is(err, sandbox.ErrNotStarted) || !usable && !errors.Is(err, sandbox.ErrState) &&
			!errors.Is(err, sandbox.ErrNotFound) {
			w.fatal("missing program in state %s: %v", before, err)
		}
	}
}

// launch starts a run that only a stop, a kill or a delete ends.
func (w *model) launch(neighbour, usable bool) {
	said, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		res, err := w.m.Run(context.Background(), w.id, w.long, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventStdout {
				once.Do(func() { close(said) })
			}
		}})
		refused := errors.Is(err, sandbox.ErrState) || errors.Is(err, sandbox.ErrNotFound)
		switch {
		case err == nil && res.Verdict == sandbox.VerdictCancelled:
		case refused && (neighbour || !usable):
		default:
			w.fatal("launch: %+v, %v", res, err)
		}
	}()
	select {
	case <-said:
	case <-done:
	case <-time.After(caseTimeout):
		w.fatal("launch: no output")
	}
	w.jobs = append(w.jobs, done)
}

func (w *model) check(when string) {
	info, err := w.m.Get(w.id)
	if w.state == sandbox.StateDeleted {
		if !errors.Is(err, sandbox.ErrNotFound) {
			w.fatal("%s: deleted, and yet %+v, %v", when, info, err)
		}
		return
	}
	if err != nil || info.State != w.state {
		w.fatal("%s: state %q (%v), want %q", when, info.State, err, w.state)
	}
	if w.state == sandbox.StateStopped {
		for _, j := range w.jobs {
			<-j
		}
		w.jobs = nil
	}
}

// StateMachine takes a backend's sandboxes through random sequences of moves, found and shrunk by rapid.
// It is for fast backends; the suite takes the others through a few sequences.
func StateMachine(m *sandbox.Manager, spec sandbox.Spec, short, long sandbox.Process) func(*rapid.T) {
	return func(t *rapid.T) {
		id, err := m.Create(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var failure string
		w := &model{m: m, id: id, short: short, long: long, fatal: func(f string, a ...any) {
			mu.Lock()
			defer mu.Unlock()
			if failure == "" {
				failure = fmt.Sprintf(f, a...)
			}
		}}
		w.walk(rapid.SliceOfN(rapid.SampledFrom(moves), 1, 15).Draw(t, "moves"))
		mu.Lock()
		defer mu.Unlock()
		if failure != "" {
			t.Fatal(failure)
		}
	}
}
