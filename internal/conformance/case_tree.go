package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// stopBound: stopping never takes longer than the grace period, half a second in this suite, and 1 s.
const stopBound = 500*time.Millisecond + time.Second

var treeRows = []row{
	{"stop: a program that is polite", nil, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Grace = 20 * time.Second })
		j := e.start(id, sandbox.Process{Args: e.probe("polite")}, sandbox.IO{}).ready()
		e.within(5*time.Second, "stop", func() { e.stop(id) })
		res := j.result()
		e.verdict(res, sandbox.VerdictCancelled)
		if res.Exit.Code != 7 || !strings.Contains(string(res.Stdout.Bytes()), "bye") {
			e.Errorf("exit %+v, said %q", res.Exit, res.Stdout.Bytes())
		}
	}},
	{"stop: a program that ignores every signal", nil, false, func(e *env) { // R2
		id := e.create()
		j := e.start(id, sandbox.Process{Args: e.probe("stubborn")}, sandbox.IO{}).ready()
		e.within(stopBound, "stop", func() { e.stop(id) })
		res := j.result()
		e.verdict(res, sandbox.VerdictCancelled)
		if res.Exit.Signal != 9 {
			e.Errorf("exit %+v", res.Exit)
		}
	}},
	{"stop: a program that has stopped itself", []Expectation{Programs}, false, func(e *env) { // R2
		id := e.create()
		j := e.start(id, sandbox.Process{Args: e.probe("halt")}, sandbox.IO{}).ready()
		e.within(stopBound, "stop", func() { e.stop(id) })
		e.verdict(j.result(), sandbox.VerdictCancelled)
	}},
	{"stop: a tree that traps everything and stops itself", []Expectation{Programs}, false, func(e *env) { // R2
		id := e.create()
		j := e.start(id, sandbox.Process{Args: e.sh("trap '' 1 2 3 10 12 13 14 15 18 20 21 22; for i in 1 2 3 4 5; do sh -c 'kill -STOP $$; " +
			"while :; do sleep 1; done' & done; echo ready; while :; do sleep 1; done")}, sandbox.IO{}).ready()
		e.within(stopBound, "stop", func() { e.stop(id) })
		e.verdict(j.result(), sandbox.VerdictCancelled)
	}},
	{"cancel: the caller's context ends", nil, false, func(e *env) {
		ctx, cancel := context.WithCancel(context.Background())
		j := e.startWith(ctx, e.create(), sandbox.Process{Args: e.probe("stubborn")}, sandbox.IO{}).ready()
		e.within(stopBound, "cancelling", func() {
			cancel()
			e.verdict(j.result(), sandbox.VerdictCancelled)
		})
		// Before it has begun.
		res, err := e.m.Run(ctx, e.create(), sandbox.Process{Args: e.probe("exit", "0")}, sandbox.IO{})
		if err != nil || res.Verdict != sandbox.VerdictCancelled {
			e.Errorf("%+v, %v", res, err)
		}
	}},
	{"kill is at once", nil, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Grace = 20 * time.Second })
		j := e.start(id, sandbox.Process{Args: e.probe("stubborn")}, sandbox.IO{}).ready()
		e.within(2*time.Second, "kill", func() {
			if err := e.m.Kill(id); err != nil {
				e.Error(err)
			}
		})
		e.verdict(j.result(), sandbox.VerdictCancelled)
	}},
	{"a second, impatient stop", nil, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Grace = 20 * time.Second })
		j := e.start(id, sandbox.Process{Args: e.probe("stubborn")}, sandbox.IO{}).ready()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		e.within(3*time.Second, "a stop whose context ends", func() {
			if err := e.m.Stop(ctx, id); err != nil {
				e.Error(err)
			}
		})
		e.verdict(j.result(), sandbox.VerdictCancelled)
	}},
	{"daemons end with the program", []Expectation{Programs, Kernel}, false, func(e *env) { // R1
		mark := "daemons-" + e.mark()
		res := e.once(e.probe("daemon", "5", mark)...)
		e.says(res, "left")
		if alive := marked(mark); len(alive) > 0 {
			e.Errorf("%q", alive)
		}
		// Control: while the program runs, its daemons are seen from outside.
		id := e.create()
		e.start(id, sandbox.Process{Args: e.sh(fmt.Sprintf("%s daemon 1 %s; echo ready; sleep 20", e.probe()[0], mark))}, sandbox.IO{}).ready()
		if len(marked(mark)) == 0 {
			e.Error("control: the daemon is not seen at all")
		}
		e.stop(id)
		if alive := marked(mark); len(alive) > 0 {
			e.Errorf("after stop: %q", alive)
		}
	}},
	{"children that stay when their parent exits", []Expectation{Programs}, false, func(e *env) { // R1
		mark := "orphans-" + e.mark()
		e.ok(e.once(e.sh("for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' " + mark +
			" &) ; done; sleep 0.3")...))
		if alive := marked(mark); len(alive) > 0 {
			e.Errorf("%q", alive)
		}
	}},
	{"zombies are reaped", []Expectation{Phases, Kernel}, false, func(e *env) { // R3
		n := 1000
		id := e.create(func(s *sandbox.Spec) { s.Limits.Processes = 512 })
		res := e.in(id, e.sh(fmt.Sprintf(`i=0; while [ $i -lt %d ]; do (true &); i=$((i+1)); done
			for i in $(seq 100); do left=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
			[ $left = 0 ] && break; sleep 0.2; done; echo $left`, n))...)
		e.says(res, "0")
		if violated(res, "pids") {
			e.Errorf("zombies filled the process limit: %+v", res.Violations)
		}
	}},
	{"many at once", nil, false, func(e *env) {
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() {
				spec, _ := e.spec()
				id, err := e.m.Create(context.Background(), spec)
				if err != nil {
					e.Error(err)
					return
				}
				res, err := e.m.Run(context.Background(), id, sandbox.Process{Args: e.probe("say", fmt.Sprint(n))}, sandbox.IO{})
				if err != nil || string(res.Stdout.Bytes()) != fmt.Sprintln(n) {
					e.Errorf("%d: %v %+v", n, err, res)
				}
				if err := e.m.Delete(context.Background(), id); err != nil {
					e.Error(err)
				}
			})
		}
		wg.Wait()
	}},
}

func (e *env) stop(id string) {
	e.Helper()
	if err := e.m.Stop(context.Background(), id); err != nil {
		e.Errorf("stop: %v", err)
	}
}

// mark is a unique text.
func (e *env) mark() string {
	_, mark := e.spec()
	return mark
}
