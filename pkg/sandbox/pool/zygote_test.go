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

// forker is a backend that forks: a variable distinguishes forked from started processes.
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

// fakeFork is refused, or ends, as the test has set in its zygote.
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
		if st := p.Stats(); st.Zygotes != 1 || st.Sandboxes != 1 {
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
		// A zygote that can not fork.
		before := l.cold.Load()
		l.refuse.Store(1)
		if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 || l.cold.Load() != before+1 {
			t.Errorf("%+v", res)
		}
	})
}

// A fork waits in a pooled sandbox before there is a request. One that has ended costs a pooled sandbox, and one of another
// program ends before anything else is started.
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
		ahead() // the first pooled sandbox may be older than the zygote
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
		unhealthy := p.Stats().Unhealthy
		time.Sleep(2 * time.Second)
		if st := p.Stats(); st.Unhealthy != unhealthy+1 || !last.used.Load() {
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

// No request waits for the next zygote: it is ready before the one in use has reached its maximum, and none exceeds it.
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

// Without zygotes, requests start cold, and OnFailure is called once.
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
			t.Error("OnFailure was not called")
		}
		for range 3 {
			if res := run(t, m, spec, forks(), "in"); res.Exit.Code != 3 {
				t.Errorf("%+v", res)
			}
		}
		time.Sleep(5 * time.Minute)
		if told.Load() != 1 {
			t.Errorf("OnFailure was called %d times", told.Load())
		}
	})
}

// A process that can not be forked waits in its driver.
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
