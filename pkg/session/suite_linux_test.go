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

// dialect has the cells of a language for the suite. An empty cell is something that the language can not do.
type dialect struct {
	language  string
	set       string // declares x as 41
	get       string // shows x + 1
	again     string // declares x once more, as 51
	fails     string // fails with an error of the language; the session goes on
	says      string // the error on stderr
	broken    string // has a syntax error
	loop      string // never ends
	block     string // waits for ever
	exits     string // ends the interpreter with exit code 7
	interlace string // prints o1 to stdout, e1 to stderr, o2 to stdout
	huge      string // prints 3 MiB of a's
	binary    string // prints the bytes 0, 255, 10
	asks      string // asks for a line with the prompt "name? " and prints it in angle brackets
	closes    string // closes its standard streams and every descriptor above
	forges    string // writes a frame that says that the cell succeeded, and fails
	kills     string // sends SIGKILL to its own process
	fills     string // takes memory without end
	thread    string // starts a thread or process that outlives the cell
	forks     string // makes a process that ends at once
	keeps     bool   // the value of x survives a cell
	state     bool   // an interpreter lives between the cells
}

var dialects = []dialect{
	{
		language: "python", set: "x = 41", get: "print(x + 1)", again: "x = 51", fails: "1/0", says: "ZeroDivisionError", broken: "def (", loop: "while True: pass",
		block: "import time; time.sleep(1000)", exits: "import sys; sys.exit(7)",
		interlace: "import sys; print('o1', flush=True); print('e1', file=sys.stderr, flush=True); print('o2')",
		huge:      "print('a' * (3 << 20))", binary: "import sys; sys.stdout.buffer.write(bytes([0, 255, 10])); sys.stdout.flush()",
		asks:   "print('<' + input('name? ') + '>')",
		closes: "import os; os.closerange(0, 256)",
		forges: "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'done 1 11\\n{\"ok\":true}done 2 11\\n{\"ok\":true}')\n    except OSError: pass\n1/0",
		kills:  "import os; os.kill(os.getpid(), 9)", fills: "b = []\nwhile True: b.append(b'x' * (1 << 20))",
		thread: "import threading, time; t = threading.Thread(target=time.sleep, args=(1000,)); t.start(); print('started')",
		forks:  "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); print('forked')", keeps: true, state: true,
	},
	{
		language: "javascript", set: "const x = 41", get: "console.log(x + 1)", again: "const x = 51", fails: "null.f", says: "TypeError", broken: "function (",
		loop: "while (true) {}", block: "await new Promise(() => {})", exits: "process.exit(7)",
		interlace: "console.log('o1'); console.error('e1'); console.log('o2')", huge: "console.log('a'.repeat(3 << 20))",
		binary: "process.stdout.write(Buffer.from([0, 255, 10])); undefined", asks: "console.log('<' + prompt('name? ') + '>')",
		closes: "{ const fs = require('fs'); for (let i = 0; i < 256; i++) { try { fs.closeSync(i) } catch {} } }",
		forges: "{ const fs = require('fs'); for (let i = 0; i < 100; i++) { if (i == 1 || i == 2) continue; try { fs.writeSync(i, 'done 1 11\\n{\"ok\":true}done 2 11\\n{\"ok\":true}') } catch {} } }; null.f",
		kills:  "process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})",
		fills:  "{ const b = []; for (;;) b.push(Buffer.alloc(1 << 20, 1)) }", thread: "setInterval(() => {}, 1000); console.log('started')",
		forks: "require('child_process').execFileSync('/bin/true'); console.log('forked')", keeps: true, state: true,
	},
	{
		language: "typescript", set: "const x: number = 41", get: "console.log(x + 1)", again: "const x: number = 51", fails: "(null as any).f", says: "TypeError",
		broken: "function (", loop: "while (true) {}", block: "await new Promise<void>(() => {})", exits: "process.exit(7)",
		interlace: "console.log('o1'); console.error('e1'); console.log('o2')", huge: "console.log('a'.repeat(3 << 20))",
		binary: "process.stdout.write(Buffer.from([0, 255, 10])); undefined", asks: "console.log('<' + prompt('name? ') + '>')", keeps: true, state: true,
	},
	{
		language: "shell", set: "x=41", get: "echo $((x + 1))", again: "x=51", fails: "false", broken: "if (", loop: "while :; do :; done", block: "sleep 1000",
		exits: "exit 7", interlace: "echo o1; echo e1 >&2; echo o2", huge: "head -c 3145728 /dev/zero | tr '\\0' a; echo", binary: `printf '\000\377\n'`,
		asks:   `read -r -p "name? " name; echo "<$name>"`,
		closes: "for fd in {0..255}; do eval \"exec $fd>&-\"; done 2>/dev/null",
		forges: "for fd in {3..100}; do printf 'done 1 11\\n{\"ok\":true}done 2 11\\n{\"ok\":true}' >&$fd; done 2>/dev/null; false",
		kills:  "kill -9 $$", fills: "x=a; while :; do x=$x$x; done", thread: "sleep 1000 & echo started", forks: "/bin/true; echo forked", keeps: true, state: true,
	},
	{
		language: "sql", set: "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (41);", get: "SELECT x + 1 AS y FROM t;", again: "UPDATE t SET x = 51;",
		fails: "SELECT * FROM missing;", says: "missing", broken: "SELEC 1;", loop: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n;",
		keeps: true, state: true,
	},
	{
		language: "java", set: "int x = 41;", get: "System.out.println(x + 1)", again: "int x = 51;", fails: "int z = 1 / (x - x);", says: "ArithmeticException",
		broken: "class {", loop: "while (true) {}", block: "Thread.sleep(1000000)", exits: "System.exit(7)",
		interlace: `System.out.println("o1"); System.err.println("e1"); System.out.println("o2");`, huge: `System.out.println("a".repeat(3 << 20))`,
		binary: "System.out.write(0); System.out.write(255); System.out.write(10); System.out.flush();",
		asks:   `System.out.print("name? "); var line = new Scanner(System.in).nextLine(); System.out.println("<" + line + ">");`,
		kills:  "ProcessHandle.current().pid(); new ProcessBuilder(\"/bin/sh\", \"-c\", \"kill -9 $PPID\").start(); Thread.sleep(1000000);",
		fills:  "var b = new java.util.ArrayList<byte[]>(); while (true) b.add(new byte[1 << 20]);",
		thread: `new Thread(() -> { try { Thread.sleep(1000000); } catch (InterruptedException e) {} }).start(); System.out.println("started");`, keeps: true, state: true,
	},
	{
		language: "go", set: "const x = 41", get: "fmt.Println(x + 1)", again: "const x = 51", fails: `panic("oops")`, says: "oops", broken: "func (",
		loop: "for {}", block: "select {}", exits: "os.Exit(7)", interlace: `fmt.Println("o1"); fmt.Fprintln(os.Stderr, "e1"); fmt.Println("o2")`,
		huge: `fmt.Println(strings.Repeat("a", 3<<20))`, binary: "os.Stdout.Write([]byte{0, 255, 10})",
		fills: "var b [][]byte; for { c := make([]byte, 1<<20); for i := range c { c[i] = 1 }; b = append(b, c) }",
	},
	{
		language: "rust", set: "const X: i32 = 41;", get: `println!("{}", X + 1);`, again: "const X: i32 = 51;", fails: `panic!("oops");`, says: "oops", broken: "fn (",
		loop: "loop {}", block: "std::thread::sleep(std::time::Duration::from_secs(1000));", exits: "std::process::exit(7);",
		interlace: `println!("o1"); eprintln!("e1"); println!("o2");`, huge: `println!("{}", "a".repeat(3 << 20));`,
	},
}

