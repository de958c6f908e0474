package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// short are the languages whose suite make test runs; make test-all runs all.
var short = []string{"python", "javascript", "shell", "java"}

// forDialects runs a test in a session of every language that has its cell; nil: of every language.
func forDialects(t *testing.T, has func(*dialect) string, test func(tester, *dialect)) {
	t.Helper()
	m := newManager(t, Options{})
	withDialects(t, has, func(t *testing.T, d *dialect) { test(create(t, m, in(d.language)), d) })
}

// withDialects does the same without a session.
func withDialects(t *testing.T, has func(*dialect) string, test func(*testing.T, *dialect)) {
	t.Helper()
	for i := range dialects {
		d := &dialects[i]
		if has != nil && has(d) == "" || !testenv.All() && !slices.Contains(short, d.language) {
			continue
		}
		t.Run(d.language, func(t *testing.T) { test(t, d) })
	}
}

// text is what a cell shows, for languages that print tables.
func text(r *Result) string { return string(r.Stdout.Bytes()) + r.Value() }

func (t tester) has(code, part string) {
	t.Helper()
	if r := t.do(code); r.Verdict != sandbox.VerdictOK || !strings.Contains(text(r), part) {
		t.Errorf("%.80q: %s, %.300q, want %q; stderr %.500q", code, r.Verdict, text(r), part, r.Stderr.Bytes())
	}
}

// alive checks that the session still works, and has kept its state.
func (t tester) alive(d *dialect) {
	t.Helper()
	t.has(d.get, "42")
}

func TestSuiteState(t *testing.T) {
	forDialects(t, nil, func(s tester, d *dialect) {
		s.has(d.set, "")
		s.alive(d)
		r := s.do(d.fails)
		if r.Verdict != sandbox.VerdictNonzeroExit && (d.state || r.Verdict != sandbox.VerdictSignaled) || !strings.Contains(string(r.Stderr.Bytes()), d.says) {
			s.Errorf("%q: %s, stderr %.500q", d.fails, r.Verdict, r.Stderr.Bytes())
		}
		if r := s.do(d.broken); r.Verdict == sandbox.VerdictOK || len(r.Stderr.Bytes()) == 0 {
			s.Errorf("%q: %s, stderr %.500q", d.broken, r.Verdict, r.Stderr.Bytes())
		}
		s.alive(d)
		s.has(d.again, "")
		s.has(d.get, "52")
	})
}

// interruptedSoon interrupts a cell once: after it has printed, or at its beginning where it can not.
func (t tester) interruptedSoon(d *dialect, code string) *Result {
	t.Helper()
	var once sync.Once
	interrupt := func() { go func() { _ = t.Interrupt() }() }
	if d.interlace == "" {
		return t.cell(Cell{Code: code, Begin: func(context.Context, uint64) error {
			interrupt()
			return nil
		}})
	}
	return t.cell(Cell{Code: d.interlace + "\n" + code, OnEvent: func(e sandbox.Event) {
		if e.Kind == sandbox.EventStdout {
			once.Do(interrupt)
		}
	}})
}

func TestSuiteInterrupt(t *testing.T) {
	m := newManager(t, Options{})
	withDialects(t, func(d *dialect) string { return d.loop }, func(t *testing.T, d *dialect) {
		req := in(d.language)
		req.Limits.Grace = time.Minute // on a busy machine an interrupt may take long to arrive
		s := create(t, m, req)
		s.has(d.set, "")
		for _, code := range []string{d.loop, d.block} {
			if code == "" {
				continue
			}
			if r := s.interruptedSoon(d, code); r.Verdict != sandbox.VerdictCancelled || !r.Interrupted || r.State != StateIdle {
				s.Errorf("%q: %s, interrupted %t, %s; stderr %.300q", code, r.Verdict, r.Interrupted, r.State, r.Stderr.Bytes())
			}
			s.alive(d)
			if r := s.cell(Cell{Code: code, Limits: sandbox.Limits{Wall: time.Second}}); r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle ||
				r.Limits.Wall != time.Second {
				s.Errorf("%q: %s after at most %v, %s", code, r.Verdict, r.Limits.Wall, r.State)
			}
			s.alive(d)
		}
	})
}

func TestSuiteOutput(t *testing.T) {
	forDialects(t, func(d *dialect) string { return d.interlace }, func(s tester, d *dialect) {
		req := in(d.language)
		req.Policy.MergeOutput = true // two pipes can not keep the order of all writes
		merged := create(s.T, s.m, req)
		if r := merged.do(d.interlace); strings.Join(strings.Fields(text(r)), " ") != "o1 e1 o2" {
			s.Errorf("order %q", text(r))
		}
		if r := s.do(d.huge); r.Verdict != sandbox.VerdictOK || strings.Count(text(r), "a") != 3<<20 {
			s.Errorf("huge: %s, %d bytes", r.Verdict, len(text(r)))
		}
		if d.binary == "" {
			return
		}
		if r := s.do(d.binary); !strings.HasPrefix(string(r.Stdout.Bytes()), "\x00\xff\n") {
			s.Errorf("binary: %.50q", r.Stdout.Bytes())
		}
	})
}

