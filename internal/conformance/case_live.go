package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// liveShell is a program that executes each line of its socket and reports its status.
const liveShell = `trap : INT; exec 9<&0 </dev/null; while IFS= read -r line <&9; do eval "$line"; printf 'done %d\n' $? >&9; done`

// live is such a program in a sandbox.
type live struct {
	*sandbox.Live
	e       *env
	answers *bufio.Reader
}

func (e *env) live(id string, limits sandbox.Limits) *live {
	e.Helper()
	l, err := e.m.Start(e.Context(), id, sandbox.Process{Args: e.sh(liveShell), Limits: limits, Phase: "cell"})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = l.Close() })
	started := &live{l, e, bufio.NewReader(l.Driver())}
	started.do(":", sandbox.Limits{}) // its trap is set
	return started
}

// line is a line as a piece of work.
type line struct {
	*live
	text   string
	waited func() time.Duration
}

func (w line) Begin() error { _, err := fmt.Fprintln(w.Driver(), w.text); return err }

func (w line) Wait() (code int, ok bool) {
	n, err := fmt.Fscanf(w.answers, "done %d\n", &code)
	return code, err == nil && n == 1
}

func (w line) Interrupt() error { return w.Signal(syscall.SIGINT) }

func (w line) Waited() time.Duration {
	if w.waited == nil {
		return 0
	}
	return w.waited()
}

func (l *live) try(text string, limits sandbox.Limits) (*sandbox.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ample(caseTimeout))
	defer cancel()
	return l.Do(ctx, limits, sandbox.IO{}, line{l, text, nil})
}

func (l *live) do(text string, limits sandbox.Limits) *sandbox.Result {
	l.e.Helper()
	res, err := l.try(text, limits)
	if err != nil {
		l.e.Fatalf("%s: %v", text, err)
	}
	return res
}

