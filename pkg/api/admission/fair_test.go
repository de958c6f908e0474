package admission

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
)

// Small runs overtake a large one a bounded number of times.
func TestLargeIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Queue, o.Wait, o.Overtake = 100, time.Hour, 5 })
		ctx, cancel := context.WithCancel(context.Background())
		var runs atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 { // eight keys, always one more than fits
			wg.Go(func() {
				for ctx.Err() == nil {
					leave, err := q.Enter(ctx, one(fmt.Sprint("small", i)))
					if err != nil {
						return
					}
					runs.Add(1)
					time.Sleep(time.Second)
					leave()
				}
			})
		}
		time.Sleep(time.Minute)
		before := runs.Load()
		begin := time.Now()
		enter(t, q, api.AdmissionRequest{Key: "large", CPUs: 4, Memory: mib})()
		if passed := runs.Load() - before; time.Since(begin) > 10*time.Second || passed > 20 {
			t.Errorf("waited %v and was overtaken %d times", time.Since(begin), passed)
		}
		cancel()
		wg.Wait()
		idle(t, q)
	})
}

// Two greedy keys get equal shares, however many runs each submits; a modest key is served at once.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Queue, o.Wait = 200, time.Hour })
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		used := map[string]*atomic.Int64{}
		client := func(key string, n int, each time.Duration) {
			u := new(atomic.Int64)
			used[key] = u
			for range n {
				wg.Go(func() {
					for ctx.Err() == nil {
						leave, err := q.Enter(ctx, one(key))
						if err != nil {
							return
						}
						time.Sleep(each)
						u.Add(int64(each))
						leave()
					}
				})
			}
		}
		client("many", 100, time.Second)
		time.Sleep(30 * time.Second) // alone: all of it
		if got := time.Duration(used["many"].Load()); got < 4*29*time.Second {
			t.Errorf("alone it had %v of 2m", got)
		}
		client("few", 4, 3*time.Second)
		client("short", 10, 20*time.Millisecond)
		time.Sleep(10 * time.Second)
		before := map[string]time.Duration{}
		for k, u := range used {
			before[k] = time.Duration(u.Load())
		}
		time.Sleep(60 * time.Second)
		for k, u := range used {
			got := time.Duration(u.Load()) - before[k]
			if got < 70*time.Second || got > 90*time.Second {
				t.Errorf("%s had %v of 4m; a third is 1m20s", k, got)
			}
		}
		var worst time.Duration
		for range 10 {
			time.Sleep(5 * time.Second)
			begin := time.Now()
			enter(t, q, one("rare"))()
			worst = max(worst, time.Since(begin))
		}
		if worst > 3*time.Second {
			t.Errorf("one that comes rarely waited %v", worst)
		}
		cancel()
		wg.Wait()
		idle(t, q)
	})
}

// Use of an otherwise idle machine is not held against a key, and a key with excess use is served again soon.
func TestDebtIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Queue, o.Wait = 200, time.Hour })
		bg := context.Background()
		// b is always active and uses almost nothing, while a uses the rest for an hour.
		bit := enter(t, q, api.AdmissionRequest{Key: "b", CPUs: 0.001, Memory: 1})
		long := enter(t, q, api.AdmissionRequest{Key: "a", CPUs: 3.9, Memory: mib})
		time.Sleep(time.Hour)
		var b []*entering
		for range 150 {
			b = append(b, start(bg, q, api.AdmissionRequest{Key: "b", CPUs: 3.9, Memory: mib}))
		}
		a := start(bg, q, api.AdmissionRequest{Key: "a", CPUs: 3.9, Memory: mib})
		long()
		begin := time.Now()
		for i := range b {
			synctest.Wait()
			if a.done.Load() {
				break
			}
			if !b[i].done.Load() {
				t.Fatalf("no run is admitted after %d", i)
			}
			time.Sleep(time.Second)
			b[i].leave()
		}
		if waited := time.Since(begin); !a.done.Load() || waited < time.Second || waited > 7*time.Second {
			t.Errorf("a waited %v; %v", waited, a.done.Load())
		}
		a.leave()
		for _, e := range b {
			synctest.Wait()
			if e.done.Load() {
				e.leave()
			}
		}
		bit()
		idle(t, q)
	})
}

// A stream of new keys does not starve an old one.
func TestNewKeysDoNotStarveAnOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.CPUs, o.Queue, o.Wait, o.Overtake = 1, 200, time.Hour, 1 })
		bg := context.Background()
		ask := func(key string) api.AdmissionRequest { return api.AdmissionRequest{Key: key, Memory: mib, CPUs: 0.9} }
		bit := enter(t, q, api.AdmissionRequest{Key: "bit", Memory: 1, CPUs: 0.001}) // keeps the floor down
		now := enter(t, q, ask("old"))
		time.Sleep(time.Minute)
		first := start(bg, q, ask("new0"))
		old := start(bg, q, ask("old"))
		now()
		synctest.Wait()
		entered := 0
		for i := range 500 {
			next := start(bg, q, ask(fmt.Sprint("new", i+1))) // always one waits that has used nothing
			first.leave()
			synctest.Wait()
			if old.done.Load() {
				old.leave()
				synctest.Wait()
				next.leave()
				break
			}
			entered++
			first = next
		}
		bit()
		if !old.done.Load() || entered > aged+1 || entered < 10 {
			t.Errorf("let in: %v, after %d", old.done.Load(), entered)
		}
		idle(t, q)
	})
}
