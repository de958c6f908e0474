package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = sandbox.MiB

// small makes a queue with four cores and 4 GiB.
func small(t testing.TB, change func(*Options)) *Queue {
	t.Helper()
	o := Options{CPUs: 4, Memory: 4096 * mib, Queue: 8, Wait: 10 * time.Second}
	if change != nil {
		change(&o)
	}
	q, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func one(key string) api.AdmissionRequest {
	return api.AdmissionRequest{Key: key, Memory: 100 * mib, CPUs: 1}
}

func enter(t testing.TB, q *Queue, a api.AdmissionRequest) func() {
	t.Helper()
	leave, err := q.Enter(context.Background(), a)
	if err != nil {
		t.Fatalf("%s: %v", a.Key, err)
	}
	return leave
}

// refused fails the test unless err is a refusal with that status.
func refused(t testing.TB, err error, status int) *api.Refusal {
	t.Helper()
	var r *api.Refusal
	if !errors.As(err, &r) || r.Status != status || r.RetryAfter <= 0 || r.Reason == "" {
		t.Fatalf("%+v; want a refusal of %d", err, status)
	}
	return r
}

// entering is an Enter under way; leave and err are valid once done is closed.
type entering struct {
	leave func()
	err   error
	done  atomic.Bool
	moves []int
}

func start(ctx context.Context, q *Queue, a api.AdmissionRequest) *entering {
	e := &entering{}
	if a.OnPosition == nil {
		a.OnPosition = func(n int) { e.moves = append(e.moves, n) }
	}
	go func() {
		e.leave, e.err = q.Enter(ctx, a)
		e.done.Store(true)
	}()
	synctest.Wait()
	return e
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		bg := context.Background()
		var leaves []func()
		for range 4 {
			leaves = append(leaves, enter(t, q, one("a")))
		}
		fifth := start(bg, q, one("a"))
		if fifth.done.Load() || !slices.Equal(fifth.moves, []int{1}) {
			t.Fatalf("%+v", fifth)
		}
		leaves[0]()
		leaves[0]() // twice is fine
		synctest.Wait()
		if !fifth.done.Load() || fifth.err != nil {
			t.Fatalf("%+v", fifth)
		}
		fifth.leave()
		// The memory budget limits as well.
		for _, l := range leaves {
			l()
		}
		large := enter(t, q, api.AdmissionRequest{Key: "a", Memory: 4000 * mib, CPUs: 0.1})
		waits := start(bg, q, one("b"))
		if waits.done.Load() {
			t.Fatal("more memory was promised than there is")
		}
		large()
		synctest.Wait()
		waits.leave()
		// A run above the whole budget is admitted alone.
		x := enter(t, q, one("a"))
		whole := start(bg, q, api.AdmissionRequest{Key: "a", Memory: 1 << 60, CPUs: 1e9})
		if whole.done.Load() {
			t.Fatal("let in beside another")
		}
		x()
		synctest.Wait()
		if l := q.Load(); whole.err != nil || l.Running != 1 || l.Memory != l.MemoryBudget || l.CPUs != l.CPUBudget {
			t.Fatalf("%+v %+v", whole, l)
		}
		whole.leave()
		idle(t, q)
	})
}

// idle checks that a queue is in its initial state.
func idle(t testing.TB, q *Queue) {
	t.Helper()
	l := q.Load()
	if l.Running != 0 || l.Waiting != 0 || l.Reserved != 0 || l.Memory != 0 || l.CPUs != 0 || len(q.active) != 0 || q.places != 0 {
		t.Fatalf("not idle: %+v, %d active, %d places", l, len(q.active), q.places)
	}
}

func TestCancelledLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		all := enter(t, q, api.AdmissionRequest{Key: "a", CPUs: 4, Memory: mib})
		ctx, cancel := context.WithCancel(context.Background())
		first := start(ctx, q, api.AdmissionRequest{Key: "b", CPUs: 4, Memory: mib})
		second := start(context.Background(), q, one("b"))
		cancel()
		synctest.Wait()
		if !first.done.Load() || !errors.Is(first.err, context.Canceled) || q.Load().Waiting != 1 {
			t.Fatalf("%+v, %+v", first, q.Load())
		}
		if _, err := q.Enter(ctx, one("b")); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(2 * positionInterval)
		synctest.Wait()
		if !slices.Equal(second.moves, []int{2, 1}) {
			t.Errorf("positions: %v", second.moves)
		}
		all()
		synctest.Wait()
		second.leave()
		idle(t, q)
	})
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		all := enter(t, q, api.AdmissionRequest{Key: "a", CPUs: 4})
		begin := time.Now()
		_, err := q.Enter(context.Background(), one("b"))
		if r := refused(t, err, http.StatusServiceUnavailable); r.Position != 1 || time.Since(begin) != 10*time.Second {
			t.Errorf("%+v after %v", r, time.Since(begin))
		}
		// A key at its own limit gets 429.
		own := one("c")
		own.Concurrency = 1
		all()
		c := enter(t, q, own)
		_, err = q.Enter(context.Background(), own)
		refused(t, err, http.StatusTooManyRequests)
		// An accepted run waits without a time limit.
		promised := own
		promised.Accepted = true
		long := start(context.Background(), q, promised)
		time.Sleep(time.Hour)
		if long.done.Load() {
			t.Fatalf("%+v", long)
		}
		c()
		synctest.Wait()
		long.leave()
		idle(t, q)
	})
}

func TestConcurrencyOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Concurrency = 3 })
		two := one("a")
		two.Concurrency = 2
		l1, l2 := enter(t, q, two), enter(t, q, two)
		third := start(context.Background(), q, two)
		other := enter(t, q, one("b")) // there is room, and b has done nothing
		if third.done.Load() {
			t.Fatal("a third of two")
		}
		l1()
		synctest.Wait()
		if !third.done.Load() {
			t.Fatal("a place was free")
		}
		l2()
		third.leave()
		other()
		var leaves []func()
		for range 3 {
			leaves = append(leaves, enter(t, q, one("c")))
		}
		fourth := start(context.Background(), q, one("c"))
		if fourth.done.Load() {
			t.Fatal("a fourth, where the server's own limit is three")
		}
		for _, l := range leaves {
			l()
		}
		synctest.Wait()
		fourth.leave()
		idle(t, q)
	})
}

func TestRateOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		a := one("a")
		a.Rate, a.Burst = 0.5, 3
		for range 3 {
			enter(t, q, a)()
		}
		_, err := q.Enter(context.Background(), a)
		if r := refused(t, err, http.StatusTooManyRequests); r.RetryAfter != 2*time.Second {
			t.Errorf("%+v", r)
		}
		if _, err := q.Reserve(a); err == nil {
			t.Error("a reservation goes past the rate")
		}
		enter(t, q, one("b"))() // no concern of b's
		time.Sleep(2 * time.Second)
		enter(t, q, a)()
		_, err = q.Enter(context.Background(), a)
		refused(t, err, http.StatusTooManyRequests)
		time.Sleep(time.Hour) // a burst is saved up, and no more
		for range 3 {
			enter(t, q, a)()
		}
		_, err = q.Enter(context.Background(), a)
		refused(t, err, http.StatusTooManyRequests)
		idle(t, q)
	})
}

// Without a burst of its own, a key may start as many runs at once as it may have, or those of a second.
func TestBurstOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		for _, test := range []struct {
			key         string
			rate        float64
			concurrency int
			burst       int
		}{{"slow", 0.5, 4, 4}, {"fast", 6, 4, 6}, {"single", 0.5, 1, 1}, {"unlimited", 2, 0, 2}} {
			a := one(test.key)
			a.Rate, a.Concurrency = test.rate, test.concurrency
			for range test.burst {
				enter(t, q, a)()
			}
			_, err := q.Enter(context.Background(), a)
			refused(t, err, http.StatusTooManyRequests)
		}
		idle(t, q)
	})
}

