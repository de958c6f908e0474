package admission

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// Window bounds how far a key's use may exceed that of others, in seconds of the whole machine.
	Window = 5.0
	// entry is the minimum use of a run, charged when it is admitted: otherwise runs that take no time would be free, and all runs that start
	// at one moment would be of one key.
	entry = 10 * time.Millisecond
	// aged is how many runs of other keys, in multiples of Overtake, may be admitted before an older run until it goes first, whatever its key
	// has used: otherwise a stream of new keys could delay it forever.
	aged = 64
	// positionInterval is how often waiting runs are told their position.
	positionInterval = 100 * time.Millisecond
	// soonest and latest bound Retry-After.
	soonest, latest = time.Second, time.Minute
	// holdRetry is the Retry-After while Hold is in effect.
	holdRetry = 5 * time.Second
)

// Queue admits runs. It implements api.Admission and api.Ready. Its methods are safe for concurrent use.
type Queue struct {
	o      Options
	budget promise

	mu       sync.Mutex
	promised promise
	running  int
	places   int // taken in the queue by waiting runs and reservations; a reserved run that waits counts once
	tenants  map[string]*tenant
	active   map[*tenant]bool // with waiting or running runs
	pruneAt  int              // number of tenants at which idle ones are removed
	seq      uint64
	floor    float64 // the least use of an active key; it never falls
	top      float64 // the largest use of a key that was active
	finished finishes
	drained  bool
	kept     sandbox.Size // memory that is in use without a run
	hold     string       // reason for which no run is admitted; empty: runs are admitted
}

var (
	_ api.Admission = (*Queue)(nil)
	_ api.Ready     = (*Queue)(nil)
)

// tenant is one key's state.
type tenant struct {
	key     string
	used    float64 // seconds of the machine, up to at
	at      time.Time
	share   float64 // of the machine, of its runs that are under way
	running int
	waiting []*ticket // the oldest first
	places  int
	bucket  bucket
}

// ticket is a run that waits.
type ticket struct {
	tenant      *tenant
	need        promise
	seq         uint64
	concurrency int
	accepted    bool
	skipped     int           // how often smaller runs overtook it because it did not fit
	passed      int           // how often a later run of another key was admitted before it
	decided     chan struct{} // closed when it is admitted or refused
	refused     *api.Refusal
	entered     time.Time
}

// New makes a queue, which needs no closing. It refuses options that are negative or leave no memory.
func New(o Options) (*Queue, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return &Queue{
		o: o, budget: promise{o.Memory, int64(o.CPUs * 1000)}, tenants: map[string]*tenant{}, active: map[*tenant]bool{}, pruneAt: 256,
	}, nil
}

// Enter blocks until a run may start. The error is an *api.Refusal, or that of ctx. The caller calls leave when the run has ended; a second
// call does nothing.
func (q *Queue) Enter(ctx context.Context, a api.AdmissionRequest) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, refusal := q.enqueue(a)
	if refusal != nil {
		return nil, refusal
	}
	select {
	case <-t.decided: // the usual case
	default:
		q.waitForDecision(ctx, t, a.OnPosition)
		if err := q.withdraw(ctx, t); err != nil {
			return nil, err
		}
	}
	if t.refused != nil {
		return nil, t.refused
	}
	return sync.OnceFunc(func() { q.leave(t) }), nil
}

// enqueue adds a run to the queue of its key, and admits the runs that fit.
func (q *Queue) enqueue(a api.AdmissionRequest) (*ticket, *api.Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := q.tenant(a.Key, now)
	if refusal := q.checkEntry(t, a, now); refusal != nil {
		return nil, refusal
	}
	q.activate(t)
	q.seq++
	k := &ticket{
		tenant: t, need: q.budget.of(a.Memory, a.CPUs), seq: q.seq, concurrency: cmp.Or(a.Concurrency, q.o.Concurrency), accepted: a.Accepted,
		decided: make(chan struct{}),
	}
	t.waiting = append(t.waiting, k)
	if !k.accepted {
		q.take(t, 1)
	}
	q.admitAll(now)
	if !k.open() || k.accepted {
		q.spend(t, a)
		return k, nil
	}
	if refusal := q.checkPlaces(t, now); refusal != nil {
		q.remove(k)
		q.admitAll(now)
		return nil, refusal
	}
	q.spend(t, a)
	return k, nil
}

// open reports whether the ticket is neither admitted nor refused; mu is held.
func (k *ticket) open() bool {
	select {
	case <-k.decided:
		return false
	default:
		return true
	}
}

