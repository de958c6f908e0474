package session

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// newManager returns a manager of sessions on the native backend.
func newManager(t testing.TB, o Options) *Manager {
	t.Helper()
	testenv.NeedRoot(t)
	b, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kit, err := kitpath.Find()
	if err != nil {
		t.Fatal(err)
	}
	sandboxes := sandbox.NewManager(b, sandbox.Options{})
	m := NewManager(executor.New(sandboxes, executor.Options{Kit: kit, WarmDir: testenv.WarmDir(t.TempDir())}), o)
	t.Cleanup(func() {
		m.Close()
		if left := sandboxes.List(); len(left) > 0 {
			t.Errorf("%d sandboxes are left", len(left))
		}
		if err := sandboxes.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// patience is far beyond what any call needs; a call that takes longer hangs.
const patience = 2 * time.Minute

// tester is a session under test.
type tester struct {
	*testing.T
	*Session
}

func create(t *testing.T, m *Manager, req Request) tester {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := m.Create(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return tester{t, s}
}

func in(language string) Request { return Request{Request: executor.Request{Language: language}} }

func (t tester) cell(c Cell) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := t.Execute(ctx, c)
	if err != nil {
		t.Fatalf("%.80q: %v", c.Code, err)
	}
	return r
}

func (t tester) do(code string) *Result {
	t.Helper()
	return t.cell(Cell{Code: code})
}

// shows runs a cell and fails unless it ends well and shows a text: its output and its value.
func (t tester) shows(code, want string) {
	t.Helper()
	r := t.do(code)
	if got := shown(r); r.Verdict != sandbox.VerdictOK || got != want {
		t.Errorf("%.80q: %s, %.300q, want %.300q; stderr %.500q", code, r.Verdict, got, want, r.Stderr.Bytes())
	}
}

func shown(r *Result) string {
	return strings.TrimRight(string(r.Stdout.Bytes())+r.Value(), "\n")
}

func TestPythonSession(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	s.shows("x = 40", "")
	s.shows("print('a'); x + 2", "a\n42")
	if r := s.do("1/0"); r.Verdict != sandbox.VerdictNonzeroExit || r.Error == nil || r.Error.Name != "ZeroDivisionError" {
		t.Errorf("%s %+v %s", r.Verdict, r.Error, r.Stderr.Bytes())
	}
	began := time.Now()
	for range 200 {
		s.shows("1+1", "2")
	}
	t.Logf("%v a cell", time.Since(began)/200)
	r := s.cell(Cell{Code: "while True: pass", Limits: sandbox.Limits{Wall: 300 * time.Millisecond}})
	if r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
		t.Errorf("%s %s", r.Verdict, r.State)
	}
	s.shows("x", "40")
	t.Logf("%+v", s.Info().Usage)
}
