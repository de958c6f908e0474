package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var ioRows = []row{
	{"stdin: none", nil, false, func(e *env) {
		e.says(e.once(e.probe("cat")...), "")
	}},
	{"stdin: small", nil, false, func(e *env) {
		e.says(e.do(e.create(), sandbox.Process{Args: e.probe("cat")}, sandbox.IO{Stdin: strings.NewReader("a\x00b\xff")}), "a\x00b\xff")
	}},
	{"stdin: 10 MB arrive whole", nil, false, func(e *env) {
		h := sha256.New()
		const n = 10 << 20
		in := io.TeeReader(io.LimitReader(newNoise(), n), h)
		res := e.do(e.create(), sandbox.Process{Args: e.probe("digest")}, sandbox.IO{Stdin: in})
		e.says(res, fmt.Sprintf("%d %x", n, h.Sum(nil)))
	}},
	{"stdin: never read", nil, false, func(e *env) { // R8
		res := e.do(e.create(), sandbox.Process{Args: e.probe("say", "done")}, sandbox.IO{Stdin: io.LimitReader(newNoise(), 10<<20)})
		e.says(res, "done")
	}},
	{"stdin: never closed", nil, false, func(e *env) { // R8
		r, w := io.Pipe()
		defer w.Close()
		id := e.create()
		res := e.do(id, sandbox.Process{Args: e.probe("say", "done")}, sandbox.IO{Stdin: r})
		e.says(res, "done")
		// And with a program that reads: the wall limit ends it.
		res = e.do(id, sandbox.Process{Args: e.probe("cat"), Limits: sandbox.Limits{Wall: 300 * time.Millisecond}}, sandbox.IO{Stdin: r})
		e.verdict(res, sandbox.VerdictTimeLimit)
	}},
	{"stdout closed early", []Expectation{Programs}, false, func(e *env) { // R8
		res := e.once(e.probe("deaf")...)
		e.ok(res)
		if got := string(res.Stderr.Bytes()); got != "still here\n" {
			e.Errorf("stderr %q", got)
		}
	}},
	{"stdin arrives while the program runs", nil, false, func(e *env) {
		r, w := io.Pipe()
		j := e.start(e.create(), sandbox.Process{Args: e.probe("cat")}, sandbox.IO{Stdin: r})
		for _, text := range []string{"one", "two", "three"} {
			fmt.Fprintln(w, text)
			j.says(text)
		}
		w.Close()
		e.says(j.result(), "one\ntwo\nthree")
	}},
}