// waitForDecision blocks until the ticket is decided, ctx ends, or the queue's wait time is over.
func (q *Queue) waitForDecision(ctx context.Context, k *ticket, onPosition func(int)) {
	var timeout, tick <-chan time.Time
	if !k.accepted {
		timer := time.NewTimer(q.o.Wait)
		defer timer.Stop()
		timeout = timer.C
	}
	reported := 0
	if onPosition != nil {
		ticker := time.NewTicker(positionInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		if onPosition != nil {
			if n := q.position(k); n > 0 && n != reported {
				reported = n
				onPosition(n)
			}
		}
		select {
		case <-k.decided:
			return
		case <-ctx.Done():
			return
		case <-timeout:
			return
		case <-tick:
		}
	}
}

// withdraw ends the wait of a ticket. A decision made meanwhile counts unless ctx has ended; otherwise the ticket leaves the queue.
func (q *Queue) withdraw(ctx context.Context, k *ticket) error {
	q.mu.Lock()
	open := k.open()
	var refusal *api.Refusal
	now := time.Now()
	if open {
		refusal = q.waitTimedOut(k, now)
		q.remove(k)
		q.admitAll(now) // others may have waited for this one
	}
	q.mu.Unlock()
	switch err := ctx.Err(); {
	case err != nil && !open && k.refused == nil:
		q.leave(k) // admitted, but the client is gone
		return err
	case err != nil:
		return err
	case open:
		return refusal
	}
	return nil
}

// leave returns the promised resources of a run.
func (q *Queue) leave(k *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := k.tenant
	t.touch(now)
	t.used -= q.budget.share(k.need) * min(now.Sub(k.entered), entry).Seconds() // charged at admission
	t.running--
	q.running--
	if t.share -= q.budget.share(k.need); t.running == 0 {
		t.share = 0 // rounding leaves a rest
	}
	q.promised.memory -= k.need.memory
	q.promised.milli -= k.need.milli
	q.finished.add(now)
	q.deactivateIdle(t)
	q.admitAll(now)
}

// admitAll admits all runs that may start now; mu is held.
func (q *Queue) admitAll(now time.Time) {
	for q.admitOne(now) {
	}
}

// admitOne admits the first run in the line that fits. mu is held.
func (q *Queue) admitOne(now time.Time) bool {
	line := q.line(now)
	for i, k := range line {
		if !q.fits(k.need) {
			if k.skipped >= q.o.Overtake {
				return false
			}
			continue
		}
		for j, other := range line {
			if j < i {
				other.skipped++
			}
			if other.seq < k.seq {
				other.passed++
			}
		}
		q.admit(k, now)
		return true
	}
	return false
}

// fits reports whether a run can start. What is kept leaves room for one run. mu is held.
func (q *Queue) fits(need promise) bool {
	promised := q.promised
	if q.running > 0 {
		promised.memory += q.kept
	}
	return q.budget.fits(promised, need)
}

// line returns the oldest run of each key below its concurrency, in the order of admission. mu is held.
func (q *Queue) line(now time.Time) []*ticket {
	if q.hold != "" || q.promised.milli >= q.budget.milli || q.promised.memory >= q.budget.memory {
		return nil // nothing is free
	}
	q.raise(now)
	var line []*ticket
	for t := range q.active {
		if len(t.waiting) == 0 {
			continue
		}
		if k := t.waiting[0]; k.concurrency == 0 || t.running < k.concurrency {
			t.used = min(t.used, q.floor+Window)
			line = append(line, k)
		}
	}
	slices.SortFunc(line, q.before)
	return line
}

// before compares two runs by the order of admission.
func (q *Queue) before(a, b *ticket) int {
	if old := a.passed >= aged*q.o.Overtake; old != (b.passed >= aged*q.o.Overtake) {
		return map[bool]int{true: -1, false: 1}[old]
	} else if old {
		return cmp.Compare(a.seq, b.seq)
	}
	return cmp.Or(cmp.Compare(a.tenant.used, b.tenant.used), cmp.Compare(a.seq, b.seq))
}

// raise updates every active key's use to now, and the floor to the least of them. mu is held.
func (q *Queue) raise(now time.Time) {
	lowest := math.Inf(1)
	for t := range q.active {
		t.touch(now)
		lowest = min(lowest, t.used)
	}
	if !math.IsInf(lowest, 1) {
		q.floor = max(q.floor, lowest)
	}
}

func (q *Queue) admit(k *ticket, now time.Time) {
	t := k.tenant
	q.unqueue(k)
	t.running++
	q.running++
	t.share += q.budget.share(k.need)
	t.used += q.budget.share(k.need) * entry.Seconds()
	k.entered = now
	q.promised.memory += k.need.memory
	q.promised.milli += k.need.milli
	close(k.decided)
}

func (q *Queue) refuse(k *ticket, r *api.Refusal) {
	k.refused = r
	q.remove(k)
	close(k.decided)
}

// remove takes a ticket out of its queue.
func (q *Queue) remove(k *ticket) {
	q.unqueue(k)
	q.deactivateIdle(k.tenant)
}

func (q *Queue) unqueue(k *ticket) {
	t := k.tenant
	if i := slices.Index(t.waiting, k); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		if !k.accepted {
			q.take(t, -1)
		}
	}
}

