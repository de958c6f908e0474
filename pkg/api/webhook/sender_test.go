package webhook

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

const secret = "a secret of some length"

// receiver is a server with TLS that records requests and answers with the handler's statuses.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	got  []*http.Request
	body []string
	hits chan int
}

func receive(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	rc := &receiver{hits: make(chan int, 1000)}
	rc.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rc.mu.Lock()
		rc.got = append(rc.got, r)
		rc.body = append(rc.body, string(body))
		n := len(rc.got)
		rc.mu.Unlock()
		rc.hits <- n
		answer(n, w, r)
	}))
	rc.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	t.Cleanup(rc.Close)
	return rc
}

func (rc *receiver) count() int {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return len(rc.got)
}

func (rc *receiver) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(rc.Certificate())
	return p
}

// options allows that receiver and has short timeouts.
func (rc *receiver) options(dir string) Options {
	return Options{
		Dir: dir, Allow: []string{rc.Listener.Addr().String()}, RootCAs: rc.pool(), First: time.Millisecond, Longest: 20 * time.Millisecond,
		Timeout: 20 * time.Second,
	}
}

func newSender(t *testing.T, o Options) (*Sender, chan Outcome) {
	t.Helper()
	ended := make(chan Outcome, 1000)
	o.Ended = func(how Outcome) { ended <- how }
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, ended
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing for a minute")
		panic("unreachable")
	}
}

func ok(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestDelivered(t *testing.T) {
	rc := receive(t, ok)
	dir := filepath.Join(t.TempDir(), "hooks")
	s, ended := newSender(t, rc.options(dir))
	body := `{"id":"run-1"}`
	if err := s.Send(Delivery{ID: "run-1", Hook: &wire.Webhook{URL: rc.URL + "/path?q=1", Secret: secret}, Body: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	if how := await(t, ended); how != Delivered {
		t.Fatal(how)
	}
	r := rc.got[0]
	if r.Method != "POST" || r.URL.String() != "/path?q=1" || r.Header.Get("Content-Type") != "application/json" || rc.body[0] != body {
		t.Fatalf("%s %s %v %q", r.Method, r.URL, r.Header, rc.body[0])
	}
	if err := Verify(r.Header, []byte(rc.body[0]), secret, time.Now()); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"body":   Verify(r.Header, []byte(rc.body[0]+" "), secret, time.Now()),
		"secret": Verify(r.Header, []byte(rc.body[0]), secret+"x", time.Now()),
		"old":    Verify(r.Header, []byte(rc.body[0]), secret, time.Now().Add(6*time.Minute)),
		"future": Verify(r.Header, []byte(rc.body[0]), secret, time.Now().Add(-6*time.Minute)),
		"none":   Verify(http.Header{HeaderTimestamp: r.Header[HeaderTimestamp]}, []byte(rc.body[0]), secret, time.Now()),
		"empty":  Verify(http.Header{}, nil, secret, time.Now()),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := files(t, dir); len(left) > 0 || s.Waiting() != 0 {
		t.Errorf("left: %v", left)
	}
}

// The example of the Standard Webhooks specification.
func TestSignFollowsTheStandard(t *testing.T) {
	got, err := Sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0),
		[]byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; err != nil || got != want {
		t.Fatalf("%s, %v; want %s", got, err, want)
	}
	for _, bad := range []string{"short", "whsec_***", "whsec_" + base64.StdEncoding.EncodeToString([]byte("short")),
		strings.Repeat("x", 513)} {
		if _, err := Sign(bad, "x", time.Now(), nil); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func TestRetried(t *testing.T) {
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 4 {
			w.WriteHeader([]int{500, 302, 404}[n-1])
		}
	})
	s, ended := newSender(t, rc.options(t.TempDir()+"/h"))
	if err := s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: rc.URL}, Body: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if how := await(t, ended); how != Delivered || rc.count() != 4 {
		t.Fatalf("%s after %d attempts", how, rc.count())
	}
	for _, r := range rc.got {
		if r.Header.Get(HeaderID) != "x" || r.Header.Get(HeaderSignature) != "" {
			t.Errorf("%v", r.Header)
		}
	}
}

func TestEnds(t *testing.T) {
	for _, c := range []struct {
		status, attempts int
		want             Outcome
	}{{410, 1, Gone}, {500, 3, GivenUp}, {200, 1, Delivered}} {
		rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) })
		o := rc.options(t.TempDir() + "/h")
		o.Attempts = 3
		s, ended := newSender(t, o)
		if err := s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: rc.URL}, Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		if how := await(t, ended); how != c.want || rc.count() != c.attempts {
			t.Errorf("%d: %s after %d attempts", c.status, how, rc.count())
		}
		if left := files(t, o.Dir); len(left) > 0 {
			t.Errorf("%d: left %v", c.status, left)
		}
	}
}

