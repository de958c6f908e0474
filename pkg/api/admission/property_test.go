package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// consistent recomputes and compares every sum.
func (q *Queue) consistent() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	running, places := 0, 0
	for key, t := range q.tenants {
		running += t.running
		places += t.places
		if active := t.running > 0 || len(t.waiting) > 0; active != q.active[t] {
			return fmt.Errorf("%s: active %v", key, active)
		}
		if t.running < 0 || t.places < 0 || t.share < -1e-9 {
			return fmt.Errorf("%s: %+v", key, t)
		}
		for i, k := range t.waiting {
			if !k.open() || k.tenant != t || i > 0 && k.seq < t.waiting[i-1].seq {
				return fmt.Errorf("%s: ticket %d is out of place", key, i)
			}
		}
	}
	switch {
	case running != q.running, places != q.places:
		return fmt.Errorf("%d run, counted %d; %d places, counted %d", running, q.running, places, q.places)
	case q.promised.memory > q.budget.memory, q.promised.milli > q.budget.milli, q.promised.milli < 0:
		return fmt.Errorf("promised %+v of %+v", q.promised, q.budget)
	case q.running == 0 && q.promised != promise{}:
		return fmt.Errorf("nothing runs, and %+v is promised", q.promised)
	case places > q.o.Queue:
		return fmt.Errorf("%d places of %d", places, q.o.Queue)
	}
	return nil
}

// timeless hides the test's deadline, which synctest does not allow.
type timeless struct{ rapid.TB }

// In any order of calls: the budget and the keys' limits hold, every Enter returns once, no run waits that could start, no place is lost.
func TestProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			q, err := New(Options{
				CPUs: 4, Memory: 1024 * mib, Queue: rapid.IntRange(1, 12).Draw(rt, "queue"), Wait: 5 * time.Second,
				Overtake: rapid.IntRange(1, 4).Draw(rt, "overtake"),
			})
			if err != nil {
				rt.Fatal(err)
			}
			limits := map[string]int{"a": 0, "b": 2, "c": 1, "d": 0}
			type asked struct {
				*entering
				a      api.AdmissionRequest
				cancel context.CancelFunc
				left   bool
			}
			var all []*asked
			var promisedMemory sandbox.Size
			held := map[string]int{}
			look := func() {
				synctest.Wait()
				if err := q.consistent(); err != nil {
					rt.Fatal(err)
				}
				promisedMemory = 0
				cpus := 0.0
				clear(held)
				for _, x := range all {
					if x.done.Load() && x.err == nil && !x.left {
						promisedMemory += min(x.a.Memory, 1024*mib)
						cpus += min(x.a.CPUs, 4)
						held[x.a.Key]++
					}
					if x.done.Load() && (x.err == nil) == (x.leave == nil) {
						rt.Fatalf("answered with both or neither: %+v", x)
					}
				}
				if promisedMemory > 1024*mib || cpus > 4.0001 {
					rt.Fatalf("%v and %v cores are in use", promisedMemory, cpus)
				}
				for key, n := range held {
					if most := limits[key]; most > 0 && n > most {
						rt.Fatalf("%s has %d of %d", key, n, most)
					}
				}
				if l := q.Load(); l.Running == 0 && l.Waiting > 0 {
					rt.Fatalf("%d wait though nothing runs", l.Waiting)
				}
			}
			var reserved []func()
			rt.Repeat(map[string]func(*rapid.T){
				"enter": func(rt *rapid.T) {
					a := api.AdmissionRequest{
						Key:    rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key"),
						Memory: sandbox.Size(rapid.IntRange(1, 1400).Draw(rt, "memory")) * mib,
						CPUs:   float64(rapid.IntRange(1, 50).Draw(rt, "cpus")) / 10,
					}
					a.Concurrency = limits[a.Key]
					ctx, cancel := context.WithCancel(context.Background())
					x := &asked{a: a, cancel: cancel}
					x.entering = start(ctx, q, a)
					all = append(all, x)
				},
				"accepted": func(rt *rapid.T) {
					a := one(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key"))
					a.Concurrency = limits[a.Key]
					release, err := q.Reserve(a)
					if err != nil {
						return
					}
					a.Accepted = true
					ctx, cancel := context.WithCancel(context.Background())
					x := &asked{a: a, cancel: cancel}
					x.entering = start(ctx, q, a)
					all = append(all, x)
					reserved = append(reserved, release)
				},
				"leave": func(rt *rapid.T) {
					if len(all) > 0 {
						if x := all[rapid.IntRange(0, len(all)-1).Draw(rt, "which")]; x.done.Load() && x.err == nil {
							x.left = true
							x.leave()
						}
					}
				},
				"cancel": func(rt *rapid.T) {
					if len(all) > 0 {
						x := all[rapid.IntRange(0, len(all)-1).Draw(rt, "which")]
						waits := !x.done.Load()
						x.cancel()
						synctest.Wait()
						if waits && (!x.done.Load() || !errors.Is(x.err, context.Canceled)) {
							rt.Fatalf("cancelled, and %v %v", x.done.Load(), x.err)
						}
					}
				},
				"release": func(rt *rapid.T) {
					if len(reserved) > 0 {
						reserved[rapid.IntRange(0, len(reserved)-1).Draw(rt, "which")]()
					}
				},
				"time": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(rt, "ms")) * time.Millisecond)
				},
				"": func(*rapid.T) { look() },
			})
			// At the end all runs leave, and every Enter returns.
			for range len(all) + 1 {
				synctest.Wait()
				for _, x := range all {
					if x.done.Load() && x.err == nil && !x.left {
						x.left = true
						x.leave()
						synctest.Wait()
					}
				}
			}
			for _, release := range reserved {
				release()
			}
			for i, x := range all {
				x.cancel()
				if !x.done.Load() {
					rt.Fatalf("%d was never answered: %+v", i, x.a)
				}
			}
			look()
			if l := q.Load(); l.Running != 0 || l.Waiting != 0 || l.Reserved != 0 || q.places != 0 {
				rt.Fatalf("left: %+v", l)
			}
		})
	})
}

