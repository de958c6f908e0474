package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// bubble runs a test on a clock of its own.
func bubble(t *testing.T, o Options, f func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab()
		l.makes = 100 * time.Millisecond
		l.used.Store(50)
		p := New(l, o)
		m := sandbox.NewManager(p, sandbox.Options{})
		f(t, l, p, m)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		closed(t, p, l)
	})
}

func members(p *Pool, name int) int {
	st := p.Stats()
	if name >= len(st.Shapes) {
		return 0
	}
	return st.Shapes[name].Members
}

// There are as many members as the demand asks for, one for a while after it, and then none.
func TestSizing(t *testing.T) {
	bubble(t, Options{Keep: 10 * time.Minute, MaxAge: time.Hour}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(2 * time.Second)
		if n := members(p, 0); n != 0 {
			t.Errorf("%d members of a shape that was seen once", n)
		}
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(2 * time.Second)
		if n := members(p, 0); n != 1 {
			t.Errorf("%d members", n)
		}
		var all sync.WaitGroup
		for range 300 { // twenty a second
			all.Go(func() { run(t, m, warmSpec(0), interpreter(), "") })
			time.Sleep(50 * time.Millisecond)
		}
		all.Wait()
		st := p.Stats()
		if wanted := st.Shapes[0].Wanted; wanted < 3 || wanted > 8 {
			t.Errorf("wants %d at %.1f a second and %v each", wanted, st.Shapes[0].Rate, st.RefillTime/time.Duration(st.Refills))
		}
		// One at a time, each 120 ms: not enough for all of them.
		if st.Hits < 100 {
			t.Errorf("%+v", st)
		}
		time.Sleep(5 * time.Minute)
		if n := members(p, 0); n < 1 || n > 2 {
			t.Errorf("%d members after five minutes", n)
		}
		time.Sleep(6 * time.Minute)
		if st := p.Stats(); st.Members != 0 || len(st.Shapes) != 0 || l.Alive() != 0 || st.Hits < 100 {
			t.Errorf("kept for nobody: %+v, %d alive", st, l.Alive())
		}
	})
}

// What was asked for at the start is there, hours later, and never older than it may be.
func TestAge(t *testing.T) {
	bubble(t, Options{MaxAge: time.Minute}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		if err := warmed(t, p, m, warmSpec(0)); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(17 * time.Minute)
			if n := members(p, 0); n != 1 {
				t.Fatalf("%d members", n)
			}
			p.mu.Lock()
			for _, s := range p.shapes {
				if age := time.Since(s.ready[0].made); age > time.Minute+2*time.Second {
					t.Errorf("%v old", age)
				}
			}
			p.mu.Unlock()
		}
		warm := l.warm.Load()
		run(t, m, warmSpec(0), interpreter(), "")
		if l.warm.Load() != warm+1 {
			t.Error("it was started cold")
		}
	})
}

// The budget holds, and those who are used least lose theirs.
func TestBudget(t *testing.T) {
	for name, o := range map[string]Options{
		"memory":  {Memory: 3 * (guessedMemory)},
		"members": {Members: 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, o, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
				for n := range 6 { // the last the most
					for range 2 + n {
						run(t, m, warmSpec(sandbox.Size(100+n)*sandbox.MiB), interpreter(), "")
						time.Sleep(300 * time.Millisecond)
						memory, count := func() (sandbox.Size, int) { p.mu.Lock(); defer p.mu.Unlock(); return p.heldLocked() }()
						if o.Members > 0 && count > o.Members || o.Memory > 0 && memory > o.Memory {
							t.Errorf("%d members, %v", count, memory)
						}
					}
				}
				time.Sleep(3 * time.Second)
				st := p.Stats()
				if st.Members == 0 {
					t.Fatalf("none at all: %+v", st)
				}
				if name == "members" && (st.Evicted == 0 || st.Members != 3) {
					t.Errorf("%+v", st)
				}
				if st.Shapes[0].Members == 0 {
					t.Errorf("the most used has none: %+v", st.Shapes)
				}
			})
		})
	}
}

// Making members takes no more of the processors than it may.
func TestProcessorBudget(t *testing.T) {
	bubble(t, Options{CPU: 0.1, MaxAge: time.Hour}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		began := time.Now()
		for range 2000 {
			run(t, m, warmSpec(0), interpreter(), "")
			time.Sleep(50 * time.Millisecond)
		}
		st := p.Stats()
		if share := st.RefillCPU.Seconds() / time.Since(began).Seconds(); share > 0.12 {
			t.Errorf("%.2f of a processor: %+v", share, st)
		}
		if st.Refills < 50 {
			t.Errorf("%+v", st)
		}
	})
}

