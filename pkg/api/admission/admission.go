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
	// Window is how far a key can be behind others at the most, in seconds of the whole machine.
	Window = 5.0
	// entry is what every run counts for at the least, from the moment it is let in: runs that take no time would be free, and of those that
	// start at one moment all would be the same key's.
	entry = 10 * time.Millisecond
	// aged is how many later comers of other keys, in multiples of Overtake, go before the oldest run of a key until it is the first whatever
	// its key has used: keys that are always new could keep it waiting for ever.
	aged = 64
	// watch is how often those who want to know are told where they stand.
	watch = 100 * time.Millisecond
	// Retry-After is within these.
	soonest, latest = time.Second, time.Minute
	// holdRetry is when another try is worth it while nobody is let in.
	holdRetry = 5 * time.Second
)

// Queue lets runs in. It is an api.Admission and an api.Ready.
type Queue struct {
	o      Options
	budget promise

	mu       sync.Mutex
	promised promise
	running  int
	places   int // taken in the queue: those who wait, and reservations; those who wait for a reserved run are not counted twice
	tenants  map[string]*tenant
	active   map[*tenant]bool // those that have anything here
	sweepAt  int
	seq      uint64
	floor    float64 // the least use of a key that is active; it never falls
	top      float64 // the largest use of a key that was
	finished finishes
	drained  bool
	held     string // why nobody is let in for now; empty: they are
}

var (
	_ api.Admission = (*Queue)(nil)
	_ api.Ready     = (*Queue)(nil)
)

// tenant is one key's state.
type tenant struct {
	key     string
	used    float64   // seconds of the machine, up to at
	at      time.Time //
	share   float64   // of the machine, of its runs that are under way
	running int
	waiting []*ticket // the oldest first
	places  int
	bucket  bucket
}

// ticket is one who waits.
type ticket struct {
	tenant      *tenant
	need        promise
	seq         uint64
	concurrency int
	accepted    bool
	skipped     int           // how often it was overtaken because it did not fit
	passed      int           // how often somebody was let in who had come later
	decided     chan struct{} // closed when it is in or refused
	refused     *api.Refusal
	entered     time.Time
}

// New makes a queue.
func New(o Options) (*Queue, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return &Queue{o: o, budget: promise{o.Memory, int64(o.CPUs * 1000)}, tenants: map[string]*tenant{}, active: map[*tenant]bool{}, sweepAt: 256}, nil
}

// Enter waits until a run may start. Its error is an *api.Refusal, or that of ctx. leave may be called twice.
func (q *Queue) Enter(ctx context.Context, a api.Ask) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, refusal := q.queue(a)
	if refusal != nil {
		return nil, refusal
	}
	select {
	case <-t.decided: // most of the time
	default:
		q.await(ctx, t, a.OnPosition)
		if err := q.withdraw(ctx, t); err != nil {
			return nil, err
		}
	}
	if t.refused != nil {
		return nil, t.refused
	}
	return sync.OnceFunc(func() { q.leave(t) }), nil
}

