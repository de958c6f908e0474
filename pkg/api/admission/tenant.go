package admission

import (
	"strconv"
	"time"
)

// touch brings the use of a key up to now.
func (t *tenant) touch(now time.Time) {
	if d := now.Sub(t.at); d > 0 {
		t.used += t.share * d.Seconds()
		t.at = now
	}
}

// tenant finds a key's state, or begins it. mu is held.
func (q *Queue) tenant(key string, now time.Time) *tenant {
	if t := q.tenants[key]; t != nil {
		t.touch(now)
		return t
	}
	if len(q.tenants) >= q.sweepAt {
		q.sweep(now)
	}
	t := &tenant{key: key, at: now}
	q.tenants[key] = t
	return t
}

// activate has a key begin where the others are: what it did not use while it was away is not saved up. When nobody is active all debts are
// forgiven: a machine that was idle has harmed nobody. mu is held.
func (q *Queue) activate(t *tenant) {
	if q.active[t] {
		return
	}
	q.raise(t.at)
	if len(q.active) == 0 {
		q.floor = max(q.floor, q.top)
	}
	t.used = max(t.used, q.floor)
	q.active[t] = true
}

// settle is for a key that may have become idle. mu is held.
func (q *Queue) settle(t *tenant) {
	if t.running == 0 && len(t.waiting) == 0 {
		q.top = max(q.top, t.used)
		delete(q.active, t)
	}
}

// sweep forgets keys that nobody would treat otherwise if they were new. mu is held.
func (q *Queue) sweep(now time.Time) {
	q.raise(now)
	for key, t := range q.tenants {
		if !q.active[t] && t.places == 0 && t.used <= q.floor && t.bucket.full(now) {
			delete(q.tenants, key)
		}
	}
	q.sweepAt = max(256, 2*len(q.tenants))
}

// bucket is the rate of one key: tokens come at the rate, up to the burst, and every run takes one.
type bucket struct {
	tokens float64
	at     time.Time // when tokens were counted; zero: it is new, and full
	rate   float64
	burst  int
}

// wait brings the bucket up to now and says how long it takes until there is a token; 0 is now.
func (b *bucket) wait(now time.Time, rate float64, burst int) time.Duration {
	if rate <= 0 {
		return 0
	}
	if b.at.IsZero() {
		b.tokens = float64(burst)
	} else if d := now.Sub(b.at); d > 0 {
		b.tokens += d.Seconds() * rate
	}
	b.at, b.rate, b.burst = now, rate, burst
	if b.tokens = min(b.tokens, float64(burst)); b.tokens > 1-1e-9 {
		return 0
	}
	return time.Duration((1 - b.tokens) / rate * float64(time.Second))
}

// full says whether it is as a new one would be.
func (b *bucket) full(now time.Time) bool {
	return b.at.IsZero() || b.tokens+now.Sub(b.at).Seconds()*b.rate >= float64(b.burst)
}

// finishes are when the last runs ended.
type finishes struct {
	times [32]time.Time
	n     int
}

func (f *finishes) add(now time.Time) {
	f.times[f.n%len(f.times)] = now
	f.n++
}

// rate is how many end per second. Until two have, it is one: nobody knows better.
func (f *finishes) rate(now time.Time) float64 {
	if f.n < 2 {
		return 1
	}
	known := min(f.n, len(f.times))
	oldest := f.times[(f.n-known)%len(f.times)]
	return float64(known) / max(now.Sub(oldest).Seconds(), 0.001)
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 4, 64) }
