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

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Hook is what a client asks for: where to send the result, and what to sign it with.
type Hook struct {
	URL    string `json:"url" doc:"Where the result is sent: https, and a public address unless the operator allows another."`
	Secret string `json:"secret,omitempty" doc:"Signs the request (HMAC-SHA256, Standard Webhooks): 16 to 512 bytes, or whsec_ and base64."`
}

// Delivery is a body for a hook. Its ID is sent as webhook-id, and names it on disk: letters, digits, - and _.
type Delivery struct {
	ID    string
	Owner string // whose it is; bounds how many one may have waiting
	Hook  Hook
	Body  []byte // JSON

	large *sandbox.JSON // follows Body, and after follows it; nil: Body is all
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
	}
	if err == nil {
		_, err = w.Write(d.after)
	}
	return err
}

// Outcome is how a delivery ended.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered"
	Gone      Outcome = "gone"     // the receiver said 410
	GivenUp   Outcome = "given_up" // too often, or too long
)

// Options of a Sender. Only Dir must be given.
type Options struct {
	Dir   string   // what is not delivered yet is kept here; it is made, and must be the user's alone
	Allow []string // hosts, addresses and prefixes that may be private or plain http; the first two also with :port

	Attempts int           // default 8
	First    time.Duration // until the second attempt; doubled each time, less a random part up to the half; default 5 s
	Longest  time.Duration // between two attempts; default 15 min
	Timeout  time.Duration // of one attempt, all in all; default 10 s
	Parallel int           // requests at a time; default 8
	PerHost  int           // of them to one host; default 2
	Queue    int           // deliveries that are kept at the most; default 10,000
	PerOwner int           // of them by one owner; default a quarter of Queue
	Disk     int64         // bytes of their bodies; default 1 GiB. An owner may have as much as is left for the others

	RootCAs *x509.CertPool // default the system's
	Agent   string         // the User-Agent; default sandbox-run
	Log     *slog.Logger
	Ended   func(Outcome) // told of every delivery's end
}

// maxBody bounds what is sent: two streams of output as they are kept by default, and the rest of a result.
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

// Sender delivers. New makes one.
type Sender struct {
	o        Options
	policy   *policy
	store    *store
	resolver *net.Resolver // nil: the system's
	client   *http.Client
	stop     context.CancelFunc
	wake     chan struct{}
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	items  map[string]*item
	busy   int
	size   int64          // of all bodies
	hosts  map[string]int // requests that are being made to a host
	owners map[string]*holding
}

// holding is what an owner has here.
type holding struct {
	number int   // of deliveries
	size   int64 // of their bodies
	busy   int   // of them, requests that are being made
}

// item is a delivery that is not done; the rest of it is on disk.
type item struct {
	head head
	host string
	size int64 // of the body
	busy bool
}

// New opens the directory and goes on with what is in it.
func New(o Options) (*Sender, error) {
	o.complete()
	p, err := newPolicy(o.Allow)
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		return nil, errors.New("webhook: there is no directory to keep deliveries in")
	}
	st, err := openStore(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Sender{
		o: o, policy: p, store: st, wake: make(chan struct{}, 1),
		items: map[string]*item{}, hosts: map[string]int{}, owners: map[string]*holding{},
	}
	err = st.load(func(id string, h head, size int64) {
		t, _ := parse(h.URL) // what is wrong with it is said when it is sent
		s.add(id, &item{head: h, host: t.host, size: size})
	})
	if err != nil {
		o.Log.Error("webhook: some deliveries can not be read", "error", err)
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			// Proxy stays nil: a proxy of the environment would do the dialling, and see other networks than we do.
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

// Close ends what is being sent and keeps it for the next time. It may be called twice.
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
	return s.store.root.Close()
}

// Check says what is wrong with a hook, as far as that can be said without asking anybody.
func (s *Sender) Check(h Hook) error {
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

// ErrFull is what Send says when as many deliveries are waiting as may, and ErrNoRoom when it is the body that is too large beside the others.
var (
	ErrFull   = errors.New("webhook: too many deliveries are waiting")
	ErrNoRoom = errors.New("webhook: the deliveries that are waiting are too large")
)

// Send has a body delivered. When it returns nil, the delivery is on disk; sending an id again while it waits changes nothing.
func (s *Sender) Send(d Delivery) error {
	release, err := s.Hold(d)
	if err == nil {
		release()
	}
	return err
}

// Hold is Send in two steps: when it returns, the delivery is on disk, and it is sent once release is called, or by the next New.
func (s *Sender) Hold(d Delivery) (release func(), err error) {
	if !validID(d.ID) {
		return nil, fmt.Errorf("webhook: %.40q can not be an id", d.ID)
	}
	size := d.size()
	if size > maxBody {
		return nil, fmt.Errorf("webhook: a body of %d bytes; the most is %d", size, maxBody)
	}
	if err := s.Check(d.Hook); err != nil {
		return nil, err
	}
	t, err := parse(d.Hook.URL)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	it := &item{head: head{Owner: d.Owner, URL: d.Hook.URL, Secret: d.Hook.Secret, Since: now, Next: now}, host: t.host, size: size, busy: true}
	s.mu.Lock()
	own := holding{}
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
	s.add(d.ID, it)  // busy: nobody sends it yet
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
		s.poke()
	}), nil
}

