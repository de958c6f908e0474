package pool

import (
	"errors"
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

func count(p *Pool, name int) int {
	st := p.Stats()
	if name >= len(st.Shapes) {
		return 0
	}
	return st.Shapes[name].Sandboxes
}

// The number of pooled sandboxes follows the demand, stays at one for a while after it, and then falls to none.
func TestSizing(t *testing.T) {
	bubble(t, Options{Keep: 10 * time.Minute, MaxAge: time.Hour}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(2 * time.Second)
		if n := count(p, 0); n != 0 {
			t.Errorf("%d pooled sandboxes of a shape that was seen once", n)
		}
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(2 * time.Second)
		if n := count(p, 0); n != 1 {
			t.Errorf("%d pooled sandboxes", n)
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
		if n := count(p, 0); n < 1 || n > 2 {
			t.Errorf("%d pooled sandboxes after five minutes", n)
		}
		time.Sleep(6 * time.Minute)
		if st := p.Stats(); st.Sandboxes != 0 || len(st.Shapes) != 0 || l.Alive() != 0 || st.Hits < 100 {
			t.Errorf("kept without requests: %+v, %d alive", st, l.Alive())
		}
	})
}

// A pinned shape has a pooled sandbox hours later, and never one older than MaxAge.
func TestAge(t *testing.T) {
	bubble(t, Options{MaxAge: time.Minute}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		if err := warmed(t, p, m, warmSpec(0)); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(17 * time.Minute)
			if n := count(p, 0); n != 1 {
				t.Fatalf("%d pooled sandboxes", n)
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

// The limits are kept, and the least used shapes lose their sandboxes first.
func TestBudget(t *testing.T) {
	for name, o := range map[string]Options{
		"memory":    {Memory: 3 * (guessedMemory)},
		"sandboxes": {Sandboxes: 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, o, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
				for n := range 6 { // the last the most
					for range 2 + n {
						run(t, m, warmSpec(sandbox.Size(100+n)*sandbox.MiB), interpreter(), "")
						time.Sleep(300 * time.Millisecond)
						memory, count := func() (sandbox.Size, int) { p.mu.Lock(); defer p.mu.Unlock(); return p.usageLocked() }()
						if o.Sandboxes > 0 && count > o.Sandboxes || o.Memory > 0 && memory > o.Memory {
							t.Errorf("%d pooled sandboxes, %v", count, memory)
						}
					}
				}
				time.Sleep(3 * time.Second)
				st := p.Stats()
				if st.Sandboxes == 0 {
					t.Fatalf("none at all: %+v", st)
				}
				if name == "sandboxes" && (st.Evicted == 0 || st.Sandboxes != 3) {
					t.Errorf("%+v", st)
				}
				if st.Shapes[0].Sandboxes == 0 {
					t.Errorf("the most used has none: %+v", st.Shapes)
				}
			})
		})
	}
}

// Refills use no more CPU time than Options.CPU.
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

// Refills wait for busy requests, but not for ever.
func TestBusy(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	bubble(t, Options{Busy: busy.Load, Parallel: 4, PerShape: 8}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		began := time.Now()
		if err := warmed(t, p, m, warmSpec(0), warmSpec(65*sandbox.MiB), warmSpec(66*sandbox.MiB), warmSpec(67*sandbox.MiB)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*holdBack {
			t.Errorf("four sandboxes in %v while requests wait", took)
		}
	})
	busy.Store(false)
	bubble(t, Options{Busy: busy.Load, Parallel: 4}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		began := time.Now()
		if err := warmed(t, p, m, warmSpec(0), warmSpec(65*sandbox.MiB), warmSpec(66*sandbox.MiB), warmSpec(67*sandbox.MiB)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*holdBack {
			t.Errorf("four sandboxes in %v while no request waits", took)
		}
	})
}

// After each failure, the next attempt comes later.
func TestRetries(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
		l.FailCreate(errors.New("no"))
		if err := warmed(t, p, m, warmSpec(0)); err == nil {
			t.Error("OnFailure was not called")
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
		if count(p, 0) != 1 {
			t.Errorf("%+v", p.Stats())
		}
	})
}

// Requests with a shape each do not grow the list without bound, nor evict shapes with pooled sandboxes.
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
		before := p.Stats().Sandboxes
		if before < 4 {
			t.Fatalf("%d pooled sandboxes", before)
		}
		p.Shrink()
		half := p.Stats().Sandboxes
		if half > before/2 || half == 0 {
			t.Errorf("%d of %d pooled sandboxes", half, before)
		}
		for range 6 {
			p.Shrink()
		}
		refills := p.Stats().Refills
		time.Sleep(5 * time.Second)
		run(t, m, warmSpec(0), interpreter(), "") // is served all the same
		time.Sleep(5 * time.Second)
		if st := p.Stats(); st.Sandboxes != 0 || st.Zygotes != 0 || st.Refills != refills {
			t.Errorf("%+v", st)
		}
		p.Grow()
		run(t, m, warmSpec(0), interpreter(), "")
		time.Sleep(5 * time.Second)
		if st := p.Stats(); st.Sandboxes == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Refills wait while programs start, unless the shape is undersupplied.
func TestUndersupplied(t *testing.T) {
	for rate, want := range map[float64]int{1: 0, 100: 1} {
		bubble(t, Options{}, func(t *testing.T, l *lab, p *Pool, m *sandbox.Manager) {
			for range 2 {
				run(t, m, warmSpec(0), interpreter(), "")
			}
			time.Sleep(2 * time.Second)
			resume := p.delayRefills() // as for a program that starts
			defer resume()
			p.mu.Lock()
			for _, s := range p.shapes {
				for _, pooled := range s.ready {
					p.discardLocked(pooled)
				}
				s.ready, s.fast, s.slow, s.seen = nil, rate, 0, time.Now()
			}
			p.mu.Unlock()
			p.adjust(time.Now())
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.filling != want {
				t.Errorf("%v requests a second, one takes 0.1 s to make: %d are being made, want %d", rate, p.filling, want)
			}
		})
	}
}
