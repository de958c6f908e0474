package conformance

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var stateRows = []row{
	{"random walks through the states", nil, false, func(e *env) {
		walks := 12
		if testenv.All() {
			walks = 300
		}
		g := rapid.SliceOfN(rapid.SampledFrom(moves), 2, 8)
		for n := range walks {
			list := g.Example(n)
			id := e.create(func(s *sandbox.Spec) { s.Limits.Grace = 20 * time.Millisecond })
			w := &model{m: e.m, id: id, fatal: e.Errorf, short: sandbox.Process{Args: e.probe("exit", "0")},
				long: sandbox.Process{Args: e.probe("stubborn")}}
			w.walk(list)
			if e.Failed() {
				e.Fatalf("moves were %q", list)
			}
		}
	}},
	{"stop, kill and delete twice, and at once", nil, false, func(e *env) {
		for _, running := range []bool{false, true} {
			id := e.create()
			if running {
				e.start(id, sandbox.Process{Args: e.probe("stubborn")}, sandbox.IO{}).ready()
			}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { e.gone(e.m.Stop(context.Background(), id)) })
				wg.Go(func() { e.gone(e.m.Kill(id)) })
				wg.Go(func() {
					if err := e.m.Delete(context.Background(), id); err != nil {
						e.Error(err)
					}
				})
			}
			wg.Wait()
			if _, err := e.m.Get(id); !errors.Is(err, sandbox.ErrNotFound) {
				e.Errorf("after delete: %v", err)
			}
		}
	}},
	{"stopped means stopped", nil, false, func(e *env) {
		id := e.create()
		e.stop(id)
		if _, err := e.try(id, sandbox.Process{Args: e.probe("exit", "0")}, sandbox.IO{}); !errors.Is(err, sandbox.ErrState) {
			e.Errorf("run after stop: %v", err)
		}
		e.stop(id)
		if info, err := e.m.Get(id); err != nil || info.State != sandbox.StateStopped {
			e.Errorf("%+v, %v", info, err)
		}
	}},
	{"metrics of a sandbox that runs", []Expectation{Programs}, false, func(e *env) {
		id := e.create()
		if m, err := e.m.GetMetrics(id); err != nil || m.WallTime != 0 {
			e.Errorf("before any run: %+v, %v", m, err)
		}
		j := e.start(id, sandbox.Process{Args: e.probe("ready", "20s")}, sandbox.IO{}).ready()
		m, err := e.m.GetMetrics(id)
		if err != nil || m.WallTime <= 0 || e.has(Memory) && (m.MemoryCurrent == 0 || m.ProcessesCurrent == 0) {
			e.Errorf("%+v, %v", m, err)
		}
		e.stop(id)
		res := j.result()
		if m, err := e.m.GetMetrics(id); err != nil || !reflect.DeepEqual(m, res.Metrics) {
			e.Errorf("afterwards %+v, %v; the result says %+v", m, err, res.Metrics)
		}
	}},
}

func (e *env) gone(err error) {
	e.Helper()
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		e.Error(err)
	}
}