// As TestProperties, with real threads for the race detector.
func TestRaces(t *testing.T) {
	q := small(t, func(o *Options) { o.Queue, o.Wait = 20, 50*time.Millisecond })
	var memory, cpus, answers, in atomic.Int64
	var wg sync.WaitGroup
	const clients, each = 64, 150
	for c := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), 1))
			for range each {
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(4) == 0 {
					time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
				}
				a := api.AdmissionRequest{
					Key: fmt.Sprint(c % 7), Memory: sandbox.Size(1+r.IntN(2048)) * mib, CPUs: float64(1+r.IntN(30)) / 10, Concurrency: r.IntN(4),
					Rate: 2000, Burst: 100, OnPosition: func(int) {},
				}
				if r.IntN(5) == 0 {
					if release, err := q.Reserve(a); err == nil {
						defer release()
						a.Accepted = true
					}
				}
				leave, err := q.Enter(ctx, a)
				answers.Add(1)
				if err == nil {
					in.Add(1)
					if memory.Add(int64(a.Memory)) > int64(4096*mib) || cpus.Add(int64(a.CPUs*1000)) > 4000 {
						t.Error("over the budget")
					}
					time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
					memory.Add(-int64(a.Memory))
					cpus.Add(-int64(a.CPUs * 1000))
					leave()
					leave()
				}
				cancel()
			}
		})
	}
	stop := make(chan struct{})
	var looker sync.WaitGroup
	looker.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if err := q.consistent(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	looker.Wait()
	if answers.Load() != clients*each || in.Load() == 0 {
		t.Errorf("%d answers of %d, %d let in", answers.Load(), clients*each, in.Load())
	}
	idle(t, q)
}