// A full queue refuses, and one key can not fill it for others.
func TestQueueIsBoundedAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		bg := context.Background()
		all := enter(t, q, api.AdmissionRequest{Key: "hog", CPUs: 4, Memory: mib})
		var hog []*entering
		for range 8 {
			hog = append(hog, start(bg, q, one("hog")))
		}
		_, err := q.Enter(bg, one("hog"))
		if r := refused(t, err, http.StatusServiceUnavailable); r.Position != 9 {
			t.Errorf("%+v", r)
		}
		b := start(bg, q, one("b"))
		if b.done.Load() || !hog[7].done.Load() || hog[6].done.Load() {
			t.Fatalf("b: %+v; the hog's last: %+v, the one before: %+v", b, hog[7], hog[6])
		}
		refused(t, hog[7].err, http.StatusServiceUnavailable)
		if release, err := q.Reserve(one("c")); err != nil { // takes another of the hog's
			t.Fatal(err)
		} else {
			release()
			release()
		}
		// When all keys have the same number of places, a new run is refused.
		var others []*entering
		for i := range 6 {
			others = append(others, start(bg, q, one(fmt.Sprint("k", i))))
		}
		if n := q.Load().Waiting; n != 8 {
			t.Fatalf("%d wait", n)
		}
		for _, h := range hog[1:] {
			if !h.done.Load() {
				t.Fatalf("the hog still has more than one: %+v", h)
			}
		}
		_, err = q.Enter(bg, one("late"))
		if r := refused(t, err, http.StatusServiceUnavailable); r.Position != 9 {
			t.Errorf("%+v", r)
		}
		all()
		for range 10 {
			synctest.Wait()
			for _, e := range append(append(others, hog...), b) {
				if e.done.Load() && e.err == nil {
					e.leave()
				}
			}
		}
		idle(t, q)
	})
}

func TestPlacesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.QueuePerKey = 2 })
		bg := context.Background()
		all := enter(t, q, api.AdmissionRequest{Key: "z", CPUs: 4, Memory: mib})
		first := start(bg, q, one("a"))
		release, err := q.Reserve(one("a"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = q.Enter(bg, one("a"))
		if r := refused(t, err, http.StatusTooManyRequests); r.Position != 3 {
			t.Errorf("%+v", r)
		}
		_, err = q.Reserve(one("a"))
		refused(t, err, http.StatusTooManyRequests)
		other := start(bg, q, one("b"))
		release()
		all()
		synctest.Wait()
		first.leave()
		other.leave()
		idle(t, q)
	})
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Queue = 2 })
		bg := context.Background()
		r1, err1 := q.Reserve(one("a"))
		r2, err2 := q.Reserve(one("a"))
		_, err3 := q.Reserve(one("b")) // no place can be given up: all are reserved
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		refused(t, err3, http.StatusServiceUnavailable)
		all := enter(t, q, api.AdmissionRequest{Key: "z", CPUs: 4, Memory: mib}) // a run that need not wait takes no place
		_, err := q.Enter(bg, one("b"))
		refused(t, err, http.StatusServiceUnavailable)
		p := one("a")
		p.Accepted = true
		w1, w2 := start(bg, q, p), start(bg, q, p)
		if w1.done.Load() || w2.done.Load() || q.Load().Reserved != 2 || q.Load().Waiting != 2 {
			t.Fatalf("%+v %+v %+v", w1, w2, q.Load())
		}
		q.Drain()
		q.Drain()
		_, err = q.Reserve(one("c"))
		if r := refused(t, err, http.StatusServiceUnavailable); r.Code != "draining" {
			t.Errorf("%+v", r)
		}
		all()
		synctest.Wait()
		if w1.err != nil || w2.err != nil || !w1.done.Load() || !w2.done.Load() {
			t.Fatal("what was accepted is let in while the server drains")
		}
		r1()
		r2()
		w1.leave()
		w2.leave()
		idle(t, q)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		all := enter(t, q, api.AdmissionRequest{Key: "a", CPUs: 4})
		var waiting []*entering
		for i := range 5 {
			waiting = append(waiting, start(context.Background(), q, one(fmt.Sprint(i%2))))
		}
		q.Drain()
		synctest.Wait()
		for _, w := range waiting {
			if !w.done.Load() {
				t.Fatal("one still waits")
			}
			if r := refused(t, w.err, http.StatusServiceUnavailable); r.Code != "draining" {
				t.Errorf("%+v", r)
			}
		}
		_, err := q.Enter(context.Background(), one("new"))
		refused(t, err, http.StatusServiceUnavailable)
		all()
		idle(t, q)
	})
}

func TestForgetsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		for i := range 5000 {
			a := one(fmt.Sprint("key", i))
			a.Rate, a.Burst = 10, 2
			enter(t, q, a)()
			time.Sleep(10 * time.Millisecond)
		}
		if n := q.Load().Keys; n > 600 {
			t.Errorf("%d keys are remembered", n)
		}
		idle(t, q)
	})
}

func TestRetryAfterFollowsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, func(o *Options) { o.Queue, o.CPUs = 1, 1 })
		for range 40 { // four per second
			leave := enter(t, q, one("a"))
			time.Sleep(250 * time.Millisecond)
			leave()
		}
		if got := q.estimate(20, time.Now()); got < 4500*time.Millisecond || got > 5500*time.Millisecond {
			t.Errorf("20 at 4 per second: %v", got)
		}
		if got := q.estimate(1, time.Now()); got != soonest {
			t.Errorf("%v", got)
		}
		if got := q.estimate(100000, time.Now()); got != latest {
			t.Errorf("%v", got)
		}
		time.Sleep(time.Minute) // and nothing ends
		if got := q.estimate(10, time.Now()); got < 15*time.Second {
			t.Errorf("after a minute in which nothing ended: %v", got)
		}
	})
}

func TestOptions(t *testing.T) {
	m := sandbox.Machine{CPUs: 2, Memory: 8 * sandbox.GiB}
	q, err := New(Options{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	if l := q.Load(); l.CPUBudget != 8 || l.MemoryBudget != 7*sandbox.GiB {
		t.Errorf("%+v", l)
	}
	for _, o := range []Options{
		{}, {Machine: m, Reserve: 9 * sandbox.GiB}, {Machine: m, Overcommit: -1}, {Machine: m, Queue: -1}, {Machine: m, Wait: -1},
		{Machine: sandbox.Machine{Memory: sandbox.GiB}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// During Hold, new runs are refused with the reason; waiting and accepted runs wait on.
// Memory that is in use without a run is not promised, but one run may start in spite of it.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		half := q.budget.memory / 2
		q.Keep(q.budget.memory)
		first, err := q.Enter(t.Context(), api.AdmissionRequest{Key: "a", Memory: half})
		if err != nil {
			t.Fatal(err)
		}
		entered := make(chan func(), 1)
		go func() {
			leave, err := q.Enter(t.Context(), api.AdmissionRequest{Key: "a", Memory: half})
			if err != nil {
				t.Error(err)
			}
			entered <- leave
		}()
		synctest.Wait()
		if len(entered) != 0 {
			t.Error("a run was admitted into memory that is in use")
		}
		q.Keep(0) // control
		synctest.Wait()
		if len(entered) != 1 {
			t.Fatal("the run waits on")
		}
		first()
		(<-entered)()
	})
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := small(t, nil)
		leave, err := q.Enter(t.Context(), api.AdmissionRequest{Key: "a", CPUs: 4})
		if err != nil {
			t.Fatal(err)
		}
		type outcome struct {
			leave func()
			err   error
		}
		enter := func(a api.AdmissionRequest) chan outcome {
			c := make(chan outcome, 1)
			go func() {
				leave, err := q.Enter(t.Context(), a)
				c <- outcome{leave, err}
			}()
			synctest.Wait()
			return c
		}
		waits := enter(api.AdmissionRequest{Key: "b"})
		q.Hold("memory is short")
		leave() // a run ends, and no other is admitted
		_, err = q.Enter(t.Context(), api.AdmissionRequest{Key: "a"})
		var refused *api.Refusal
		if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable || refused.Reason != "memory is short" ||
			refused.RetryAfter <= 0 {
			t.Errorf("%+v", err)
		}
		if _, err := q.Reserve(api.AdmissionRequest{Key: "a"}); !errors.As(err, &refused) {
			t.Errorf("%+v", err)
		}
		accepted := enter(api.AdmissionRequest{Key: "a", Accepted: true})
		synctest.Wait()
		if l := q.Load(); l.Running != 0 || l.Waiting != 2 {
			t.Errorf("%+v", l)
		}
		time.Sleep(11 * time.Second) // longer than one waits
		if o := <-waits; !errors.As(o.err, &refused) || refused.Reason != "memory is short" {
			t.Errorf("%+v", o.err)
		}
		q.Hold("")
		synctest.Wait()
		if o := <-accepted; o.err != nil {
			t.Error(o.err)
		} else {
			o.leave()
		}
		leave, err = q.Enter(t.Context(), api.AdmissionRequest{Key: "a"})
		if err != nil {
			t.Fatal(err)
		}
		leave()
	})
}