// A redirect is not followed, wherever it leads.
func TestNoRedirect(t *testing.T) {
	var reached atomic.Bool
	other := receive(t, func(int, http.ResponseWriter, *http.Request) { reached.Store(true) })
	rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	o := rc.options(t.TempDir() + "/h")
	o.Allow = append(o.Allow, other.Listener.Addr().String()) // it would be allowed
	o.RootCAs.AddCert(other.Certificate())
	o.Attempts = 2
	s, ended := newSender(t, o)
	must(t, s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: rc.URL}, Body: []byte("{}")}))
	if how := await(t, ended); how != GivenUp || reached.Load() {
		t.Fatalf("%s, reached %v", how, reached.Load())
	}
	must(t, s.Send(Delivery{ID: "y", Hook: &wire.Webhook{URL: other.URL}, Body: []byte("{}")})) // the control
	if how := await(t, ended); how != Delivered || !reached.Load() {
		t.Fatalf("%s, reached %v", how, reached.Load())
	}
}

func TestNoProxyOfTheEnvironment(t *testing.T) {
	proxy := receive(t, ok)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	rc := receive(t, ok)
	s, ended := newSender(t, rc.options(t.TempDir()+"/h"))
	must(t, s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: rc.URL}, Body: []byte("{}")}))
	if how := await(t, ended); how != Delivered || proxy.count() > 0 {
		t.Fatalf("%s, %d by the proxy", how, proxy.count())
	}
	if tr := s.client.Transport.(*http.Transport); tr.Proxy != nil {
		t.Error("a proxy") // loopback is never proxied by the environment's, so the request alone would not show it
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names answers each DNS query with the next address of the list, and repeats the last.
func names(t *testing.T, answers ...[4]byte) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		asked := 0
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			q := m.Questions[0]
			reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				a := answers[min(asked, len(answers)-1)]
				asked++
				reply.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
					Body: &dnsmessage.AResource{A: a}}}
			}
			if out, err := reply.Pack(); err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// N4: a public name that resolves to a private address is refused when it is dialled, whatever it resolved to before.
func TestRebinding(t *testing.T) {
	rc := receive(t, ok)
	_, port, err := net.SplitHostPort(rc.Listener.Addr().String())
	must(t, err)
	for name, c := range map[string]struct {
		allow []string
		want  Outcome
	}{
		"refused":           {nil, GivenUp},
		"allowed":           {[]string{"example.com"}, Delivered}, // the control: the very same, and the certificate is for that name
		"allowed with port": {[]string{"example.com:" + port}, Delivered},
		"other port":        {[]string{"example.com:1"}, GivenUp},
	} {
		t.Run(name, func(t *testing.T) {
			o := rc.options(t.TempDir() + "/h")
			o.Allow, o.Attempts = c.allow, 2
			var log strings.Builder
			var mu sync.Mutex
			o.Log = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(p)
			}), nil))
			before := rc.count()
			s, ended := newSender(t, o)
			s.resolver = names(t, [4]byte{127, 0, 0, 1})
			must(t, s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: "https://example.com:" + port + "/token-in-the-path", Secret: secret},
				Body: []byte("{}")}))
			if how := await(t, ended); how != c.want {
				t.Errorf("%s, want %s", how, c.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if reached := rc.count() > before; reached != (c.want == Delivered) {
				t.Errorf("reached: %v", reached)
			}
			if c.want == GivenUp && !strings.Contains(log.String(), "127.0.0.1: not a public address") {
				t.Errorf("the log does not say why: %s", log.String())
			}
			if strings.Contains(log.String(), "token-in-the-path") || strings.Contains(log.String(), secret) {
				t.Errorf("the log tells secrets: %s", log.String())
			}
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A restart continues the deliveries with their attempts, and removes incomplete files of a crash.
func TestRestart(t *testing.T) {
	var up atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(503)
		}
	})
	dir := t.TempDir() + "/h"
	o := rc.options(dir)
	o.First, o.Longest, o.Attempts = time.Hour, time.Hour, 2
	s, _ := newSender(t, o)
	for i := range 5 {
		must(t, s.Send(Delivery{ID: fmt.Sprint("run-", i), Owner: "k", Hook: &wire.Webhook{URL: rc.URL, Secret: secret},
			Body: fmt.Appendf(nil, `{"n":%d}`, i)}))
	}
	for range 5 {
		await(t, rc.hits)
	}
	settled := time.Now().Add(time.Minute)
	for { // until every attempt is written down
		n := 0
		for i := range 5 {
			if h, err := s.store.head(fmt.Sprint("run-", i)); err == nil {
				n += h.Attempts
			}
		}
		if n == 5 {
			break
		}
		if time.Now().After(settled) {
			t.Fatalf("%d attempts are written down", n)
		}
		time.Sleep(time.Millisecond)
	}
	must(t, s.Close())
	must(t, s.Close())
	if err := s.Send(Delivery{ID: "late", Hook: &wire.Webhook{URL: rc.URL}}); err == nil {
		t.Error("sent after Close")
	}
	for _, name := range []string{"run-9.body", "run-8.json.new", "run-0.body.new"} { // as a crash leaves them
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dir, "run-7.json"), []byte("{"), 0o600)) // as after a disk error: it stays and has no effect

	o.First, o.Longest = time.Millisecond, time.Millisecond
	for i := range 5 { // an hour later
		h, err := s2head(dir, fmt.Sprint("run-", i))
		must(t, err)
		h.Next = time.Now()
		st, err := openStore(dir)
		must(t, err)
		must(t, st.putHead(fmt.Sprint("run-", i), h))
		must(t, st.dir.Close())
	}
	up.Store(true)
	_, ended := newSender(t, o)
	for range 5 {
		if how := await(t, ended); how != Delivered {
			t.Fatal(how)
		}
	}
	if got := files(t, dir); len(got) != 1 || got[0] != "run-7.json" {
		t.Errorf("left: %v", got)
	}
	seen := map[string]int{}
	for i, r := range rc.got {
		must(t, Verify(r.Header, []byte(rc.body[i]), secret, time.Now()))
		seen[r.Header.Get(HeaderID)+rc.body[i]]++
	}
	for i := range 5 {
		if n := seen[fmt.Sprintf(`run-%d{"n":%d}`, i, i)]; n != 2 {
			t.Errorf("run-%d was sent %d times", i, n)
		}
	}
}