// Waiting is how many deliveries are not done.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items)
}

// smallBody always has room, so that whoever waits for a run hears of its end: Queue bounds how many of them there are.
const smallBody = 16 << 10

// add puts a delivery on the table, forget takes it off; mu is held, but by New.
func (s *Sender) add(id string, it *item) {
	own := s.owners[it.head.Owner]
	if own == nil {
		own = &holding{}
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

func decrement(m map[string]int, key string) {
	if m[key]--; m[key] <= 0 {
		delete(m, key)
	}
}

func (s *Sender) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop starts what is due, and sleeps until something is.
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
		timer.Reset(s.start(ctx))
	}
}

// start begins what is due and may begin, and says when to look again.
func (s *Sender) start(ctx context.Context) (again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again = time.Hour
	now := time.Now()
	var due []string
	for id, it := range s.items { // in no order, so that nobody is always last
		switch wait := it.head.Next.Sub(now); {
		case it.busy:
		case wait > 0:
			again = min(again, wait)
		default:
			due = append(due, id)
		}
	}
	for s.busy < s.o.Parallel && ctx.Err() == nil { // whoever ends pokes
		// Owners take turns: many deliveries of one, to receivers that take their time, must not hold up another's.
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
		s.begin(ctx, due[next])
	}
	return again
}

func (s *Sender) busyOf(it *item) int { return s.owners[it.head.Owner].busy }

// begin has an attempt made; mu is held.
func (s *Sender) begin(ctx context.Context, id string) {
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
		decrement(s.hosts, it.host)
		s.mu.Unlock()
		s.poke()
	})
}

// attempt makes one request, and writes down what became of it.
func (s *Sender) attempt(ctx context.Context, id string, it *item) {
	h := it.head // busy is ours, so nobody else writes it
	status, after, err := s.post(ctx, id, h)
	if ctx.Err() != nil && !(err == nil && delivered(status)) {
		return // we were told to stop, which is not the receiver's fault
	}
	h.Attempts++
	log := s.o.Log.With("webhook", id, "host", it.host, "attempt", h.Attempts, "status", status)
	switch {
	case err == nil && delivered(status):
		s.end(id, it, Delivered)
		log.Info("webhook delivered")
	case status == http.StatusGone:
		s.end(id, it, Gone)
		log.Info("webhook: the receiver wants no more")
	case h.Attempts >= s.o.Attempts:
		s.end(id, it, GivenUp)
		log.Error("webhook given up", "error", err)
	default:
		wait := max(s.backoff(h.Attempts), min(after, s.o.Longest))
		h.Next = time.Now().Add(wait)
		log.Warn("webhook failed", "error", err, "again_in", wait)
		s.mu.Lock()
		it.head = h
		s.mu.Unlock()
		if err := s.store.putHead(id, h); err != nil {
			log.Error("webhook: the attempt can not be written down", "error", err)
		}
	}
}

func delivered(status int) bool { return status/100 == 2 }

// backoff doubles from First to Longest, and takes up to a half of it away, so that many that failed together do not come back together.
func (s *Sender) backoff(attempts int) time.Duration {
	d := s.o.First
	for range attempts - 1 {
		if d = min(2*d, s.o.Longest); d == s.o.Longest {
			break
		}
	}
	return d - time.Duration(rand.Int64N(int64(d/2)+1))
}

func (s *Sender) end(id string, it *item, how Outcome) {
	if err := s.store.remove(id); err != nil {
		s.o.Log.Error("webhook: what is done can not be removed, and will be sent again", "webhook", id, "error", err)
	}
	s.mu.Lock()
	s.forget(id, it)
	s.mu.Unlock()
	s.o.Ended(how)
}

// post makes one request. after is how long the receiver wants to be left alone.
func (s *Sender) post(ctx context.Context, id string, h head) (status int, after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	// Once more: the operator may have changed his mind since it was accepted.
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
			err = e.Err // without the address, whose path may be a secret: this goes to the log
		}
		return 0, 0, err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // what it says is not for us
	if seconds, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	}
	return res.StatusCode, after, nil
}

// dial connects to a host of an address that passed check; each address it stands for is looked at when it is its turn.
func (s *Sender) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: s.o.Timeout, Resolver: s.resolver, Control: s.policy.control(s.policy.named(host, port))}
	return d.DialContext(ctx, network, address)
}