// take adds n places to a key; a negative n returns them.
func (q *Queue) take(t *tenant, n int) {
	t.places += n
	q.places += n
}

// position returns the place of a ticket if no other run arrives: keys take turns. 0 means that it does not wait.
func (q *Queue) position(k *ticket) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.positionOf(k)
}

func (q *Queue) positionOf(k *ticket) int {
	i := slices.Index(k.tenant.waiting, k)
	if i < 0 {
		return 0
	}
	position := i + 1
	for t := range q.active {
		if t == k.tenant || len(t.waiting) == 0 {
			continue
		}
		turns := i
		if q.before(t.waiting[0], k.tenant.waiting[0]) < 0 {
			turns++
		}
		position += min(turns, len(t.waiting))
	}
	return position
}

// Reserve takes a place in the queue for a run that is accepted now and enters later. It does not block; the error is an *api.Refusal. The
// caller calls release once the run has entered.
func (q *Queue) Reserve(a api.AdmissionRequest) (release func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := q.tenant(a.Key, now)
	a.Accepted = false
	if refusal := q.checkEntry(t, a, now); refusal != nil {
		return nil, refusal
	}
	q.take(t, 1)
	if refusal := q.checkPlaces(t, now); refusal != nil {
		q.take(t, -1)
		return nil, refusal
	}
	q.spend(t, a)
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.take(t, -1)
	}), nil
}

// Drain refuses all waiting and all new runs, except those that were accepted: the server lets those run or cancels them. It may be called
// twice.
func (q *Queue) Drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drained = true
	for _, t := range q.tenants {
		for _, k := range slices.Clone(t.waiting) {
			if !k.accepted {
				q.refuse(k, q.draining())
			}
		}
	}
	q.admitAll(time.Now())
}

// Hold stops admission until it is called with an empty reason. New runs are refused with 503 and the reason; waiting and accepted runs
// wait on; running ones continue.
func (q *Queue) Hold(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold = reason
	q.admitAll(time.Now())
}

// Keep sets how much memory is in use without a run, such as by idle sessions. It is not promised to runs; one run at a time may start in
// spite of it.
func (q *Queue) Keep(memory sandbox.Size) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if less := memory < q.kept; less {
		defer q.admitAll(time.Now())
	}
	q.kept = memory
}

// Load is the state of a queue.
type Load struct {
	Running, Waiting, Reserved int
	Memory, MemoryBudget       sandbox.Size
	CPUs, CPUBudget            float64
	Keys                       int // with state in the queue
}

// Load returns the state of the queue, for metrics.
func (q *Queue) Load() Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := Load{
		Running: q.running, Reserved: q.places, Keys: len(q.tenants), Memory: q.promised.memory, MemoryBudget: q.budget.memory,
		CPUs: float64(q.promised.milli) / 1000, CPUBudget: float64(q.budget.milli) / 1000,
	}
	for t := range q.active {
		l.Waiting += len(t.waiting)
		for _, k := range t.waiting {
			if !k.accepted {
				l.Reserved--
			}
		}
	}
	return l
}

// checkEntry refuses a run that may not even wait. mu is held.
func (q *Queue) checkEntry(t *tenant, a api.AdmissionRequest, now time.Time) *api.Refusal {
	if a.Accepted { // checked by Reserve
		return nil
	}
	if q.drained {
		return q.draining()
	}
	if q.hold != "" {
		return &api.Refusal{Status: http.StatusServiceUnavailable, Reason: q.hold, RetryAfter: holdRetry}
	}
	rate, burst := q.rate(a)
	if wait := t.bucket.wait(now, rate, burst); wait > 0 {
		return &api.Refusal{
			Status: http.StatusTooManyRequests, RetryAfter: max(wait, time.Millisecond),
			Reason: fmt.Sprintf("this key may start %s runs per second, at most %d at once; try again in %v",
				number(rate), burst, wait.Round(time.Millisecond)),
		}
	}
	return nil
}