func TestSuiteInput(t *testing.T) {
	forDialects(t, func(d *dialect) string { return d.asks }, func(s tester, d *dialect) {
		lines := []string{"Grace Hopper", "ä\"'\\x"}
		asked := 0
		for _, line := range lines {
			r := s.cell(Cell{Code: d.asks, Limits: sandbox.Limits{Wall: 30 * time.Second}, Input: func(_ context.Context, q protocol.Input) (string, bool) {
				asked++
				time.Sleep(50 * time.Millisecond)
				return line, true
			}})
			if !strings.Contains(text(r), "<"+line+">") {
				s.Errorf("%s %.200q, stderr %.300q", r.Verdict, text(r), r.Stderr.Bytes())
			}
		}
		if asked != len(lines) {
			s.Errorf("asked %d times", asked)
		}
		// Waiting for the user takes no time of the cell's.
		r := s.cell(Cell{Code: d.asks, Limits: sandbox.Limits{Wall: 2 * time.Second}, Input: func(context.Context, protocol.Input) (string, bool) {
			time.Sleep(2500 * time.Millisecond)
			return "late", true
		}})
		if r.Verdict != sandbox.VerdictOK || !strings.Contains(text(r), "<late>") {
			s.Errorf("a line that came late: %s, %.200q", r.Verdict, text(r))
		}
		// Without anybody to ask, the input ends.
		if r := s.do(d.asks); r.State != StateIdle {
			s.Errorf("end of the input: %s, %s", r.Verdict, r.State)
		}
		if r := s.cell(Cell{Code: d.asks, Input: func(ctx context.Context, _ protocol.Input) (string, bool) {
			_ = s.Interrupt()
			<-ctx.Done()
			return "", false
		}}); r.State != StateIdle || r.Verdict != sandbox.VerdictCancelled {
			s.Errorf("an interrupt while a cell waits for a line: %s, %s", r.Verdict, r.State)
		}
	})
}