var phaseRows = []row{
	{"scratch is shared by phases, pid namespaces and cgroups are not", []Expectation{Phases, Kernel}, false, func(e *env) { // D7
		id := e.create()
		compile := sandbox.Process{Phase: "compile", Args: e.sh("echo made > /workspace/out; echo t > /tmp/t; echo h > $HOME/h; readlink " +
			"/proc/self/ns/pid; cat /proc/self/cgroup; " + e.probe()[0] + " pid")}
		first := e.ok(e.do(id, compile, sandbox.IO{}))
		second := e.ok(e.in(id, e.sh("cat /workspace/out /tmp/t $HOME/h; readlink /proc/self/ns/pid")...))
		if !strings.HasPrefix(second, "made\nt\nh\n") {
			e.Errorf("the second phase sees %q", second)
		}
		// Two phases alive at once.
		a := e.start(id, sandbox.Process{Phase: "a", Args: e.sh("readlink /proc/self/ns/pid; echo ready; sleep 20")}, sandbox.IO{}).ready()
		seen := e.ok(e.do(id, sandbox.Process{Phase: "b",
			Args: e.sh("readlink /proc/self/ns/pid; ps -e -o pid= 2>/dev/null | wc -l; " + e.probe()[0] + " processes")}, sandbox.IO{}))
		said, _ := a.out.get()
		if ns, _, _ := strings.Cut(said, "\n"); strings.Contains(seen, ns) || !strings.HasPrefix(ns, "pid:") {
			e.Errorf("phase a is in %q, b sees %q", ns, seen)
		}
		if strings.Contains(seen, "sleep") {
			e.Errorf("phase b sees phase a's processes: %q", seen)
		}
		_ = first
	}},
	{"limits per phase", []Expectation{Phases, Memory}, false, func(e *env) { // D7
		// gVisor's kernel counts, and needs about 30 MiB.
		id := e.create(func(s *sandbox.Spec) { s.Limits.Memory = 64 * sandbox.MiB })
		res := e.do(id, sandbox.Process{Phase: "compile", Args: e.probe("memory", "100"), Limits: sandbox.Limits{Memory: 192 * sandbox.MiB}},
			sandbox.IO{})
		e.says(res, "ok")
		if res.Limits.Memory != 192*sandbox.MiB {
			e.Errorf("limits %+v", res.Limits)
		}
		res = e.in(id, e.probe("memory", "1")...)
		e.says(res, "ok")
		if res.Metrics.MemoryPeak > 60<<20 {
			e.Errorf("the compiler's memory counts as the program's: %d", res.Metrics.MemoryPeak)
		}
		e.verdict(e.in(id, e.probe("memory", "100")...), sandbox.VerdictMemoryLimit)
	}},
	{"side by side in one phase", []Expectation{Phases, Kernel}, false, func(e *env) {
		id := e.create()
		a := e.start(id, sandbox.Process{Args: e.sh("readlink /proc/self/ns/pid; echo ready; sleep 20")}, sandbox.IO{}).ready()
		said, _ := a.out.get()
		ns, _, _ := strings.Cut(said, "\n")
		got := e.ok(e.in(id, e.sh("readlink /proc/self/ns/pid; "+e.probe()[0]+" processes")...))
		if !strings.HasPrefix(got, ns+"\n") {
			e.Errorf("a in %q, b sees %q", ns, got)
		}
		// A program that fails to start, or crashes, does not affect the other.
		if _, err := e.try(id, sandbox.Process{Args: []string{"/nothing"}}, sandbox.IO{}); !errors.Is(err, sandbox.ErrNotStarted) {
			e.Error(err)
		}
		e.verdict(e.in(id, e.probe("die", "9")...), sandbox.VerdictSignaled)
		select {
		case <-a.done:
			e.Errorf("the neighbour ended: %+v %v", a.res, a.err)
		default:
		}
		e.stop(id)
		e.verdict(a.result(), sandbox.VerdictCancelled)
	}},
	{"many short ones side by side in one phase", []Expectation{Programs}, false, func(e *env) {
		// Each program may be the last of its phase just when another joins it.
		id := e.create()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 25 {
					res, err := e.try(id, sandbox.Process{Args: []string{"/bin/true"}}, sandbox.IO{})
					if err != nil || res.Verdict != sandbox.VerdictOK {
						e.Errorf("%v, %+v", err, res)
						return
					}
				}
			})
		}
		wg.Wait()
	}},
	{"side by side in two phases", nil, false, func(e *env) {
		id := e.create()
		a := e.start(id, sandbox.Process{Phase: "a", Args: e.probe("ready", "20s")}, sandbox.IO{}).ready()
		b := e.start(id, sandbox.Process{Phase: "b", Args: e.probe("ready", "20s")}, sandbox.IO{}).ready()
		if info, err := e.m.Get(id); err != nil || info.State != sandbox.StateRunning {
			e.Errorf("%+v, %v", info, err)
		}
		e.stop(id)
		e.verdict(a.result(), sandbox.VerdictCancelled)
		e.verdict(b.result(), sandbox.VerdictCancelled)
	}},
	{"a phase that is cut short leaves the other alone", nil, false, func(e *env) {
		id := e.create()
		a := e.start(id, sandbox.Process{Phase: "a", Args: e.probe("ready", "2s")}, sandbox.IO{}).ready()
		res := e.do(id, sandbox.Process{Phase: "b", Args: e.probe("stubborn"),
			Limits: sandbox.Limits{Wall: 200 * time.Millisecond, Grace: 100 * time.Millisecond}}, sandbox.IO{})
		e.verdict(res, sandbox.VerdictTimeLimit)
		e.ok(a.result())
	}},
}

