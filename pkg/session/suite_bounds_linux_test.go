package session

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came: %s", what)
		}
	}
}

// restart starts the interpreter again, and checks that it works.
func (t tester) restart(d *dialect) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := t.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	t.has(d.set, "")
	t.alive(d)
}

// ended checks that the session reports its end, with a cause.
func (t tester) ended(d *dialect) {
	t.Helper()
	if i := t.Info(); i.State != StateEnded || i.Cause == "" {
		t.Errorf("the session is %s, cause %q", i.State, i.Cause)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := t.Execute(ctx, Cell{Code: d.get}); !errors.Is(err, ErrEnded) {
		t.Errorf("a cell after the end: %v", err)
	}
	if i := t.Info(); i.State != StateEnded || i.Cause == "" {
		t.Errorf("the session is %s, cause %q", i.State, i.Cause)
	}
}

// interpreter is "x" for a language with an interpreter between the cells.
func interpreter(d *dialect) string {
	if d.state {
		return "x"
	}
	return ""
}

// quick leaves out a language that starts slowly in make test: what is tested here is mostly the supervisor's.
func quick(has func(*dialect) string) func(*dialect) string {
	return func(d *dialect) string {
		if d.language == "java" && !testenv.All() {
			return ""
		}
		return has(d)
	}
}

// The interpreter is killed while no cell runs.
func TestSuiteKilled(t *testing.T) {
	forDialects(t, quick(interpreter), func(s tester, d *dialect) {
		s.has(d.set, "")
		s.alive(d) // control
		if err := s.present().driver.live.Signal(syscall.SIGKILL); err != nil {
			s.Fatal(err)
		}
		eventually(s.T, "the end", func() bool { return s.Info().State == StateEnded })
		s.ended(d)
		s.restart(d)
	})
}

// A cell that reads what is for its own interpreter breaks at most its own session.
func TestSuiteStolen(t *testing.T) {
	forDialects(t, quick(func(d *dialect) string { return d.steals }), func(s tester, d *dialect) {
		other := create(s.T, s.m, in(d.language))
		other.has(d.set, "")
		s.has(d.steals, "stolen")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r, err := s.Execute(ctx, Cell{Code: d.set, Limits: sandbox.Limits{Wall: 2 * time.Second}})
		switch {
		case err != nil && !errors.Is(err, ErrEnded):
			s.Error(err)
		case err == nil && r.Verdict != sandbox.VerdictOK && r.Verdict != sandbox.VerdictTimeLimit && r.State != StateEnded:
			s.Errorf("%s, %s; stderr %.300q", r.Verdict, r.State, r.Stderr.Bytes())
		}
		other.alive(d)
		s.restart(d)
	})
}

// What is printed after a cell belongs to the next one.
func TestSuiteLate(t *testing.T) {
	forDialects(t, quick(func(d *dialect) string { return d.late }), func(s tester, d *dialect) {
		s.has(d.set, "")
		if r := s.do(d.late); !strings.Contains(text(r), "begun") || strings.Contains(text(r), "late") {
			s.Errorf("%s, %q; stderr %.300q", r.Verdict, text(r), r.Stderr.Bytes())
		}
		if err := s.Put(s.Context(), []sandbox.File{{Path: "over", Mode: 0o644}}); err != nil {
			s.Fatal(err)
		}
		eventually(s.T, "the file printed", func() bool {
			list, _, err := s.Files(s.Context(), "")
			return err == nil && slices.ContainsFunc(list, func(e Entry) bool { return strings.HasSuffix(e.Path, "printed") })
		})
		r := s.do(d.get)
		if got := strings.Fields(text(r)); !slices.Equal(got, []string{"late", "42"}) {
			s.Errorf("the next cell: %q", got)
		}
		if r := s.do(d.get); strings.Contains(text(r), "late") {
			s.Errorf("the cell after it: %q", text(r))
		}
	})
}

// Values and errors of any size are bounded, and the session goes on.
func TestSuiteSizes(t *testing.T) {
	m := newManager(t, Options{})
	withDialects(t, quick(func(d *dialect) string { return d.value + d.raises }), func(t *testing.T, d *dialect) {
		const most = 20 << 20 // output on both streams, and displays
		req := in(d.language)
		req.Limits.Memory = 768 * sandbox.MiB
		s := create(t, m, req)
		s.has(d.set, "")
		if d.value != "" {
			r := s.do(d.value)
			if size := len(text(r)) + len(r.Stderr.Bytes()); r.Verdict != sandbox.VerdictOK || r.State != StateIdle || size > most ||
				!strings.Contains(text(r), "aaaaaaaa") {
				s.Errorf("a value: %s, %s, %d bytes; stderr %.300q", r.Verdict, r.State, size, r.Stderr.Bytes())
			}
			s.alive(d)
		}
		if d.raises == "" {
			return
		}
		r := s.do(d.raises)
		size := len(r.Stderr.Bytes())
		if r.Error != nil {
			size += len(r.Error.Message)
		}
		if r.Verdict == sandbox.VerdictOK || r.State != StateIdle || size > most || !strings.Contains(string(r.Stderr.Bytes()), "aaaaaaaa") {
			s.Errorf("an error: %s, %s, %d bytes; stderr %.300q", r.Verdict, r.State, size, r.Stderr.Bytes())
		}
		s.alive(d)
	})
}

func TestSuiteUnicode(t *testing.T) {
	forDialects(t, quick(func(d *dialect) string { return d.unicode }), func(s tester, d *dialect) {
		if r := s.do(d.unicode); r.Verdict != sandbox.VerdictOK || strings.Count(text(r), "ä€😀") != 2 {
			s.Errorf("%s %q; stderr %.300q", r.Verdict, text(r), r.Stderr.Bytes())
		}
		if d.asks == "" {
			return
		}
		prompt := ""
		r := s.cell(Cell{Code: strings.ReplaceAll(d.asks, "name? ", "имя😀? "), Input: func(_ context.Context, q protocol.Input) (string, bool) {
			prompt = q.Prompt
			return "€😀", true
		}})
		if said := prompt + string(r.Stdout.Bytes()); !strings.Contains(said, "имя😀? ") || !strings.Contains(said, "<€😀>") {
			s.Errorf("prompt and answer: %s %q; stderr %.300q", r.Verdict, said, r.Stderr.Bytes())
		}
	})
}

// Every question that a session says to answer has an answer.
func TestSuiteQuestions(t *testing.T) {
	forDialects(t, quick(func(*dialect) string { return "x" }), func(s tester, d *dialect) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.has(d.set, "")
		features := s.Info().Features
		for code, want := range map[string]string{d.set: "complete", d.incomplete: "incomplete"} {
			if r, err := s.Check(ctx, code); err != nil || r.Status != want {
				s.Errorf("check %q: %+v, %v", code, r, err)
			}
		}
		if r, err := s.Variables(ctx); err != nil || !slices.ContainsFunc(r.Variables, func(v protocol.Variable) bool { return v.Name == d.variable }) {
			s.Errorf("variables: %+v, %v", r, err)
		}
		switch r, err := s.Complete(ctx, d.completes, len(d.completes)); {
		case !slices.Contains(features, protocol.KindComplete):
			if !errors.Is(err, sandbox.ErrUnsupported) || d.completes != "" {
				s.Errorf("complete: %v", err)
			}
		case err != nil || !slices.Contains(r.Matches, d.completed) || !strings.HasPrefix(d.completed, d.completes[r.Start:r.End]):
			s.Errorf("complete %q: %+v, %v", d.completes, r, err)
		}
		for name, found := range map[string]bool{d.variable: true, "missing_name": false} {
			i, err := s.Inspect(ctx, name)
			switch {
			case !slices.Contains(features, protocol.KindInspect):
				if !errors.Is(err, sandbox.ErrUnsupported) {
					s.Errorf("inspect: %v", err)
				}
			case err != nil || i.Found != found || found && i.Text == "":
				s.Errorf("inspect %s: %+v, %v", name, i, err)
			}
		}
		s.alive(d)
	})
}