// queue puts an ask at the end of its key's line, and lets in whoever may.
func (q *Queue) queue(a api.Ask) (*ticket, *api.Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := q.tenant(a.Key, now)
	if refusal := q.admissible(t, a, now); refusal != nil {
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
	q.pump(now)
	if !k.open() || k.accepted {
		q.spend(t, a)
		return k, nil
	}
	if refusal := q.crowded(t, now); refusal != nil {
		q.remove(k)
		q.pump(now)
		return nil, refusal
	}
	q.spend(t, a)
	return k, nil
}

// open says whether nothing has been decided about it; mu is held.
func (k *ticket) open() bool {
	select {
	case <-k.decided:
		return false
	default:
		return true
	}
}

// await returns when something is decided, or ctx ends, or it has waited for long enough.
func (q *Queue) await(ctx context.Context, k *ticket, onPosition func(int)) {
	var patience, tick <-chan time.Time
	if !k.accepted {
		timer := time.NewTimer(q.o.Wait)
		defer timer.Stop()
		patience = timer.C
	}
	said := 0
	if onPosition != nil {
		ticker := time.NewTicker(watch)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		if onPosition != nil {
			if n := q.position(k); n > 0 && n != said {
				said = n
				onPosition(n)
			}
		}
		select {
		case <-k.decided:
			return
		case <-ctx.Done():
			return
		case <-patience:
			return
		case <-tick:
		}
	}
}

// withdraw ends the wait of a ticket for good: either something was decided in the meantime, and that counts unless ctx has ended, or it leaves the line.
func (q *Queue) withdraw(ctx context.Context, k *ticket) error {
	q.mu.Lock()
	open := k.open()
	var refusal *api.Refusal
	now := time.Now()
	if open {
		refusal = q.tired(k, now)
		q.remove(k)
		q.pump(now) // it may have been what others waited for
	}
	q.mu.Unlock()
	switch err := ctx.Err(); {
	case err != nil && !open && k.refused == nil:
		q.leave(k) // let in, and nobody is there
		return err
	case err != nil:
		return err
	case open:
		return refusal
	}
	return nil
}

// leave gives back what a run was promised.
func (q *Queue) leave(k *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := k.tenant
	t.touch(now)
	t.used -= q.budget.share(k.need) * min(now.Sub(k.entered), entry).Seconds() // was paid before
	t.running--
	q.running--
	if t.share -= q.budget.share(k.need); t.running == 0 {
		t.share = 0 // sums of fractions do not come back to zero by themselves
	}
	q.promised.memory -= k.need.memory
	q.promised.milli -= k.need.milli
	q.finished.add(now)
	q.settle(t)
	q.pump(now)
}

// pump lets in whoever may; mu is held.
func (q *Queue) pump(now time.Time) {
	for q.admitOne(now) {
	}
}

// admitOne lets in the first of those who are next that fits. mu is held.
func (q *Queue) admitOne(now time.Time) bool {
	line := q.line(now)
	for i, k := range line {
		if !q.budget.fits(q.promised, k.need) {
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

// line is the oldest of each key that may have one more, in their order. mu is held.
func (q *Queue) line(now time.Time) []*ticket {
	if q.held != "" || q.promised.milli >= q.budget.milli || q.promised.memory >= q.budget.memory {
		return nil // nothing is free: no need to look further
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

// before says which of two keys' oldest is next.
func (q *Queue) before(a, b *ticket) int {
	if old := a.passed >= aged*q.o.Overtake; old != (b.passed >= aged*q.o.Overtake) {
		return map[bool]int{true: -1, false: 1}[old]
	} else if old {
		return cmp.Compare(a.seq, b.seq)
	}
	return cmp.Or(cmp.Compare(a.tenant.used, b.tenant.used), cmp.Compare(a.seq, b.seq))
}

// raise brings every active key's use up to now, and the floor to the least of them. mu is held.
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

// remove takes a ticket out of its line.
func (q *Queue) remove(k *ticket) {
	q.unqueue(k)
	q.settle(k.tenant)
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

// take takes or gives back places in the queue.
func (q *Queue) take(t *tenant, n int) {
	t.places += n
	q.places += n
}

// position is where a ticket stands if nobody else comes: keys take turns. 0 is not at all.
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

// Reserve takes a place in the queue for a run that is to be accepted now and enters later, or says that there is none.
func (q *Queue) Reserve(a api.Ask) (release func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := q.tenant(a.Key, now)
	a.Accepted = false
	if refusal := q.admissible(t, a, now); refusal != nil {
		return nil, refusal
	}
	q.take(t, 1)
	if refusal := q.crowded(t, now); refusal != nil {
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

// Drain refuses everybody who waits, and everybody who comes, but for runs that were accepted: those are for the server to let run or to cancel. It
// may be called twice.
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
	q.pump(time.Now())
}

// Hold lets nobody in until it is called with no reason: those who come are refused, 503 with the reason, those who wait go on waiting, and so do runs that were accepted.
// What is under way goes on.
func (q *Queue) Hold(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held = reason
	q.pump(time.Now())
}

// Load is how full a queue is.
type Load struct {
	Running, Waiting, Reserved int
	Memory, MemoryBudget       sandbox.Size
	CPUs, CPUBudget            float64
	Keys                       int // that are remembered
}

// Load says how full it is, for metrics.
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

// admissible says why an ask can not even queue. mu is held.
func (q *Queue) admissible(t *tenant, a api.Ask, now time.Time) *api.Refusal {
	if a.Accepted { // it was looked at when it was
		return nil
	}
	if q.drained {
		return q.draining()
	}
	if q.held != "" {
		return &api.Refusal{Status: http.StatusServiceUnavailable, Reason: q.held, RetryAfter: holdRetry}
	}
	rate, burst := q.rate(a)
	if wait := t.bucket.wait(now, rate, burst); wait > 0 {
		return &api.Refusal{
			Status: http.StatusTooManyRequests, RetryAfter: max(wait, time.Millisecond),
			Reason: fmt.Sprintf("this key may start %s runs per second, %d at once; try again in %v", number(rate), burst, wait.Round(time.Millisecond)),
		}
	}
	return nil
}

// spend takes a token of the key's rate. mu is held.
func (q *Queue) spend(t *tenant, a api.Ask) {
	if rate, _ := q.rate(a); rate > 0 && !a.Accepted {
		t.bucket.tokens--
	}
}

func (q *Queue) rate(a api.Ask) (rate float64, burst int) {
	if a.Rate > 0 {
		return a.Rate, max(a.Burst, 1)
	}
	return q.o.Rate, max(q.o.Burst, 1)
}

// crowded decides whether a key may keep the place it has just taken: not if it has too many, and not if there are too many in all, unless
// another has more than it and gives one up. mu is held.
func (q *Queue) crowded(t *tenant, now time.Time) *api.Refusal {
	if t.places > q.o.QueuePerKey && q.o.QueuePerKey < q.o.Queue {
		return &api.Refusal{
			Status: http.StatusTooManyRequests, Position: t.places, RetryAfter: q.estimate(t.places, now),
			Reason: fmt.Sprintf("%d runs of this key are waiting, as many as may", t.places-1),
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

// newestOfTheLargest is the ticket that goes first when the queue is full: of those that were not accepted, the newest of the key that has the most.
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
		Reason: fmt.Sprintf("the machine is busy, and %d runs are waiting, as many as may", q.o.Queue),
	}
}

// tired is for one who has waited for long enough.
func (q *Queue) tired(k *ticket, now time.Time) *api.Refusal {
	position := q.positionOf(k)
	if q.held != "" {
		return &api.Refusal{Status: http.StatusServiceUnavailable, Reason: q.held, RetryAfter: holdRetry, Position: position}
	}
	r := &api.Refusal{
		Status: http.StatusServiceUnavailable, Position: position, RetryAfter: q.estimate(position, now),
		Reason: fmt.Sprintf("the machine was busy for %v, and %d runs are still before this one", q.o.Wait, position-1),
	}
	if k.concurrency > 0 && k.tenant.running >= k.concurrency {
		r.Status = http.StatusTooManyRequests
		r.Reason = fmt.Sprintf("%d runs of this key are under way, as many as may, and none has ended for %v", k.tenant.running, q.o.Wait)
	}
	return r
}

func (q *Queue) draining() *api.Refusal {
	return &api.Refusal{Status: http.StatusServiceUnavailable, Code: "draining", RetryAfter: 5 * time.Second, Reason: "the server is about to end"}
}

// estimate is how long it takes until that many have ended, as they did of late, within reason.
func (q *Queue) estimate(position int, now time.Time) time.Duration {
	seconds := float64(max(position, 1)) / q.finished.rate(now)
	return min(max(time.Duration(seconds*float64(time.Second)), soonest), latest)
}
