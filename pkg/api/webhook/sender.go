package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Delivery is a body for a hook. ID is sent as webhook-id and is part of file names: letters, digits, - and _.
type Delivery struct {
	ID    string
	Owner string // bounds apply per owner
	Hook  *wire.Webhook
	Body  []byte // JSON

	large *sandbox.JSON // sent between Body and after; nil for none
	after []byte
}

func (d *Delivery) size() int64 {
	n := int64(len(d.Body) + len(d.after))
	if d.large != nil {
		n += d.large.Size()
	}
	return n
}

func (d *Delivery) writeTo(w io.Writer) error {
	_, err := w.Write(d.Body)
	if err == nil && d.large != nil {
		_, err = d.large.WriteTo(w)
		_, failed := w.Write(d.after)
		err = errors.Join(err, failed)
	}
	return err
}

// Outcome is the end of a delivery.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered"
	Gone      Outcome = "gone"     // the receiver said 410
	GivenUp   Outcome = "given_up" // attempts used up
)

// Options configures a Sender. Dir is required; other zero fields mean the default.
type Options struct {
	Dir   string   // for undelivered messages; made when missing; must be private to the user
	Allow []string // hosts, addresses and prefixes that may be private or plain http; the first two also with :port

	Attempts int           // default 8
	First    time.Duration // before the second attempt; doubled each time, minus a random part of up to half; default 5 s
	Longest  time.Duration // between two attempts; default 15 min
	Timeout  time.Duration // of one whole attempt; default 10 s
	Parallel int           // requests at a time; default 8
	PerHost  int           // of them to one host; default 2
	Queue    int           // most stored deliveries; default 10,000
	PerOwner int           // most of one owner; default a quarter of Queue
	Disk     int64         // bytes of all bodies; default 1 GiB. An owner may have as much as is left for the others

	RootCAs *x509.CertPool // default the system's
	Agent   string         // the User-Agent; default sandbox-run
	Log     *slog.Logger
	Ended   func(Outcome) // called at the end of every delivery
}

// maxBody bounds a body: two streams of output in their default size, and the rest of a result.
const maxBody = 64 << 20