// Requests that wait for the machine come first, but not for ever.
func TestBusy(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	bubble(t, Options{Busy: busy.Load, Parallel: 4, PerShape: 8}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		began := time.Now()
		if err := warmed(t, p, m, warmSpec(0), warmSpec(65*sandbox.MiB), warmSpec(66*sandbox.MiB), warmSpec(67*sandbox.MiB)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*holdBack {
			t.Errorf("four members in %v while requests wait", took)
		}
	})
	busy.Store(false)
	bubble(t, Options{Busy: busy.Load, Parallel: 4}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		began := time.Now()
		if err := warmed(t, p, m, warmSpec(0), warmSpec(65*sandbox.MiB), warmSpec(66*sandbox.MiB), warmSpec(67*sandbox.MiB)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*holdBack {
			t.Errorf("four members in %v while nobody waits", took)
		}
	})
}

// What can not be made is tried ever less often.
func TestRetries(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		l.FailCreate(errors.New("no"))
		if err := warmed(t, p, m, warmSpec(0)); err == nil {
			t.Error("nobody says so")
		}
		time.Sleep(10 * time.Minute)
		if n := l.creates.Load(); n < 8 || n > 25 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		if st := p.Stats(); st.Shapes[0].Problem != "no" || st.Failures < 8 {
			t.Errorf("%+v", st)
		}
		l.FailCreate(nil)
		time.Sleep(2 * time.Minute)
		if members(p, 0) != 1 {
			t.Errorf("%+v", p.Stats())
		}
	})
}

// forker is a backend that forks: what it forks is told from what it starts by a variable.
type forker struct {
	*lab
	prepared, forked, ahead, closedN, refuse atomic.Int64
	fail, unable                             atomic.Bool
	mu                                       sync.Mutex
	live                                     []*fakeZygote
	waiting                                  []*fakeFork
}

type fakeZygote struct {
	f    *forker
	spec *sandbox.Spec
	once sync.Once
	done chan struct{}
}

func (f *forker) Forks(*sandbox.Spec, *sandbox.Process) error {
	if f.unable.Load() {
		return &sandbox.Error{Op: "prepare", Kind: sandbox.ErrUnsupported}
	}
	return nil
}

func (f *forker) Prepare(_ context.Context, spec *sandbox.Spec, p *sandbox.Process) (sandbox.Zygote, error) {
	time.Sleep(100 * time.Millisecond)
	if f.fail.Load() {
		return nil, errors.New("no zygote")
	}
	if len(p.Args) == 0 || p.Warm == nil {
		return nil, fmt.Errorf("%+v", p)
	}
	f.prepared.Add(1)
	z := &fakeZygote{f: f, spec: spec, done: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = append(f.live, z)
	return z, nil
}

func (z *fakeZygote) Start(ctx context.Context, in sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
	if z.f.refuse.Load() > 0 {
		return nil, &sandbox.Error{Op: "fork", Kind: sandbox.ErrState}
	}
	select {
	case <-z.done:
		return nil, &sandbox.Error{Op: "fork", Kind: sandbox.ErrState}
	default:
	}
	z.f.forked.Add(1)
	return in.Start(ctx, p)
}

// fakeFork is refused, and dies, as its zygote is told to.
type fakeFork struct {
	z    *fakeZygote
	in   sandbox.Instance
	dead atomic.Bool
	used atomic.Bool
	at   atomic.Int64 // how many had been started when it was closed
}

func (z *fakeZygote) Fork(_ context.Context, in sandbox.Instance, _ *sandbox.Process) (sandbox.Fork, error) {
	select {
	case <-z.done:
		return nil, &sandbox.Error{Op: "fork", Kind: sandbox.ErrState}
	default:
	}
	f := &fakeFork{z: z, in: in}
	z.f.mu.Lock()
	defer z.f.mu.Unlock()
	z.f.waiting = append(z.f.waiting, f)
	return f, nil
}

func (f *fakeFork) Alive() bool { return !f.dead.Load() }

func (f *fakeFork) Close() error {
	if !f.used.Swap(true) {
		f.at.Store(f.z.f.cold.Load())
	}
	return nil
}

func (f *fakeFork) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if f.used.Swap(true) || f.dead.Load() || f.z.f.refuse.Load() > 0 {
		return nil, &sandbox.Error{Op: "fork", Kind: sandbox.ErrState}
	}
	f.z.f.forked.Add(1)
	f.z.f.ahead.Add(1)
	return f.in.Start(ctx, p)
}

func (z *fakeZygote) Done() <-chan struct{} { return z.done }
func (z *fakeZygote) Close() error {
	z.once.Do(func() { z.f.closedN.Add(1); close(z.done) })
	return nil
}

func forks() sandbox.Process {
	p := interpreter()
	p.Warm.Fork = true
	return p
}