func s2head(dir, id string) (head, error) {
	st, err := openStore(dir)
	if err != nil {
		return head{}, err
	}
	defer st.dir.Close()
	return st.head(id)
}

// A receiver that never answers, or without end, costs its timeout and no memory.
func TestHostileReceivers(t *testing.T) {
	var sent atomic.Int64
	release := make(chan struct{})
	rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/endless":
			block := make([]byte, 1<<20)
			for range 10_000 {
				n, err := w.Write(block)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		case "/never":
			select {
			case <-release:
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler) // a return would be an answer, and in time if it crosses the goodbye
		case "/header":
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		case "/later":
			w.Header().Set("Retry-After", "99999999999999999999")
			w.WriteHeader(429)
		}
	})
	t.Cleanup(func() { close(release) })
	for path, want := range map[string]Outcome{"/endless": Delivered, "/never": GivenUp, "/header": GivenUp, "/later": GivenUp} {
		o := rc.options(t.TempDir() + "/h")
		o.Attempts = 2
		if path == "/never" {
			o.Timeout = 200 * time.Millisecond
		}
		s, ended := newSender(t, o)
		must(t, s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: rc.URL + path}, Body: []byte("{}")}))
		if how := await(t, ended); how != want {
			t.Errorf("%s: %s", path, how)
		}
		must(t, s.Close())
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes of an answer went over", n)
	}
}

func TestBounds(t *testing.T) {
	release := make(chan struct{})
	var now, most atomic.Int32
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		now.Add(-1)
	})
	o := rc.options(t.TempDir() + "/h")
	o.Queue, o.PerOwner, o.PerHost = 10, 6, 3
	s, ended := newSender(t, o)
	send := func(id, owner string) error {
		return s.Send(Delivery{ID: id, Owner: owner, Hook: &wire.Webhook{URL: rc.URL}, Body: []byte("{}")})
	}
	for i := range 6 {
		must(t, send(fmt.Sprint("a", i), "a"))
	}
	if err := send("a6", "a"); !errors.Is(err, ErrFull) {
		t.Errorf("a seventh of one owner: %v", err)
	}
	must(t, send("a0", "a")) // it is there already
	for i := range 4 {
		must(t, send(fmt.Sprint("b", i), "b"))
	}
	if err := send("b4", "b"); !errors.Is(err, ErrFull) {
		t.Errorf("an eleventh: %v", err)
	}
	for range 3 {
		await(t, rc.hits)
	}
	close(release)
	for range 10 {
		if how := await(t, ended); how != Delivered {
			t.Error(how)
		}
	}
	if most.Load() > 3 || rc.count() != 10 {
		t.Errorf("%d at a time, %d in all", most.Load(), rc.count())
	}
	must(t, send("a6", "a"))
	await(t, ended)
	for _, bad := range []string{"", "..", "a/b", "a.b", strings.Repeat("x", 200), "ü"} {
		if err := send(bad, "a"); err == nil {
			t.Errorf("id %q was taken", bad)
		}
	}
	if err := s.Send(Delivery{ID: "x", Hook: &wire.Webhook{URL: "https://127.0.0.2/"}}); !errors.Is(err, errPrivate) {
		t.Errorf("a private address: %v", err)
	}
	if err := s.Check(&wire.Webhook{URL: "https://example.org", Secret: "short"}); err == nil {
		t.Error("a short secret")
	}
}

func TestDirMustBePrivate(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	if s, err := New(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		s.Close()
		t.Fatalf("%v", err)
	}
	must(t, os.Chmod(dir, 0o700))
	s, err := New(Options{Dir: dir})
	must(t, err)
	must(t, s.Close())
}

func TestBackoff(t *testing.T) {
	s := &Sender{o: Options{First: time.Second, Longest: time.Minute}}
	for attempts, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute,
		100: time.Minute} {
		least, most := time.Hour, time.Duration(0)
		for range 200 {
			d := s.backoff(attempts)
			least, most = min(least, d), max(most, d)
		}
		if least < want/2 || most > want || most-least < want/4 {
			t.Errorf("after %d attempts: %v to %v; want within %v to %v, spread", attempts, least, most, want/2, want)
		}
	}
}