var terminalRows = []row{
	{"terminal: it is one, of the size asked for", []Expectation{PTY, Programs}, false, func(e *env) {
		id := e.create()
		res := e.do(id, sandbox.Process{Args: e.probe("terminal"), TTY: &sandbox.TTY{Rows: 33, Cols: 101}}, sandbox.IO{})
		e.says(res, "0 tty 33 101\r\n1 tty 33 101\r\n2 tty 33 101\r")
		if got := e.ok(e.in(id, e.probe("terminal")...)); strings.Contains(got, "tty") { // control
			e.Errorf("without one: %q", got)
		}
	}},
	{"terminal: its name, and /dev/tty", []Expectation{PTY, DevTTY, Programs}, false, func(e *env) {
		got := e.ok(e.do(e.create(), sandbox.Process{Args: e.sh("tty; echo $TERM; test -r /dev/tty && echo controlling > /dev/tty"),
			TTY: &sandbox.TTY{}}, sandbox.IO{}))
		if !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "xterm-256color") || !strings.Contains(got, "controlling") {
			e.Errorf("got %q", got)
		}
	}},
	{"terminal: resize", []Expectation{PTY, Programs}, false, func(e *env) {
		sizes := make(chan sandbox.TTY)
		j := e.start(e.create(), sandbox.Process{Args: e.probe("resized"), TTY: &sandbox.TTY{Rows: 24, Cols: 80}},
			sandbox.IO{Resize: sizes}).ready()
		sizes <- sandbox.TTY{Rows: 50, Cols: 132}
		j.says("size 50 132")
		e.ok(j.result())
	}},
	{"terminal: Ctrl-C is SIGINT", []Expectation{PTY, Programs}, false, func(e *env) {
		r, w := io.Pipe()
		defer w.Close()
		j := e.start(e.create(), sandbox.Process{Args: e.probe("ready", "20s"), TTY: &sandbox.TTY{}}, sandbox.IO{Stdin: r}).ready()
		_, _ = w.Write([]byte{3})
		res := j.result()
		e.verdict(res, sandbox.VerdictSignaled)
		if res.Exit.Signal != 2 {
			e.Errorf("exit %+v", res.Exit)
		}
	}},
	{"terminal: input, and its end", []Expectation{PTY, Programs}, false, func(e *env) {
		res := e.do(e.create(), sandbox.Process{Args: []string{"cat"}, TTY: &sandbox.TTY{}}, sandbox.IO{Stdin: strings.NewReader("hello\n")})
		if got := e.ok(res); strings.Count(got, "hello") != 2 { // the echo, and cat's
			e.Errorf("got %q", got)
		}
		// No input at all ends at once.
		e.ok(e.do(e.create(), sandbox.Process{Args: []string{"cat"}, TTY: &sandbox.TTY{}}, sandbox.IO{}))
	}},
	{"terminal: let go of, and taken up again", []Expectation{PTY, DevTTY, Programs}, false, func(e *env) {
		res := e.do(e.create(), sandbox.Process{Args: e.sh("echo first; exec <&- >&- 2>&-; sleep 0.3; echo later > /dev/tty; exit 6"),
			TTY: &sandbox.TTY{Rows: 24, Cols: 80}}, sandbox.IO{})
		if got := string(res.Stdout.Bytes()); got != "first\r\nlater\r\n" || res.Exit.Code != 6 {
			e.Errorf("%s, said %q", describe(res), got)
		}
	}},
	{"terminal: stop, and a wall limit", []Expectation{PTY, Programs}, false, func(e *env) {
		r, w := io.Pipe()
		defer w.Close()
		id := e.create()
		res := e.do(id, sandbox.Process{Args: []string{"cat"}, TTY: &sandbox.TTY{}, Limits: sandbox.Limits{Wall: 300 * time.Millisecond}},
			sandbox.IO{Stdin: r})
		e.verdict(res, sandbox.VerdictTimeLimit)
		j := e.start(id, sandbox.Process{Args: e.probe("stubborn"), TTY: &sandbox.TTY{}}, sandbox.IO{Stdin: r}).ready()
		e.within(stopBound, "stop", func() { e.stop(id) })
		e.verdict(j.result(), sandbox.VerdictCancelled)
	}},
}