// liveRows are cases of processes that stay between pieces of work (Manager.Start).
var liveRows = []row{
	{"pieces of work have their own output and share the state", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		for i := range 50 {
			res := l.do(fmt.Sprintf("n=$((n + 1)); echo out $n; echo err $n >&2; [ $n != %d ]", 7), sandbox.Limits{})
			want := sandbox.VerdictOK
			if i+1 == 7 {
				want = sandbox.VerdictNonzeroExit
			}
			e.verdict(res, want)
			if out, err := string(res.Stdout.Bytes()), string(res.Stderr.Bytes()); out != fmt.Sprintf("out %d\n", i+1) || err != fmt.Sprintf("err %d\n", i+1) {
				e.Fatalf("piece %d: %q, %q", i+1, out, err)
			}
		}
	}},
	{"output between pieces belongs to the next", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		e.says(l.do("(until [ -e go ]; do sleep 0.01; done; echo late; touch gone) & echo now", sandbox.Limits{}), "now")
		var all strings.Builder
		all.Write(l.do("touch go", sandbox.Limits{}).Stdout.Bytes()) // perhaps with the output already
		for range 500 {
			if all.Write(l.do("[ -e gone ] && echo here", sandbox.Limits{}).Stdout.Bytes()); strings.Contains(all.String(), "here") {
				break
			}
		}
		if all.String() != "late\nhere\n" {
			e.Errorf("%q", all.String())
		}
	}},
	{"output without end does not outlive its piece", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		res := l.do("while :; do echo more; done & pid=$!; echo begun", sandbox.Limits{Output: 4 * sandbox.KiB})
		e.verdict(res, sandbox.VerdictOK)
		res = l.do("kill $pid; wait $pid; echo over", sandbox.Limits{Output: 4 * sandbox.KiB})
		if out := string(res.Stdout.Bytes()); !strings.HasSuffix(out, "over\n") {
			e.Errorf("%.200q", out)
		}
	}},
	{"metrics are those of the piece", []Expectation{Live, Programs, Metrics}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		busy := l.do("i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done", sandbox.Limits{})
		idle := l.do(":", sandbox.Limits{})
		if a, b := busy.Metrics.CPUTime, idle.Metrics.CPUTime; a <= 0 || b >= a/2 {
			e.Errorf("CPU time %v, then %v", a.Duration(), b.Duration())
		}
	}},
	{"a time limit interrupts the piece and leaves the process", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		res := l.do("kept=1; sleep 1000", sandbox.Limits{Wall: 300 * time.Millisecond})
		e.verdict(res, sandbox.VerdictTimeLimit)
		if !violated(res, "timeout") {
			e.Errorf("%+v", res.Violations)
		}
		e.says(l.do("echo kept $kept", sandbox.Limits{}), "kept 1")
	}},
	{"a piece that resists its end takes the process with it", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		res := l.do("trap '' INT; while :; do :; done", sandbox.Limits{Wall: 300 * time.Millisecond})
		e.verdict(res, sandbox.VerdictTimeLimit)
		<-l.Ended()
		if _, err := l.try(":", sandbox.Limits{}); !errors.Is(err, sandbox.ErrState) {
			e.Errorf("a further piece: %v", err)
		}
	}},
	{"a piece that ends the process has its exit code", []Expectation{Live, Programs}, false, func(e *env) {
		id := e.create()
		res := e.live(id, sandbox.Limits{}).do("echo bye; exit 7", sandbox.Limits{})
		if e.verdict(res, sandbox.VerdictNonzeroExit); res.Exit.Code != 7 || string(res.Stdout.Bytes()) != "bye\n" {
			e.Errorf("%+v, %q", res.Exit, res.Stdout.Bytes())
		}
		e.says(e.live(id, sandbox.Limits{}).do("echo again", sandbox.Limits{}), "again") // in the same sandbox
	}},
	{"waiting for the user is not running", []Expectation{Live, Programs}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		began := time.Now()
		w := line{l, "sleep 1", func() time.Duration { return time.Since(began) }}
		res, err := l.Do(e.Context(), sandbox.Limits{Wall: 200 * time.Millisecond}, sandbox.IO{}, w)
		if err != nil {
			e.Fatal(err)
		}
		e.verdict(res, sandbox.VerdictOK)
	}},
	{"the memory limit of a live process is the kernel's", []Expectation{Live, Programs, Memory}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		hungry := l.do("head -c 400000000 /dev/zero | tail | wc -c", sandbox.Limits{})
		sated := l.do("echo fine", sandbox.Limits{})
		if !violated(hungry, "memory") || violated(sated, "memory") {
			e.Errorf("%+v, then %+v", hungry.Violations, sated.Violations)
		}
	}},
	{"refused calls are those of the piece", []Expectation{Live, Programs, Isolated, Kernel}, false, func(e *env) {
		l := e.live(e.create(), sandbox.Limits{})
		for _, p := range []struct {
			text    string
			refused bool
		}{{"unshare --mount true", true}, {":", false}, {"unshare --mount true", true}} {
			res := l.do(p.text, sandbox.Limits{})
			if got := violated(res, sandbox.ViolationSyscall); got != p.refused {
				e.Errorf("%s: %+v", p.text, res.Violations)
			}
		}
	}},
	{"attempts without a network are those of the piece", []Expectation{Live, Programs, Network}, false, func(e *env) {
		l := e.live(e.create(func(s *sandbox.Spec) { s.Network = sandbox.NetworkNone }), sandbox.Limits{})
		for _, p := range []struct {
			text    string
			refused bool
		}{{strings.Join(e.probe("dial", "tcp", "192.0.2.1:80"), " ") + "; true", true}, {":", false}} {
			res := l.do(p.text, sandbox.Limits{})
			if got := violated(res, sandbox.ViolationNetwork); got != p.refused {
				e.Errorf("%s: %+v, %s", p.text, res.Violations, res.Stderr.Bytes())
			}
		}
	}},
	{"a sandbox that is deleted ends its live process and its work", []Expectation{Live, Programs}, false, func(e *env) {
		for _, text := range []string{"", "sleep 1000"} {
			id := e.create()
			l := e.live(id, sandbox.Limits{})
			result := make(chan *sandbox.Result, 1)
			begun := make(chan struct{}, 1)
			if text != "" {
				go func() {
					res, _ := l.Do(context.Background(), sandbox.Limits{}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
						if ev.Kind == sandbox.EventStdout {
							begun <- struct{}{}
						}
					}}, line{l, "echo begun; " + text, nil})
					result <- res
				}()
				<-begun
			}
			if err := e.m.Delete(e.Context(), id); err != nil {
				e.Error(err)
			}
			<-l.Ended()
			if text == "" {
				continue
			}
			if res := <-result; res == nil || res.Verdict != sandbox.VerdictCancelled {
				e.Errorf("%+v", res)
			}
		}
	}},
}