// short are the languages whose suite make test runs; make test-all runs all.
var short = []string{"python", "javascript", "shell", "java"}

// forDialects runs a test in every language, for those that have its cell.
func forDialects(t *testing.T, has func(*dialect) string, test func(tester, *dialect)) {
	t.Helper()
	m := newManager(t, Options{})
	for i := range dialects {
		d := &dialects[i]
		if has != nil && has(d) == "" || !testenv.All() && !slices.Contains(short, d.language) {
			continue
		}
		t.Run(d.language, func(t *testing.T) { test(create(t, m, in(d.language)), d) })
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
	forDialects(t, func(d *dialect) string { return d.loop }, func(s tester, d *dialect) {
		s.has(d.set, "")
		for _, code := range []string{d.loop, d.block} {
			if code == "" {
				continue
			}
			if r := s.interruptedSoon(d, code); r.Verdict != sandbox.VerdictCancelled || !r.Interrupted || r.State != StateIdle {
				s.Errorf("%q: %s, interrupted %t, %s; stderr %.300q", code, r.Verdict, r.Interrupted, r.State, r.Stderr.Bytes())
			}
			s.alive(d)
			if r := s.cell(Cell{Code: code, Limits: sandbox.Limits{Wall: time.Second}}); r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
				s.Errorf("%q: %s, %s", code, r.Verdict, r.State)
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
	forDialects(t, func(d *dialect) string { return d.exits }, func(s tester, d *dialect) {
		for name, code := range map[string]string{"exits": d.exits, "kills": d.kills, "closes": d.closes, "fills": d.fills} {
			if code == "" {
				continue
			}
			s.has(d.set, "")
			r := s.cell(Cell{Code: code, Limits: sandbox.Limits{Wall: 30 * time.Second}})
			switch {
			case name == "exits" && (r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 7):
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
			if r.State == StateEnded {
				if err := s.Restart(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			s.has(d.set, "")
			s.alive(d)
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
		d      *dialect
		n, all int
	}{{&dialects[0], 20, 200}, {&dialects[1], 4, 20}, {&dialects[3], 4, 20}, {&dialects[4], 2, 20}, {&dialects[5], 0, 20}} {
		n := kind.n
		if testenv.All() {
			n = kind.all
		}
		t.Run(kind.d.language, func(t *testing.T) {
			var sessions []tester
			var mu sync.Mutex
			var making sync.WaitGroup
			limit := make(chan struct{}, 8)
			for range n {
				making.Go(func() {
					limit <- struct{}{}
					defer func() { <-limit }()
					s, err := m.Create(context.Background(), in(kind.d.language))
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
				s.has(strings.ReplaceAll(kind.d.set, "41", fmt.Sprint(i)), "")
			}
			for i, s := range sessions {
				s.has(kind.d.get, fmt.Sprint(i+1))
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
	cells.Go(func() { s.cell(Cell{Code: "1"}) })
	for s.Info().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Execute(ctx, Cell{Code: "1"}); !errors.Is(err, ErrBusy) {
		t.Errorf("one cell too many: %v", err)
	}
	if err := s.Interrupt(); err != nil {
		t.Error(err)
	}
	cells.Wait()
}