// spend takes a token from the key's rate limit. mu is held.
func (q *Queue) spend(t *tenant, a api.AdmissionRequest) {
	if rate, _ := q.rate(a); rate > 0 && !a.Accepted {
		t.bucket.tokens--
	}
}

// rate returns the rate limit of a key. Without a limit of its own, its burst is the number of runs that it may have at the same time, or
// the runs of one second if that is more: a rate alone does not keep a key from its concurrency.
func (q *Queue) rate(a api.AdmissionRequest) (rate float64, burst int) {
	rate, burst = q.o.Rate, q.o.Burst
	if a.Rate > 0 {
		rate, burst = a.Rate, a.Burst
	}
	if burst == 0 {
		burst = max(cmp.Or(a.Concurrency, q.o.Concurrency), int(min(rate, maxBurst)), 1)
	}
	return rate, burst
}

// maxBurst bounds a burst that is derived from a rate.
const maxBurst = 1 << 20

// checkPlaces refuses the place that a key has just taken if the key has too many, or if all keys have too many and no other key has more
// than it. If another key has more, that key's newest run is refused instead. mu is held.
func (q *Queue) checkPlaces(t *tenant, now time.Time) *api.Refusal {
	if t.places > q.o.QueuePerKey && q.o.QueuePerKey < q.o.Queue {
		return &api.Refusal{
			Status: http.StatusTooManyRequests, Position: t.places, RetryAfter: q.estimate(t.places, now),
			Reason: fmt.Sprintf("%d runs of this key are waiting, which is its limit", t.places-1),
		}
	}
	if q.places <= q.o.Queue {
		return nil
	}
	if k := q.newestOfTheLargest(); k != nil && k.tenant.places > t.places {
		q.refuse(k, q.full(now))
		return nil
	}
	return q.full(now)
}

// newestOfTheLargest returns the run to refuse when the queue is full: the newest one not yet accepted of the key with the most places.
func (q *Queue) newestOfTheLargest() (newest *ticket) {
	for t := range q.active {
		if newest != nil && t.places < newest.tenant.places {
			continue
		}
		for _, k := range slices.Backward(t.waiting) {
			if k.accepted {
				continue
			}
			if newest == nil || t.places > newest.tenant.places || k.seq > newest.seq {
				newest = k
			}
			break
		}
	}
	return newest
}

// The refusals. mu is held.

func (q *Queue) full(now time.Time) *api.Refusal {
	return &api.Refusal{
		Status: http.StatusServiceUnavailable, Position: q.places, RetryAfter: q.estimate(q.places, now),
		Reason: fmt.Sprintf("the machine is busy, and %d runs are waiting, which is the limit", q.o.Queue),
	}
}

// waitTimedOut returns the refusal of a run whose wait time is over.
func (q *Queue) waitTimedOut(k *ticket, now time.Time) *api.Refusal {
	position := q.positionOf(k)
	if q.hold != "" {
		return &api.Refusal{Status: http.StatusServiceUnavailable, Reason: q.hold, RetryAfter: holdRetry, Position: position}
	}
	r := &api.Refusal{
		Status: http.StatusServiceUnavailable, Position: position, RetryAfter: q.estimate(position, now),
		Reason: fmt.Sprintf("the machine was busy for %v, and %d runs are still ahead of this one", q.o.Wait, position-1),
	}
	if k.concurrency > 0 && k.tenant.running >= k.concurrency {
		r.Status = http.StatusTooManyRequests
		r.Reason = fmt.Sprintf("%d runs of this key are under way, which is its limit, and none has ended for %v", k.tenant.running, q.o.Wait)
	}
	return r
}

func (q *Queue) draining() *api.Refusal {
	return &api.Refusal{
		Status: http.StatusServiceUnavailable, Code: "draining", RetryAfter: 5 * time.Second, Reason: "the server is shutting down",
	}
}

// estimate returns how long that many runs take to end at the recent rate, between soonest and latest.
func (q *Queue) estimate(position int, now time.Time) time.Duration {
	seconds := float64(max(position, 1)) / q.finished.rate(now)
	return min(max(time.Duration(seconds*float64(time.Second)), soonest), latest)
}
