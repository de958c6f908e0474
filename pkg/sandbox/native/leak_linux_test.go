package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// footprint is the resources of a process that must not grow over a thousand runs.
type footprint struct {
	files, goroutines, threads, groups, mounts int
	rss, heap                                  uint64 // bytes
}

func countHeld(t *testing.T, b *Backend) (f footprint) {
	t.Helper()
	runtime.GC() // runs the finalizers that close descriptors
	debug.FreeOSMemory()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	f = footprint{files: len(openNow()), goroutines: runtime.NumGoroutine(), threads: len(tasks), groups: len(groupsOf(b)),
		mounts: strings.Count(string(mounts), "\n")}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	f.heap = mem.HeapInuse + mem.StackInuse
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			f.rss = kib << 10
		}
	}
	return f
}

// A thousand runs of each kind leave no more behind than one.
func TestNoLeak(t *testing.T) {
	b, m := managed(t, Options{})
	runs := 60
	if testenv.All() {
		runs = 1000
	}
	once := func(n int) {
		ctx := context.Background()
		spec := sandbox.Spec{Scratch: []sandbox.ScratchMode{sandbox.ScratchMemory, sandbox.ScratchDisk}[n%2]}
		if n%5 == 0 {
			spec = writable(t, spec)
		}
		if n%4 == 0 {
			spec.Volumes = []sandbox.Volume{{Source: "/usr/lib", Target: "/lib2"}}
		}
		if n%6 == 0 {
			spec.Root.Add = append(spec.Root.Add, sandbox.Mount{Source: "/usr/lib", Target: "/opt/lib"})
		}
		id, err := m.Create(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		putAndTake(t, m, id, n)
		p := sandbox.Process{Args: []string{"true"}}
		var to sandbox.IO
		switch {
		case n%3 == 0:
			p.TTY = &sandbox.TTY{Rows: 5, Cols: 5}
		case n%7 == 0:
			p.Args = []string{"no-such-program"}
		case n%8 == 0:
			p.Args, p.Limits.Wall, p.Limits.Grace = []string{"sleep", "60"}, 10*time.Millisecond, time.Millisecond
		case n%11 == 0:
			p.Args, to.OnEvent = []string{"head", "-c", "1000000", "/dev/zero"}, func(sandbox.Event) {}
		}
		if _, err := m.Run(ctx, id, p, to); err != nil && !errors.Is(err, sandbox.ErrNotStarted) {
			t.Fatal(err)
		}
		if n%6 == 0 { // a phase of its own
			if _, err := m.Run(ctx, id, sandbox.Process{Phase: "second", Args: []string{"true"}}, sandbox.IO{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Delete(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 50 { // makes the parts of every kind that are made once
		once(n)
	}
	before := countHeld(t, b)
	for n := range runs {
		once(n)
	}
	var after footprint
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after = countHeld(t, b)
		// One spare init exists, or is being started; the runtime may need some more threads at its peak, and keeps
		// them.
		if after.files <= before.files+2 && after.goroutines <= before.goroutines+1 && after.threads <= before.threads+10 &&
			after.groups == 0 && after.mounts <= before.mounts {
			break
		}
		if time.Now().After(end) {
			t.Errorf("after %d runs %+v, before %+v: %q", runs, after, before, openNow())
			break
		}
	}
	t.Logf("%d runs: %+v, then %+v", runs, before, after)
	if grown := int64(after.rss) - int64(before.rss); grown > 8<<20 && !underRace {
		t.Errorf("%d bytes more memory after %d runs", grown, runs)
	}
	if grown := int64(after.heap) - int64(before.heap); grown > 2<<20 {
		t.Errorf("%d bytes more of Go's own after %d runs", grown, runs)
	}
}

// Many sandboxes run side by side, and each answers with the text that only it has.
func TestManyAtOnce(t *testing.T) {
	count := 20
	if testenv.All() {
		count = 200
	}
	b, m := managed(t, Options{})
	ctx := context.Background()
	type alive struct {
		id   string
		in   *os.File
		said chan string
		over chan error
	}
	list := make([]*alive, count)
	var all sync.WaitGroup
	limit := make(chan struct{}, 8)
	for n := range list {
		a := &alive{said: make(chan string, 10), over: make(chan error, 1)}
		list[n] = a
		all.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			spec := smallSpec()
			spec.Limits.Wall = 10 * time.Minute
			spec.Scratch = []sandbox.ScratchMode{sandbox.ScratchMemory, sandbox.ScratchDisk}[n%2]
			var err error
			if a.id, err = m.Create(ctx, spec); err != nil {
				t.Error(err)
				return
			}
			read, write, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			a.in = write
			go func() {
				defer read.Close()
				res, err := m.Run(ctx, a.id, sandbox.Process{Args: []string{"/bin/sh", "-c",
					`echo $1 > $HOME/me; while read line; do echo "$line from $(cat $HOME/me)"; done`, "sh", strconv.Itoa(n)}},
					sandbox.IO{Stdin: read, OnEvent: func(ev sandbox.Event) {
						if ev.Kind == sandbox.EventStdout {
							a.said <- string(ev.Data)
						}
					}})
				if err == nil && res.Verdict != sandbox.VerdictOK {
					err = fmt.Errorf("%s: %q", res.Verdict, res.Stderr.Bytes())
				}
				a.over <- err
			}()
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if n := len(inits()); n < count {
		t.Errorf("%d inits for %d sandboxes", n, count)
	}
	for round := range 2 {
		for _, a := range list {
			if _, err := fmt.Fprintf(a.in, "hello %d\n", round); err != nil {
				t.Fatal(err)
			}
		}
		for n, a := range list {
			select {
			case said := <-a.said:
				if want := fmt.Sprintf("hello %d from %d\n", round, n); said != want {
					t.Errorf("sandbox %d says %q, not %q", n, said, want)
				}
			case err := <-a.over:
				t.Fatalf("sandbox %d has ended: %v", n, err)
			case <-time.After(2 * time.Minute):
				t.Fatalf("sandbox %d does not answer", n)
			}
		}
	}
	for n, a := range list {
		_ = a.in.Close()
		if err := <-a.over; err != nil {
			t.Errorf("sandbox %d: %v", n, err)
		}
		all.Go(func() {
			if err := m.Delete(ctx, a.id); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if left := groupsOf(b); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// collecting is a supervisor that only collects the leftovers of dead ones, until it is killed.
func collecting([]string) error {
	for {
		b, err := New(Options{CacheDir: os.Getenv(cacheVariable)})
		if err != nil {
			return err
		}
		found, err := b.Collect(context.Background(), false)
		if err != nil {
			return err
		}
		for _, f := range found {
			fmt.Printf("%s %s removed=%v %s\n", f.Kind, f.Name, f.Removed, f.Problem)
		}
		if err := b.Close(); err != nil {
			return err
		}
		fmt.Println("round")
	}
}

// Concurrent supervisors, one of which collects without pause, never touch each other's sandboxes.
func TestSupervisorsSideBySide(t *testing.T) {
	rounds := 15
	if testenv.All() {
		rounds = 200
	}
	needRoot(t)
	gc := startFault(t, "collecting")
	b, m := managed(t, Options{})
	other, others := managed(t, Options{}) // two registrations of one process are two supervisors as well
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{Wall: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	long := make(chan *sandbox.Result, 1)
	go func() {
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c",
			"echo here > $HOME/x; while :; do cat $HOME/x > $HOME/y || exit 7; sleep 0.01; done"}}, sandbox.IO{})
		if err != nil {
			t.Error(err)
		}
		long <- res
	}()
	mine := filepath.Dir(b.inits.supervisor.NewGroup().Path())
	theirs := ""
	for n := range rounds {
		for _, each := range []*sandbox.Manager{m, others} {
			id, err := each.Create(ctx, smallSpec())
			if err != nil {
				t.Fatal(err)
			}
			res, err := each.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", greeting}}, sandbox.IO{})
			if err != nil || res.Verdict != sandbox.VerdictOK || string(res.Stdout.Bytes()) != "hello\n" {
				t.Fatalf("round %d: %+v, %v", n, res, err)
			}
			if err := each.Delete(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		theirs = filepath.Dir(other.inits.supervisor.NewGroup().Path())
		if n%10 == 9 { // this process collects too
			if _, err := b.Collect(ctx, false); err != nil {
				t.Error(err)
			}
		}
	}
	select {
	case res := <-long:
		t.Fatalf("one that lives was touched: %+v", res)
	default:
	}
	if err := m.Kill(id); err != nil {
		t.Error(err)
	}
	<-long
	said := gc.stop()
	if strings.Count(said, "round\n") < 3 {
		t.Errorf("the collector was hardly at work: %q", said)
	}
	for _, name := range []string{mine, theirs} {
		if strings.Contains(said, name) {
			t.Errorf("collected from the living %s: %q", name, said)
		}
	}
}
