package executor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// stackCase is a program that a limit ends: that of CPU time, or of time if wall is set.
type stackCase struct {
	name, language, code string
	wall                 time.Duration
	at                   int    // the line where it was; 0: it prints no stacks
	stdout               string // all of it
	signal, exit         int    // how it ended
	long                 bool   // for make test-all
}

var stackCases = []stackCase{
	{name: "go loop", language: "go", at: 7, exit: 2, stdout: "before\n", code: `package main

import "os"

func main() {
	os.Stdout.WriteString("before\n")
	for i := 1; i > 0; { i = i*7%13 + 1 }
}
`},
	{name: "go sleep", long: true, language: "go", wall: 3 * time.Second, at: 6, exit: 2, code: `package main

import "time"

func main() {
	time.Sleep(time.Hour)
}
`},
	{name: "go goroutine", long: true, language: "go", at: 6, exit: 2, code: `package main

func main() {
	done := make(chan int)
	go func() {
		for i := 1; i > 0; { i = i*7%13 + 1 }
	}()
	<-done
}
`},
	{name: "java loop", language: "java", at: 4, exit: 143, stdout: "before\nhook\n", code: `public class Main {
  public static void main(String[] args) {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("hook")));
    System.out.println("before"); for (int i = 0; ; i++) f(i);
  }
  static int f(int i) { return i; }
}
`},
	{name: "java sleep", long: true, language: "java", wall: 10 * time.Second, at: 3, exit: 143, code: `public class Main {
  public static void main(String[] args) throws Exception {
    Thread.sleep(3600_000);
  }
}
`},
	{name: "java thread", long: true, language: "java", at: 3, exit: 143, code: `public class Main {
  public static void main(String[] args) throws Exception {
    Thread t = new Thread(() -> { for (int i = 0; ; i++); }, "busy");
    t.start();
    t.join();
  }
}
`},
	{name: "python loop", language: "python", at: 2, signal: 15, stdout: "before\n", code: "print('before')\nwhile True: len('')\n"},
	{name: "python sleep", language: "python", wall: 3 * time.Second, at: 4, signal: 15,
		code: "import time\n\ndef wait():\n    time.sleep(3600)\n\nwait()\n"},
	{name: "python thread", long: true, language: "python", at: 4, signal: 15,
		code: "import threading\n\ndef busy():\n    while True: len('')\n\nt = threading.Thread(target=busy)\nt.start()\nt.join()\n"},
	{name: "python that ends in order", language: "python", at: 5, stdout: "ended\n",
		code: "import signal, sys\ndef end(*_):\n    print('ended'); sys.exit(0)\nsignal.signal(signal.SIGTERM, end)\nwhile True: len('')\n"},
	{name: "python with a handler of its own", language: "python", signal: 15, stdout: "own\n",
		code: "import signal\nsignal.signal(16, lambda *_: print('own'))\nwhile True: len('')\n"},
	{name: "python that ignores the signal", language: "python", signal: 15,
		code: "import signal\nsignal.signal(16, signal.SIG_IGN)\nwhile True: len('')\n"},
	{name: "python that becomes another program", long: true, language: "python", wall: 3 * time.Second, signal: 15,
		code: "import os\nos.execv('/bin/sleep', ['sleep', '3600'])\n"},
	{name: "go that ends in order", language: "go", stdout: "terminated\n", code: `package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGQUIT)
	for len(c) == 0 {
	}
	os.Stdout.WriteString((<-c).String() + "\n")
}
`},
}

func (c *stackCase) need(t *testing.T) {
	if c.long {
		testenv.NeedAll(t, "TestStackAtLimit/python_loop")
	}
}

func (c *stackCase) request() Request {
	req := Request{Language: c.language, Code: c.code, Limits: sandbox.Limits{Wall: 10 * time.Minute, CPUTime: time.Second}}
	if c.language == "java" {
		req.Limits.CPUTime = 3 * time.Second // its machine takes some of it to start
	}
	if c.wall > 0 {
		req.Limits = sandbox.Limits{Wall: c.wall}
	}
	req.Limits.Grace = 20 * time.Second // the machine may be busy
	req.CompileLimits.Wall = 10 * time.Minute
	return req
}