var outputRows = []row{
	{"20 MB of output are exact", nil, false, func(e *env) {
		const n = 20 << 20
		live := sha256.New()
		res := e.do(e.create(), sandbox.Process{Args: e.probe("noise", fmt.Sprint(n)), Limits: sandbox.Limits{Output: 32 * sandbox.MiB}},
			sandbox.IO{
				OnEvent: func(ev sandbox.Event) {
					if ev.Kind == sandbox.EventStdout {
						live.Write(ev.Data)
					}
				},
			})
		e.ok(res)
		want := fmt.Sprintf("%d %x\n", n, live.Sum(nil))
		if string(res.Stderr.Bytes()) != want || res.Stdout.Total != n || res.Stdout.Truncated() {
			e.Errorf("live %q, the program says %q, kept %d of %d", want, res.Stderr.Bytes(), len(res.Stdout.Bytes()), res.Stdout.Total)
		}
		if kept := sha256.Sum256(res.Stdout.Bytes()); !bytes.Equal(kept[:], live.Sum(nil)) {
			e.Error("the kept output differs from the streamed output")
		}
	}},
	{"head and tail are kept, and the program runs on", nil, false, func(e *env) { // R7
		const n, keep = 3 << 20, 64 << 10
		all, _ := io.ReadAll(io.LimitReader(newNoise(), n))
		res := e.do(e.create(), sandbox.Process{Args: e.probe("noise", fmt.Sprint(n)), Limits: sandbox.Limits{Output: keep}}, sandbox.IO{})
		e.ok(res)
		o := res.Stdout
		if !bytes.Equal(o.Head, all[:keep/2]) || !bytes.Equal(o.Tail, all[n-keep/2:]) || o.Dropped != n-keep || o.Total != n || !o.Truncated() {
			e.Errorf("head %d, tail %d, dropped %d, total %d", len(o.Head), len(o.Tail), o.Dropped, o.Total)
		}
		if !violated(res, "output_limit") {
			e.Errorf("violations %+v", res.Violations)
		}
	}},
	{"the whole is spilled to disk when asked", nil, false, func(e *env) {
		const n, keep = 3 << 20, 64 << 10
		all, _ := io.ReadAll(io.LimitReader(newNoise(), n))
		id := e.create()
		spill := &sandbox.Spill{Dir: e.TempDir()}
		res := e.do(id, sandbox.Process{Args: e.probe("noise", fmt.Sprint(n)), Limits: sandbox.Limits{Output: keep}}, sandbox.IO{Spill: spill})
		e.ok(res)
		if got := readFile(res.Stdout.File); !bytes.Equal(got, all) {
			e.Errorf("spilled %d bytes of %d to %q", len(got), n, res.Stdout.File)
		}
		if res.Stderr.File != "" || len(res.Notes) != 0 {
			e.Errorf("stderr file %q, notes %q", res.Stderr.File, res.Notes)
		}
		// A cap on the file, and a directory that already has one.
		res = e.do(id, sandbox.Process{Args: e.probe("noise", fmt.Sprint(n)), Limits: sandbox.Limits{Output: keep}},
			sandbox.IO{Spill: &sandbox.Spill{Dir: e.TempDir(), Limit: sandbox.MiB}})
		if got := readFile(res.Stdout.File); !bytes.Equal(got, all[:1<<20]) {
			e.Errorf("spilled %d bytes", len(got))
		}
		res = e.do(id, sandbox.Process{Args: e.probe("noise", fmt.Sprint(n)), Limits: sandbox.Limits{Output: keep}}, sandbox.IO{Spill: spill})
		e.ok(res)
		if len(res.Notes) == 0 {
			e.Error("a spill that failed is not noted")
		}
	}},
	{"kill on output", nil, false, func(e *env) {
		id := e.create()
		p := sandbox.Process{Args: e.probe("noise", fmt.Sprint(1<<30)), Limits: sandbox.Limits{Output: 64 << 10}, KillOnOutput: true}
		res := e.do(id, p, sandbox.IO{})
		e.verdict(res, sandbox.VerdictOutputLimit)
		p.Args = e.probe("noise", fmt.Sprint(60<<10)) // control: below the limit the program is not killed
		e.ok(e.do(id, p, sandbox.IO{}))
	}},
	{"events are numbered without gaps, and in order", nil, false, func(e *env) {
		var mu sync.Mutex
		var last uint64
		var offsets [2]uint64
		var text [2]bytes.Buffer
		kinds := map[sandbox.EventKind]int{}
		inside := false
		res := e.do(e.create(), sandbox.Process{Args: e.probe("both", "5000")}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if !mu.TryLock() {
				e.Error("two events at once")
				return
			}
			defer mu.Unlock()
			if inside = true; ev.Seq != last+1 {
				e.Errorf("event %d after %d", ev.Seq, last)
			}
			last = ev.Seq
			kinds[ev.Kind]++
			if last == 1 && (ev.Kind != sandbox.EventPhase || ev.Phase != sandbox.DefaultPhase) {
				e.Errorf("the first event is %+v", ev)
			}
			for i, k := range []sandbox.EventKind{sandbox.EventStdout, sandbox.EventStderr} {
				if ev.Kind == k {
					if ev.Offset != offsets[i] {
						e.Errorf("%s at %d, want %d", k, ev.Offset, offsets[i])
					}
					offsets[i] += uint64(len(ev.Data))
					text[i].Write(ev.Data)
				}
			}
		}})
		e.ok(res)
		for i, o := range []sandbox.Output{res.Stdout, res.Stderr} {
			if !bytes.Equal(o.Bytes(), text[i].Bytes()) || strings.Count(text[i].String(), "\n") != 5000 {
				e.Errorf("stream %d: %d bytes live, %d kept", i, text[i].Len(), len(o.Bytes()))
			}
		}
		if !inside || kinds[sandbox.EventPhase] != 1 {
			e.Errorf("kinds %v", kinds)
		}
	}},
	{"writes to two streams are in order", nil, false, func(e *env) {
		const rounds = 1000
		r, w := io.Pipe()
		defer r.Close()
		turns := make(chan byte, rounds)
		go func() {
			for b := range turns {
				_, _ = w.Write([]byte{b})
			}
			w.Close()
		}()
		var got, want strings.Builder
		n := 0
		next := func() {
			if n == rounds {
				close(turns)
				return
			}
			turns <- "oe"[n%2]
			want.WriteString([]string{"o1e2", "e1o2"}[n%2])
			n++
		}
		next()
		e.ok(e.do(e.create(), sandbox.Process{Args: e.probe("turns")}, sandbox.IO{Stdin: r, OnEvent: func(ev sandbox.Event) {
			if letter, ok := map[sandbox.EventKind]string{sandbox.EventStdout: "o", sandbox.EventStderr: "e"}[ev.Kind]; ok {
				if got.WriteString(letter + string(ev.Data)); got.Len() == want.Len() {
					next()
				}
			}
		}}))
		if got.String() != want.String() {
			e.Errorf("%.400s", got.String())
		}
	}},
	{"merged output has the exact order", nil, false, func(e *env) {
		var want strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
		}
		res := e.do(e.create(), sandbox.Process{Args: e.probe("both", "5000"), MergeOutput: true}, sandbox.IO{})
		e.ok(res)
		if got := string(res.Stdout.Bytes()); got != want.String() || res.Stderr.Total != 0 {
			e.Errorf("stdout %.200q …, stderr %.200q", got, res.Stderr.Bytes())
		}
	}},
	{"violations are events too", nil, false, func(e *env) {
		var kinds []string
		res := e.do(e.create(), sandbox.Process{Args: e.probe("noise", "100000"), Limits: sandbox.Limits{Output: 1000}},
			sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventViolation {
					kinds = append(kinds, ev.Violation.Kind)
				}
			}})
		e.ok(res)
		if len(kinds) != 1 || kinds[0] != "output_limit" {
			e.Errorf("events %q, violations %+v", kinds, res.Violations)
		}
	}},
	{"samples are events too", []Expectation{Programs}, false, func(e *env) {
		var samples atomic.Int32
		began := time.Now()
		res := e.do(e.create(), sandbox.Process{Args: e.probe("sleep", "500ms")}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventMetric && ev.Metric != nil {
				samples.Add(1)
			}
		}})
		e.ok(res)
		took := time.Since(began) // a slow machine takes longer to start and end it, and samples go on meanwhile
		if n := samples.Load(); n < 1 || n > int32(took/(50*time.Millisecond)) {
			e.Errorf("%d samples in %v", n, took)
		}
	}},
	{"a reader that blocks holds the program up", nil, false, func(e *env) {
		release := make(chan struct{})
		var seen atomic.Uint64
		j := e.start(e.create(), sandbox.Process{Args: e.probe("noise", fmt.Sprint(8<<20))}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventStdout {
				if seen.Add(uint64(len(ev.Data))) > 256<<10 {
					<-release
				}
			}
		}})
		for seen.Load() <= 256<<10 {
			time.Sleep(time.Millisecond)
		}
		// The program has 8 MB to write; pipes hold a few hundred kilobytes at the most.
		select {
		case <-j.done:
			e.Error("the program ended although its output was not taken")
		case <-time.After(500 * time.Millisecond):
		}
		if n := seen.Load(); n > 512<<10 {
			e.Errorf("%d bytes went past a reader that blocks", n)
		}
		close(release)
		res := j.result()
		e.ok(res)
		if res.Stdout.Total != 8<<20 {
			e.Errorf("%d bytes arrived in the end", res.Stdout.Total)
		}
	}},
	{"a reader that blocks for ever does not hold up the end", nil, false, func(e *env) {
		for _, kind := range []sandbox.EventKind{sandbox.EventPhase, sandbox.EventStdout} {
			id := e.create()
			release := make(chan struct{})
			j := e.start(id, sandbox.Process{Args: e.probe("noise", fmt.Sprint(1<<20))}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == kind {
					<-release
				}
			}})
			time.Sleep(200 * time.Millisecond)
			e.within(4*time.Second, "kill with a reader stuck at "+string(kind), func() {
				if err := e.m.Kill(id); err != nil {
					e.Error(err)
				}
				<-j.done
			})
			close(release)
		}
		// The same for the wall limit, which only the supervisor enforces.
		release := make(chan struct{})
		defer close(release)
		e.within(6*time.Second, "a wall limit of 500 ms", func() {
			j := e.start(e.create(), sandbox.Process{Args: e.probe("noise", fmt.Sprint(1<<30)),
				Limits: sandbox.Limits{Wall: 500 * time.Millisecond, Output: 1000}}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventStdout && ev.Offset > 100000 {
					<-release
				}
			}})
			e.verdict(j.result(), sandbox.VerdictTimeLimit)
		})
	}},
	{"a background child that holds stdout does not hold up the run", []Expectation{Programs}, false, func(e *env) { // R7
		e.within(3*time.Second, "a run whose child holds stdout", func() {
			e.says(e.once(e.probe("hold")...), "held")
		})
	}},
	{"nor does one in a phase that lives on", []Expectation{Programs}, false, func(e *env) { // R7
		id := e.create()
		other := e.start(id, sandbox.Process{Args: e.probe("ready", "20s")}, sandbox.IO{}).ready()
		e.within(4*time.Second, "a run whose child holds stdout", func() {
			j := e.start(id, sandbox.Process{Args: e.probe("hold")}, sandbox.IO{OnEvent: func(sandbox.Event) {}})
			e.says(j.result(), "held")
		})
		select {
		case <-other.done:
			e.Errorf("the neighbour ended: %+v", other.res)
		default:
		}
	}},
}