func (o *Options) complete() {
	o.Attempts = cmp.Or(o.Attempts, 8)
	o.First = cmp.Or(o.First, 5*time.Second)
	o.Longest = cmp.Or(o.Longest, 15*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.Parallel = cmp.Or(o.Parallel, 8)
	o.PerHost = cmp.Or(o.PerHost, 2)
	o.Queue = cmp.Or(o.Queue, 10_000)
	o.PerOwner = cmp.Or(o.PerOwner, max(1, o.Queue/4))
	o.Disk = cmp.Or(o.Disk, 1<<30)
	o.Agent = cmp.Or(o.Agent, "sandbox-run")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Ended == nil {
		o.Ended = func(Outcome) {}
	}
}

// Sender delivers webhooks. Make one with New, and close it. It is safe for concurrent use.
type Sender struct {
	o        Options
	policy   *policy
	store    *store
	resolver *net.Resolver // nil for the system's
	client   *http.Client
	stop     context.CancelFunc
	wake     chan struct{}
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	items  map[string]*item
	busy   int
	size   int64          // of all bodies
	hosts  map[string]int // requests under way per host
	owners map[string]*ownerTotals
}

// ownerTotals are the deliveries of one owner.
type ownerTotals struct {
	number int   // of deliveries
	size   int64 // of their bodies
	busy   int   // requests under way
}

// item is an undelivered message; its body is on disk.
type item struct {
	head head
	host string
	size int64 // of the body
	busy bool
}

// New opens the directory and continues with the deliveries in it. The caller closes the Sender.
func New(o Options) (*Sender, error) {
	o.complete()
	p, err := newPolicy(o.Allow)
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		return nil, errors.New("webhook: no directory for deliveries; set Options.Dir")
	}
	st, err := openStore(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Sender{
		o: o, policy: p, store: st, wake: make(chan struct{}, 1),
		items: map[string]*item{}, hosts: map[string]int{}, owners: map[string]*ownerTotals{},
	}
	err = st.load(func(id string, h head, size int64) {
		t, _ := parse(h.URL) // the attempt reports an invalid URL
		s.add(id, &item{head: h, host: t.host, size: size})
	})
	if err != nil {
		o.Log.Error("webhook deliveries not read", "error", err)
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			// Proxy stays nil: a proxy would dial in our place and reach other networks than the policy checks.
			DialContext: s.dial, TLSClientConfig: &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
			TLSHandshakeTimeout: o.Timeout, ResponseHeaderTimeout: o.Timeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.running.Go(func() { s.loop(ctx) })
	return s, nil
}

// Close cancels requests under way, waits for them, and keeps their deliveries on disk. It may be called twice.
func (s *Sender) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
	if was {
		return nil
	}
	s.client.CloseIdleConnections()
	return s.store.dir.Close()
}

// Check refuses an invalid hook. It does not resolve the host.
func (s *Sender) Check(h *wire.Webhook) error {
	if _, err := s.policy.check(h.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if h.Secret != "" {
		if _, err := secretKey(h.Secret); err != nil {
			return err
		}
	}
	return nil
}

// ErrFull means that too many deliveries are stored, ErrNoRoom that the body is too large beside the stored ones.
var (
	ErrFull   = errors.New("webhook: too many deliveries are stored")
	ErrNoRoom = errors.New("webhook: the stored deliveries are too large")
)

// Send stores a delivery and sends it in the background. When it returns nil, the delivery is on disk. Sending a stored id again changes
// nothing.
func (s *Sender) Send(d Delivery) error {
	release, err := s.Prepare(d)
	if err == nil {
		release()
	}
	return err
}

// Prepare is Send in two steps: when it returns, the delivery is on disk, and it is sent once release is called, or by the next New.
func (s *Sender) Prepare(d Delivery) (release func(), err error) {
	if !validID(d.ID) {
		return nil, fmt.Errorf("webhook: id %.40q has other characters than letters, digits, - and _", d.ID)
	}
	size := d.size()
	if size > maxBody {
		return nil, fmt.Errorf("webhook: body of %d bytes; at most %d are sent", size, maxBody)
	}
	if err := s.Check(d.Hook); err != nil {
		return nil, err
	}
	t, _ := parse(d.Hook.URL) // checked
	now := time.Now()
	it := &item{
		head: head{Owner: d.Owner, URL: d.Hook.URL, Secret: d.Hook.Secret, Since: now, Next: now}, host: t.host, size: size, busy: true,
	}
	s.mu.Lock()
	own := ownerTotals{}
	if h := s.owners[d.Owner]; h != nil {
		own = *h
	}
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, errors.New("webhook: closed")
	case s.items[d.ID] != nil:
		s.mu.Unlock()
		return func() {}, nil
	case len(s.items) >= s.o.Queue, own.number >= s.o.PerOwner:
		s.mu.Unlock()
		return nil, ErrFull
	case it.size > smallBody && own.size+it.size > s.o.Disk-s.size-it.size:
		s.mu.Unlock()
		return nil, ErrNoRoom
	}
	s.add(d.ID, it)  // busy: not sent yet
	s.running.Add(1) // the store stays open
	s.mu.Unlock()
	defer s.running.Done()

	if err := s.store.put(d.ID, it.head, d.writeTo); err != nil {
		s.mu.Lock()
		s.forget(d.ID, it)
		s.mu.Unlock()
		return nil, err
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		it.busy = false
		s.mu.Unlock()
		s.wakeLoop()
	}), nil
}

// Waiting returns the number of undelivered messages.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items)
}

// smallBody always has room, so that receivers learn the end of every run: Queue bounds their number.
const smallBody = 16 << 10

// add adds a delivery to the table, forget removes it; mu is held, except in New.
func (s *Sender) add(id string, it *item) {
	own := s.owners[it.head.Owner]
	if own == nil {
		own = &ownerTotals{}
		s.owners[it.head.Owner] = own
	}
	s.items[id] = it
	s.size += it.size
	own.size += it.size
	own.number++
}

func (s *Sender) forget(id string, it *item) {
	own := s.owners[it.head.Owner]
	delete(s.items, id)
	s.size -= it.size
	own.size -= it.size
	if own.number--; own.number == 0 {
		delete(s.owners, it.head.Owner)
	}
}

func (s *Sender) wakeLoop() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop starts due attempts, and sleeps until the next one is due.
func (s *Sender) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		timer.Reset(s.startDue(ctx))
	}
}