func (c *stackCase) check(t *testing.T, r *Result) {
	t.Helper()
	stderr := string(r.Stderr.Bytes())
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\nverdict %s, exit %+v, diagnosis %+v\nstdout: %s\nstderr: %s",
			append(args, r.Verdict, r.Exit, r.Diagnosis, short(string(r.Stdout.Bytes())), short(stderr))...)
	}
	want := sandbox.VerdictCPULimit
	if c.wall > 0 {
		want = sandbox.VerdictTimeLimit
	}
	if r.Verdict != want || r.ExitCode() != 124 || r.Exit.Code != c.exit || r.Exit.Signal != c.signal {
		fail("it ended otherwise")
	}
	if string(r.Stdout.Bytes()) != c.stdout {
		fail("stdout is not %q", c.stdout)
	}
	if len(r.Violations) != 1 {
		fail("violations %+v", r.Violations)
	}
	d := r.Diagnosis
	switch {
	case d == nil:
		fail("no diagnosis")
	case c.at == 0:
		if stderr != "" || d.Location != nil {
			fail("it printed stacks")
		}
	case d.Location == nil || d.Location.Line != c.at || !d.Frames[0].User || !strings.Contains(d.Excerpt, "> ") ||
		!strings.Contains(d.Cause, "; it was at "):
		fail("it was not at line %d", c.at)
	}
}

// Programs print where they are when a limit ends them; neither their output nor the way they end suffers.
func TestStackAtLimit(t *testing.T) {
	e := realEngine(t)
	for _, c := range stackCases {
		t.Run(c.name, func(t *testing.T) {
			c.need(t)
			r, err := e.Execute(t.Context(), c.request())
			if err != nil {
				t.Fatal(err)
			}
			c.check(t, r)
		})
	}
}

// So do programs that start warm.
func TestStackAtLimitWarm(t *testing.T) {
	e, p := pooledEngine(t)
	readied(t, e, p, "python", "java")
	for _, name := range []string{"python loop", "python thread", "python that ends in order", "java loop", "java thread"} {
		c := stackCases[slices.IndexFunc(stackCases, func(c stackCase) bool { return c.name == name })]
		t.Run(c.name, func(t *testing.T) {
			c.need(t)
			c.check(t, execute(t, e, p, c.request()))
		})
	}
}

// Signals of the program's own do what they do elsewhere.
func TestStackSignalElsewhere(t *testing.T) {
	e := realEngine(t)
	for name, req := range map[string]Request{
		"its own":   {Code: "import os, signal\nos.kill(os.getpid(), signal.SIGQUIT)\n"},
		"its child": {Code: "import subprocess\np = subprocess.Popen(['sleep', '999'])\np.send_signal(16)\nraise SystemExit(p.wait() + 16)\n"},
	} {
		req.Language = "python"
		req.Limits.Wall = 10 * time.Minute
		r, err := e.Execute(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := map[string]sandbox.Verdict{"its own": sandbox.VerdictSignaled, "its child": sandbox.VerdictOK}[name]
		if r.Verdict != want || r.Stderr.Total != 0 {
			t.Errorf("%s: %s %+v %s", name, r.Verdict, r.Exit, r.Stderr.Bytes())
		}
	}
}

// Many goroutines print no more than the grace period and the limit of the output allow, and the beginning of the output is kept.
func TestStacksOfManyGoroutines(t *testing.T) {
	e := realEngine(t)
	c := stackCase{language: "go", code: `package main

import "os"

func main() {
	os.Stderr.WriteString("before\n")
	done := make(chan int)
	for range 20_000 {
		go func() { <-done }()
	}
	for i := 1; i > 0; { i = i*7%13 + 1 }
}
`}
	req := c.request()
	req.Limits.Output = 64 * sandbox.KiB
	r, err := e.Execute(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != sandbox.VerdictCPULimit || r.Diagnosis == nil || r.Diagnosis.Location == nil || r.Diagnosis.Location.Line != 11 ||
		!strings.HasPrefix(string(r.Stderr.Head), "before\n") || len(r.Stderr.Bytes()) > 128<<10 {
		t.Errorf("%s %+v %+v %d bytes of %d\n%s", r.Verdict, r.Exit, r.Diagnosis, len(r.Stderr.Bytes()), r.Stderr.Total, r.Stderr.Head[:1000])
	}
	t.Logf("%d bytes in %v", r.Stderr.Total, r.Metrics.WallTime)
}