func forking(t *testing.T, o Options, f func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &forker{lab: newLab()}
		p := New(l, o)
		m := sandbox.NewManager(p, sandbox.Options{})
		f(t, l, p, m)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		closed(t, p, l.lab)
		if l.prepared.Load() != l.closedN.Load() {
			t.Errorf("%d zygotes, %d closed", l.prepared.Load(), l.closedN.Load())
		}
		for n, f := range l.waiting {
			if !f.used.Load() {
				t.Errorf("fork %d of %d waits for ever", n, len(l.waiting))
			}
		}
	})
}

func TestZygote(t *testing.T) {
	forking(t, Options{ZygoteAge: time.Minute, ZygoteForks: 10}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
		spec := warmSpec(0, forks())
		if err := warmed(t, p, m, spec); err != nil {
			t.Fatal(err)
		}
		if st := p.Stats(); st.Zygotes != 1 || st.Members != 1 {
			t.Fatalf("%+v", st)
		}
		for n := range 25 {
			if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 {
				t.Errorf("%+v", res)
			}
			time.Sleep(time.Second)
			if l.forked.Load() != int64(n+1) {
				t.Fatalf("%d forks after %d runs", l.forked.Load(), n+1)
			}
		}
		if n := l.prepared.Load(); n != 4 { // W7: by number
			t.Errorf("%d zygotes for 25 forks", n)
		}
		time.Sleep(5 * time.Minute) // by age
		if n := l.prepared.Load(); n < 9 || n > 11 {
			t.Errorf("%d zygotes", n)
		}
		// Killed (W5).
		l.mu.Lock()
		last := l.live[len(l.live)-1]
		l.mu.Unlock()
		_ = last.Close()
		run(t, m, spec, forks(), "in")
		time.Sleep(2 * time.Second)
		if st := p.Stats(); st.Zygotes != 1 {
			t.Errorf("not replaced: %+v", st)
		}
		// One that can not serve.
		before := l.cold.Load()
		l.refuse.Store(1)
		if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 || l.cold.Load() != before+1 {
			t.Errorf("%+v", res)
		}
	})
}

// A fork waits in a member before there is a request. One that has ended costs a member, and one that is not what is asked for goes before
// anything else is started.
func TestForkAhead(t *testing.T) {
	forking(t, Options{}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
		spec := warmSpec(0, forks())
		if err := warmed(t, p, m, spec); err != nil {
			t.Fatal(err)
		}
		ahead := func() int64 {
			before := l.ahead.Load()
			if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 {
				t.Errorf("%+v", res)
			}
			time.Sleep(time.Second)
			return l.ahead.Load() - before
		}
		ahead() // the first member may be older than the zygote
		for range 3 {
			if ahead() != 1 {
				t.Error("no fork waited")
			}
		}
		l.mu.Lock()
		last := l.waiting[len(l.waiting)-1]
		l.mu.Unlock()
		if last.used.Load() {
			t.Fatal("no fork waits")
		}
		last.dead.Store(true)
		unwell := p.Stats().Unwell
		time.Sleep(2 * time.Second)
		if st := p.Stats(); st.Unwell != unwell+1 || !last.used.Load() {
			t.Errorf("%+v: the fork was ended: %v", st, last.used.Load())
		}
		if ahead() != 1 {
			t.Error("no fork waits in the place of one that ended")
		}
		l.mu.Lock()
		last = l.waiting[len(l.waiting)-1]
		l.mu.Unlock()
		other := interpreter()
		other.Warm = nil
		before := l.cold.Load()
		run(t, m, spec, other, "")
		if l.cold.Load() != before+1 || last.at.Load() != before {
			t.Error("something else was started beside a fork that waits")
		}
	})
}

