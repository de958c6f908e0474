package admission

import (
	"strconv"
	"time"
)

// touch updates the use of a key to now.
func (t *tenant) touch(now time.Time) {
	if d := now.Sub(t.at); d > 0 {
		t.used += t.share * d.Seconds()
		t.at = now
	}
}

// tenant returns a key's state, and makes it if needed. mu is held.
func (q *Queue) tenant(key string, now time.Time) *tenant {
	if t := q.tenants[key]; t != nil {
		t.touch(now)
		return t
	}
	if len(q.tenants) >= q.pruneAt {
		q.pruneTenants(now)
	}
	t := &tenant{key: key, at: now}
	q.tenants[key] = t
	return t
}

// activate raises the use of a key that returns to that of the others, so that unused shares are not saved up. When no key is active, all
// excess is forgotten, because it delays no other key. mu is held.
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

// deactivateIdle marks a key without runs as inactive. mu is held.
func (q *Queue) deactivateIdle(t *tenant) {
	if t.running == 0 && len(t.waiting) == 0 {
		q.top = max(q.top, t.used)
		delete(q.active, t)
	}
}

// pruneTenants removes keys whose state is that of a new key. mu is held.
func (q *Queue) pruneTenants(now time.Time) {
	q.raise(now)
	for key, t := range q.tenants {
		if !q.active[t] && t.places == 0 && t.used <= q.floor && t.bucket.full(now) {
			delete(q.tenants, key)
		}
	}
	q.pruneAt = max(256, 2*len(q.tenants))
}

// bucket is the rate limit of one key: tokens arrive at the rate, up to the burst, and every run takes one.
type bucket struct {
	tokens float64
	at     time.Time // when tokens were counted; zero: new, and full
	rate   float64
	burst  int
}

// wait updates the bucket to now and returns the time until the next token; 0 means now.
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

// full reports whether the bucket is in the state of a new one.
func (b *bucket) full(now time.Time) bool {
	return b.at.IsZero() || b.tokens+now.Sub(b.at).Seconds()*b.rate >= float64(b.burst)
}

// finishes are the times at which the last runs ended.
type finishes struct {
	times [32]time.Time
	n     int
}

func (f *finishes) add(now time.Time) {
	f.times[f.n%len(f.times)] = now
	f.n++
}

// rate returns how many runs end per second; 1 until two have ended.
func (f *finishes) rate(now time.Time) float64 {
	if f.n < 2 {
		return 1
	}
	known := min(f.n, len(f.times))
	oldest := f.times[(f.n-known)%len(f.times)]
	return float64(known) / max(now.Sub(oldest).Seconds(), 0.001)
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 4, 64) }
