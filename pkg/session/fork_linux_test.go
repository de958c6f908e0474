package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func (t tester) fork(o ForkOptions) tester {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f, err := t.Fork(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return tester{t.T, f}
}

func TestForkPython(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	s.shows("import os, random; x = [1]; open('f', 'w').write('a')", "1")
	began := time.Now()
	f := s.fork(ForkOptions{Name: "second"})
	t.Logf("fork: %v", time.Since(began))
	f.shows("x.append(2); x", "[1, 2]")
	s.shows("x", "[1]")
	f.shows("print(open('f').read())", "a")
	f.shows("open('g', 'w').write('b')", "1")
	s.shows("print(open('g').read())", "b")
	s.shows("print('of the first')", "of the first")
	f.shows("print('of the second')", "of the second")
	if a, b := shown(s.do("random.random()")), shown(f.do("random.random()")); a == b {
		t.Errorf("both have the random number %s", a)
	}
	// Each has limits of its own, and is interrupted alone.
	wall := sandbox.Limits{Wall: 300 * time.Millisecond}
	r := f.cell(Cell{Code: "while True: pass", Limits: wall})
	if r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
		t.Errorf("loop in the fork: %s, %s", r.Verdict, r.State)
	}
	if r.Metrics.CPUTime == 0 {
		t.Error("the fork's loop took no processor time")
	}
	// A loop that ignores interrupts ends its own interpreter, and no other.
	stubborn := "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass"
	g := f.fork(ForkOptions{})
	if r := g.cell(Cell{Code: stubborn, Limits: wall}); r.Verdict != sandbox.VerdictTimeLimit || r.State != StateEnded {
		t.Errorf("stubborn loop: %s, %s", r.Verdict, r.State)
	}
	f.shows("x", "[1, 2]")
	if r := s.cell(Cell{Code: stubborn, Limits: wall}); r.Verdict != sandbox.VerdictTimeLimit || r.State != StateEnded {
		t.Errorf("stubborn loop in the first: %s, %s", r.Verdict, r.State)
	}
	f.shows("x", "[1, 2]")
	ctx := context.Background()
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	s.shows("'x' in globals()", "False")
	s.shows("print(open('g').read())", "b")
	s.Close()
	f.shows("x", "[1, 2]")
	f.shows("print(open('g').read())", "b")
	r = f.cell(Cell{Code: "b = bytearray(1 << 40)"})
	if r.Verdict == sandbox.VerdictOK {
		t.Error("a terabyte was allocated")
	}
	if err := f.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	f.shows("import os; os.path.exists('g')", "False")
}

// A session is forked again and again, at once after it was made: each fork is ready, has the state, and is interrupted alone.
func TestForkOften(t *testing.T) {
	testenv.NeedAll(t, "TestForkPython")
	for language, cells := range map[string]struct{ set, change, loop string }{
		"python": {"x = 6", "x += 1; print(x)", "while True: pass"},
		"shell":  {"x=6", "x=$((x + 1)); echo $x", "while :; do :; done"},
	} {
		t.Run(language, func(t *testing.T) {
			s := create(t, newManager(t, Options{}), in(language))
			for i := range 20 {
				if i == 1 {
					s.cell(Cell{Code: cells.set}).Close()
				}
				f := s.fork(ForkOptions{})
				if i > 0 {
					f.has(cells.change, "7")
				}
				if r := f.cell(Cell{Code: cells.loop, Limits: sandbox.Limits{Wall: 100 * time.Millisecond}}); r.State != StateIdle {
					t.Errorf("a loop in fork %d: %s, %s: %s", i, r.Verdict, r.State, r.Cause)
				}
				f.Close()
			}
			s.has(cells.change, "7")
		})
	}
}

// A memory limit holds for a fork alone, and ends it alone.
func TestThreatR4Fork(t *testing.T) {
	req := in("python")
	req.Limits.Memory = 128 * sandbox.MiB
	s := create(t, newManager(t, Options{}), req)
	s.shows("x = 1", "")
	f := s.fork(ForkOptions{})
	r := f.do("b = []\nwhile True: b.append(b'x' * (1 << 20))")
	if r.Verdict != sandbox.VerdictMemoryLimit {
		t.Errorf("%s; stderr %.500s", r.Verdict, r.Stderr.Bytes())
	}
	s.shows("x", "1")
}

// A fork counts as a session of its owner, other owners do not see it, and the limit on processes is its own.
func TestThreatA5Fork(t *testing.T) {
	m := newManager(t, Options{PerOwner: 2})
	req := in("python")
	req.Owner, req.Limits.Processes = "a", 32
	s := create(t, m, req)
	s.shows("x = 1", "")
	f := s.fork(ForkOptions{})
	for _, of := range []tester{s, f} {
		if more, err := of.Fork(context.Background(), ForkOptions{}); !errors.Is(err, ErrBusy) {
			t.Errorf("a third session of two: %v, %v", more, err)
		}
	}
	if _, err := m.Get("b", f.ID()); !errors.Is(err, ErrNotFound) {
		t.Errorf("another owner gets the fork: %v", err)
	}
	if _, err := m.Get("a", f.ID()); err != nil { // control
		t.Error(err)
	}
	const count = `import os, time
n = 0
try:
    while n < 64:
        if os.fork() == 0: time.sleep(1e6)
        n += 1
except OSError: pass
0 < n < 32`
	f.shows(count, "True")
	s.shows("import subprocess; subprocess.run(['true']).returncode", "0")
	s.shows(count, "True")
	f.Close()
	if again, err := s.Fork(context.Background(), ForkOptions{}); err == nil { // control: there is room for it now
		t.Error("a fork of a session that has all its processes")
		again.Close()
	} else if errors.Is(err, ErrBusy) {
		t.Errorf("the fork that was closed still counts: %v", err)
	}
}

func TestForkFiles(t *testing.T) {
	m := newManager(t, Options{})
	s := create(t, m, in("python"))
	s.shows("x = 3; import os; os.makedirs('d/e'); open('d/e/f', 'w').write('a' * 100000)", "100000")
	s.shows("os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')", "")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fork := m.newSession(s.req)
	if err := s.forkFiles(ctx, s.box, fork, false); err != nil {
		t.Fatal(err)
	}
	copied, err := m.enter(fork, &Request{Idle: time.Hour, Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := tester{t, copied}
	defer f.Close()
	f.shows("import os; len(open('d/e/f').read()), 'x' in globals(), os.path.lexists('link'), os.path.lexists('pipe')", "(100000, False, False, False)")
	notes := strings.Join(f.Info().Notes, "\n")
	if !strings.Contains(notes, "link") || !strings.Contains(notes, "pipe") {
		t.Errorf("notes %q", notes)
	}
	f.shows("open('d/e/f', 'w').write('b')", "1")
	s.shows("len(open('d/e/f').read())", "100000")
}