// Nobody waits for the next zygote: it is there before the one in use has served its number or its time, and none serves more than that.
func TestZygoteSuccession(t *testing.T) {
	const most = 20
	forking(t, Options{ZygoteForks: most, ZygoteAge: time.Minute}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
		spec := warmSpec(0, forks())
		if err := warmed(t, p, m, spec); err != nil {
			t.Fatal(err)
		}
		cold := l.cold.Load()
		for n := range int64(5 * most) {
			run(t, m, spec, forks(), "in")
			if l.forked.Load() != n+1 {
				t.Fatalf("request %d was not forked", n)
			}
			time.Sleep(50 * time.Millisecond)
		}
		for range 200 {
			run(t, m, spec, forks(), "in")
			time.Sleep(time.Second)
		}
		if l.forked.Load() != 5*most+200 || l.cold.Load()-cold != l.forked.Load() {
			t.Errorf("%d of %d were forked", l.forked.Load(), 5*most+200)
		}
		// The next one can not be made: the old one serves its number, and no more.
		l.fail.Store(true)
		before := l.forked.Load()
		for range 3 * most {
			run(t, m, spec, forks(), "in")
			time.Sleep(50 * time.Millisecond)
		}
		if n := l.forked.Load() - before; n == 0 || n > most+1 {
			t.Errorf("%d forks of a zygote without a successor", n)
		}
		if st := p.Stats(); st.Zygotes != 0 || st.Failures == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Zygotes that can not be made cost nothing but warmth, and somebody is told why, once.
func TestNoZygote(t *testing.T) {
	var told atomic.Int64
	forking(t, Options{OnFailure: func(name string, err error) {
		if told.Add(1); name != forks().Warm.Name || err == nil {
			t.Errorf("%q: %v", name, err)
		}
	}}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
		l.fail.Store(true)
		spec := warmSpec(0, forks())
		if err := warmed(t, p, m, spec); err == nil {
			t.Error("nobody says so")
		}
		for range 3 {
			if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 {
				t.Errorf("%+v", res)
			}
		}
		time.Sleep(5 * time.Minute)
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
	})
}

// What can not be forked waits as it does everywhere else.
func TestUnable(t *testing.T) {
	forking(t, Options{}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
		l.unable.Store(true)
		spec := warmSpec(0, forks())
		if err := warmed(t, p, m, spec); err != nil {
			t.Error(err)
		}
		if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 {
			t.Errorf("%+v", res)
		}
		if st := p.Stats(); st.Warm != 1 || st.Zygotes != 0 || st.Failures != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Requests that are all of a shape of their own do not make the pool remember them all, nor forget what it has.
func TestManyShapes(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		for range 2 {
			run(t, m, warmSpec(0), interpreter(), "")
		}
		time.Sleep(2 * time.Second)
		for n := range maxShapes + 100 {
			run(t, m, warmSpec(sandbox.Size(64<<20+n<<12)), interpreter(), "")
		}
		st := p.Stats()
		if len(st.Shapes) > maxShapes || st.Misses != maxShapes+102 {
			t.Errorf("%d shapes, %d misses", len(st.Shapes), st.Misses)
		}
		run(t, m, warmSpec(0), interpreter(), "")
		if st := p.Stats(); st.Hits != 1 {
			t.Errorf("%d hits", st.Hits)
		}
	})
}

// A sandbox can wait for a program that nothing can wait in: it is made ready, and the program started in it as in any other.
func TestSandboxAlone(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		cold := interpreter()
		cold.Warm = nil
		spec := warmSpec(0)
		spec.Ahead = []sandbox.Process{cold}
		for range 3 {
			run(t, m, spec, cold, "")
			time.Sleep(time.Second)
		}
		st := p.Stats()
		if st.Hits == 0 || st.Warm != 0 || st.Fallbacks != 0 || len(st.Shapes) != 1 || st.Shapes[0].Name != "sandbox" {
			t.Errorf("%+v", st)
		}
		// Without a word of what will be started, nothing is made ready.
		spec.Ahead = nil
		run(t, m, spec, cold, "")
		if again := p.Stats(); again.Hits+again.Misses != st.Hits+st.Misses {
			t.Errorf("%+v", again)
		}
	})
}

// Tenants do not share a zygote where that is asked for (W7).
func TestPerTenant(t *testing.T) {
	for _, label := range []string{"", "tenant"} {
		forking(t, Options{PerTenant: label}, func(t *testing.T, l *forker, p *Pool, m *sandbox.Manager) {
			for range 3 {
				for _, who := range []string{"a", "b"} {
					spec := warmSpec(0, forks())
					spec.Labels = map[string]string{"tenant": who}
					run(t, m, spec, forks(), "in")
					time.Sleep(2 * time.Second)
				}
			}
			want := 1
			if label != "" {
				want = 2
			}
			if st := p.Stats(); st.Zygotes != want {
				t.Errorf("%q: %+v", label, st)
			}
		})
	}
}

// When memory is short what waits is given up, a half each time, and nothing is made; then it is made again.
func TestShrink(t *testing.T) {
	bubble(t, Options{Keep: time.Hour, MaxAge: 2 * time.Hour}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() { run(t, m, warmSpec(0), interpreter(), "") })
			time.Sleep(20 * time.Millisecond)
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		before := p.Stats().Members
		if before < 4 {
			t.Fatalf("%d members", before)
		}
		p.Shrink()
		half := p.Stats().Members
		if half > before/2 || half == 0 {
			t.Errorf("%d of %d members", half, before)
		}
		for range 6 {
			p.Shrink()
		}
		refills := p.Stats().Refills
		time.Sleep(5 * time.Second)
		run(t, m, warmSpec(0), interpreter(), "") // is served all the same
		time.Sleep(5 * time.Second)
		if st := p.Stats(); st.Members != 0 || st.Zygotes != 0 || st.Refills != refills {
			t.Errorf("%+v", st)
		}
		p.Grow()
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(5 * time.Second)
		if st := p.Stats(); st.Members == 0 {
			t.Errorf("%+v", st)
		}
	})
}