// What a cell does to its own interpreter ends at most that, is reported, and ends with Restart.
func TestSuiteBrokenDriver(t *testing.T) {
	forDialects(t, quick(func(d *dialect) string { return d.exits }), func(s tester, d *dialect) {
		for name, code := range map[string]string{
			"exits": d.exits, "exits aside": d.exitsAside, "kills": d.kills, "closes": d.closes, "fills": d.fills,
		} {
			if code == "" {
				continue
			}
			s.has(d.set, "")
			r := s.cell(Cell{Code: code, Limits: sandbox.Limits{Wall: 30 * time.Second}})
			switch {
			case strings.HasPrefix(name, "exits") && (r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 7):
				s.Errorf("%s: %s, exit code %d", name, r.Verdict, r.Exit.Code)
			case name == "kills" && r.Verdict != sandbox.VerdictSignaled:
				s.Errorf("%s: %s", name, r.Verdict)
			case name == "fills" && r.Verdict != sandbox.VerdictMemoryLimit:
				s.Errorf("%s: %s; stderr %.300q", name, r.Verdict, r.Stderr.Bytes())
			}
			if r.State == StateEnded {
				if r.Cause == "" {
					s.Errorf("%s: the session has ended, without a cause", name)
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if _, err := s.Execute(ctx, Cell{Code: d.get}); !errors.Is(err, ErrEnded) {
					s.Errorf("%s: a cell after the end: %v", name, err)
				}
				if err := s.Restart(ctx); err != nil {
					s.Fatalf("%s: %v", name, err)
				}
				cancel()
			}
			s.has(d.set, "")
			s.alive(d)
		}
	})
}

func TestSuiteForgedFrames(t *testing.T) {
	m := newManager(t, Options{})
	for i := range dialects {
		d := &dialects[i]
		if d.forges == "" {
			continue
		}
		t.Run(d.language, func(t *testing.T) {
			s, other := create(t, m, in(d.language)), create(t, m, in(d.language))
			other.has(d.set, "")
			r := s.cell(Cell{Code: d.forges, Limits: sandbox.Limits{Wall: 20 * time.Second}})
			if r.Isolation.Tier != sandbox.TierContainer || r.Metrics.WallTime <= 0 {
				t.Errorf("isolation %s, wall time %v", r.Isolation.Tier, r.Metrics.WallTime)
			}
			// A loop that has said to be done is stopped all the same, and belongs to no later cell's limits.
			other.alive(d)
			s.restart(d) // what it has written to other descriptors, such as those of the event loop, may end the interpreter later
		})
	}
}

func TestSuiteProcesses(t *testing.T) {
	forDialects(t, func(d *dialect) string { return d.thread }, func(s tester, d *dialect) {
		s.has(d.set, "")
		s.has(d.thread, "started")
		if d.forks != "" {
			s.has(d.forks, "forked")
		}
		s.alive(d)
	})
}

// Many sessions at once have states of their own, and leave nothing.
func TestSuiteMany(t *testing.T) {
	m := newManager(t, Options{Sessions: 500})
	for _, kind := range []struct {
		language string
		n, all   int
	}{{"python", 20, 200}, {"javascript", 4, 20}, {"shell", 4, 20}, {"sql", 2, 20}, {"java", 0, 20}} {
		d := &dialects[slices.IndexFunc(dialects, func(d dialect) bool { return d.language == kind.language })]
		n := kind.n
		if testenv.All() {
			n = kind.all
		}
		t.Run(d.language, func(t *testing.T) {
			var sessions []tester
			var mu sync.Mutex
			var making sync.WaitGroup
			limit := make(chan struct{}, 8)
			for range n {
				making.Go(func() {
					limit <- struct{}{}
					defer func() { <-limit }()
					s, err := m.Create(context.Background(), in(d.language))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					sessions = append(sessions, tester{t, s})
				})
			}
			making.Wait()
			for i, s := range sessions {
				s.has(strings.ReplaceAll(d.set, "41", fmt.Sprint(i)), "")
			}
			for i, s := range sessions {
				s.has(d.get, fmt.Sprint(i+1))
				s.Close()
			}
		})
	}
}

func TestExpiryDuringCell(t *testing.T) {
	ended := make(chan string, 1)
	m := newManager(t, Options{OnClose: func(_, _, why string) { ended <- why }})
	req := in("python")
	req.Lifetime = 2 * time.Second
	s := create(t, m, req)
	r, err := s.Execute(context.Background(), Cell{Code: "while True: pass"})
	if err == nil && r.State == StateIdle {
		t.Errorf("the cell ended before the session: %s", r.Verdict)
	}
	if why := <-ended; !strings.Contains(why, "lifetime") {
		t.Errorf("reason %q", why)
	}
	if _, err := s.Execute(context.Background(), Cell{Code: "1"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := m.Get("", s.ID()); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	req = in("python")
	req.Idle = time.Second
	create(t, m, req)
	if why := <-ended; !strings.Contains(why, "idle") {
		t.Errorf("reason %q", why)
	}
}

// The sessions of an owner are not there for another one, and both are bounded.
func TestOwners(t *testing.T) {
	m := newManager(t, Options{PerOwner: 2, Waiting: 1})
	mine, theirs := in("python"), in("python")
	mine.Owner, mine.Name, theirs.Owner = "a", "work", "b"
	s := create(t, m, mine)
	create(t, m, theirs)
	for _, id := range []string{s.ID(), "work"} {
		if _, err := m.Get("a", id); err != nil { // control
			t.Error(err)
		}
		if _, err := m.Get("b", id); !errors.Is(err, ErrNotFound) {
			t.Errorf("another owner's %s: %v", id, err)
		}
	}
	if n := len(m.List("b")); n != 1 {
		t.Errorf("b has %d sessions", n)
	}
	ctx := context.Background()
	if _, err := m.Create(ctx, mine); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a name twice: %v", err)
	}
	mine.Name = ""
	create(t, m, mine)
	if _, err := m.Create(ctx, mine); !errors.Is(err, ErrBusy) {
		t.Errorf("one session too many: %v", err)
	}
	if _, err := s.Fork(ctx, ForkOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("one fork too many: %v", err)
	}
	// One cell runs, one waits; a third is refused.
	running := make(chan struct{})
	var cells sync.WaitGroup
	cells.Go(func() {
		var once sync.Once
		s.cell(Cell{Code: "print('begun')\nwhile True: pass", OnEvent: func(e sandbox.Event) {
			if e.Kind == sandbox.EventStdout {
				once.Do(func() { close(running) })
			}
		}})
	})
	<-running
	cells.Go(func() {
		if r, err := s.Execute(ctx, Cell{Code: "1"}); !errors.Is(err, ErrEnded) {
			t.Errorf("a cell that waited during a restart: %+v, %v", r, err)
		}
	})
	for s.Info().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Execute(ctx, Cell{Code: "1"}); !errors.Is(err, ErrBusy) {
		t.Errorf("one cell too many: %v", err)
	}
	if err := s.Restart(ctx); err != nil { // with a full queue
		t.Error(err)
	}
	cells.Wait()
	s.has("1", "1")
}