// startDue starts the due attempts that the bounds allow, and returns when the next one is due.
func (s *Sender) startDue(ctx context.Context) (again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again = time.Hour
	now := time.Now()
	var due []string
	for id, it := range s.items { // map order: no delivery is always last
		switch wait := it.head.Next.Sub(now); {
		case it.busy:
		case wait > 0:
			again = min(again, wait)
		default:
			due = append(due, id)
		}
	}
	for s.busy < s.o.Parallel && ctx.Err() == nil { // an attempt that ends wakes the loop
		// Owners take turns: many deliveries of one owner to slow receivers must not delay those of another.
		next := -1
		for i, id := range due {
			it := s.items[id]
			if !it.busy && s.hosts[it.host] < s.o.PerHost && (next < 0 || s.busyOf(it) < s.busyOf(s.items[due[next]])) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		s.startAttempt(ctx, due[next])
	}
	return again
}

func (s *Sender) busyOf(it *item) int { return s.owners[it.head.Owner].busy }

// startAttempt starts one attempt in the background; mu is held.
func (s *Sender) startAttempt(ctx context.Context, id string) {
	it := s.items[id]
	own := s.owners[it.head.Owner]
	it.busy = true
	s.busy++
	own.busy++
	s.hosts[it.host]++
	s.running.Go(func() {
		s.attempt(ctx, id, it)
		s.mu.Lock()
		it.busy = false
		s.busy--
		own.busy--
		if s.hosts[it.host]--; s.hosts[it.host] == 0 {
			delete(s.hosts, it.host)
		}
		s.mu.Unlock()
		s.wakeLoop()
	})
}

// attempt makes one request and records its outcome.
func (s *Sender) attempt(ctx context.Context, id string, it *item) {
	h := it.head // busy is set, so no other goroutine writes it
	status, after, err := s.post(ctx, id, h)
	if ctx.Err() != nil && !(err == nil && delivered(status)) {
		return // Close ended the request; it does not count as an attempt
	}
	h.Attempts++
	log := s.o.Log.With("webhook", id, "host", it.host, "attempt", h.Attempts, "status", status)
	switch {
	case err == nil && delivered(status):
		s.finish(id, it, Delivered)
		log.Info("webhook delivered")
	case status == http.StatusGone:
		s.finish(id, it, Gone)
		log.Info("webhook refused with 410")
	case h.Attempts >= s.o.Attempts:
		s.finish(id, it, GivenUp)
		log.Error("webhook given up", "error", err)
	default:
		wait := max(s.backoff(h.Attempts), min(after, s.o.Longest))
		h.Next = time.Now().Add(wait)
		log.Warn("webhook failed", "error", err, "retry_in", wait)
		s.mu.Lock()
		it.head = h
		s.mu.Unlock()
		if err := s.store.putHead(id, h); err != nil {
			log.Error("webhook attempt not recorded", "error", err)
		}
	}
}

func delivered(status int) bool { return status/100 == 2 }

// backoff doubles from First to Longest and subtracts a random part of up to half, so that deliveries that failed together spread out.
func (s *Sender) backoff(attempts int) time.Duration {
	d := s.o.First
	for range attempts - 1 {
		if d = min(2*d, s.o.Longest); d == s.o.Longest {
			break
		}
	}
	return d - time.Duration(rand.Int64N(int64(d/2)+1))
}

func (s *Sender) finish(id string, it *item, how Outcome) {
	if err := s.store.remove(id); err != nil {
		s.o.Log.Error("webhook not removed, will be sent again", "webhook", id, "error", err)
	}
	s.mu.Lock()
	s.forget(id, it)
	s.mu.Unlock()
	s.o.Ended(how)
}

// post makes one request. after is the receiver's Retry-After.
func (s *Sender) post(ctx context.Context, id string, h head) (status int, after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	// Check again: the operator may have changed the list since the hook was accepted.
	t, err := s.policy.check(h.URL)
	if err != nil {
		return 0, 0, err
	}
	body, size, err := s.store.body(id)
	if err != nil {
		return 0, 0, err
	}
	defer body.Close()
	again := func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(body, 0, size)), nil }
	content, _ := again()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url.String(), content)
	if err != nil {
		return 0, 0, err
	}
	req.ContentLength, req.GetBody = size, again
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.o.Agent)
	req.Header.Set(HeaderID, id)
	req.Header.Set(HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	if h.Secret != "" {
		signature, err := sign(h.Secret, id, now, io.NewSectionReader(body, 0, size))
		if err != nil {
			return 0, 0, err
		}
		req.Header.Set(HeaderSignature, signature)
	}
	res, err := s.client.Do(req)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err // without the URL, whose path may be secret: the error is logged
		}
		return 0, 0, err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // the content is not used
	if seconds, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	}
	return res.StatusCode, after, nil
}

// dial connects to a host that passed check; control checks each address that the host resolves to.
func (s *Sender) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: s.o.Timeout, Resolver: s.resolver, Control: s.policy.control(s.policy.named(host, port))}
	return d.DialContext(ctx, network, address)
}