// An interrupt while no cell runs changes nothing. A signal says not which cell it is for: one that was sent when a cell had ended may
// arrive in the next one, and ends at most that.
func TestSuiteIdleInterrupt(t *testing.T) {
	forDialects(t, quick(func(*dialect) string { return "x" }), func(s tester, d *dialect) {
		s.has(d.set, "")
		for range 3 {
			if err := s.Interrupt(); err != nil {
				s.Error(err)
			}
			s.alive(d)
		}
		if !d.state {
			return
		}
		s.present().driver.interrupt(1)
		hit := 0
		for range 3 {
			r := s.do(d.get)
			if r.State != StateIdle {
				s.Errorf("%s, %s: %s", r.Verdict, r.State, r.Cause)
			}
			if r.Verdict != sandbox.VerdictOK {
				hit++
			}
		}
		if hit > 0 && (s.present().driver.ready.How == "message" || hit > 1) {
			s.Errorf("an interrupt has ended %d cells", hit)
		}
		s.alive(d)
	})
}

// inTake matches a goroutine that waits for a session's turn.
var inTake = regexp.MustCompile(`\[select[^\]]*\]:\n[^\n]*session\.\(\*Session\)\.await\(`)

// Cells that wait run in the order in which they came.
func TestSuiteOrder(t *testing.T) {
	const n = 20
	m := newManager(t, Options{Waiting: n})
	withDialects(t, quick(interpreter), func(t *testing.T, d *dialect) {
		s := create(t, m, in(d.language))
		s.has(d.set, "")
		s.turn <- struct{}{} // as a cell that runs
		var cells sync.WaitGroup
		for i := range n {
			cells.Go(func() { s.do(d.get + strings.Repeat("\n", i)) })
			eventually(s.T, fmt.Sprintf("cell %d", i), func() bool {
				stacks := make([]byte, 1<<20)
				return len(inTake.FindAll(stacks[:runtime.Stack(stacks, true)], -1)) == i+1
			})
		}
		if waiting := s.Info().Waiting; waiting != n {
			s.Errorf("%d cells wait", waiting)
		}
		<-s.turn
		cells.Wait()
		past := s.History()
		if len(past) != n+1 {
			s.Fatalf("%d cells", len(past))
		}
		for i, p := range past[1:] {
			if p.Code != d.get+strings.Repeat("\n", i) || p.Verdict != sandbox.VerdictOK {
				s.Errorf("cell %d: %q, %s", i, p.Code, p.Verdict)
			}
		}
	})
}
