package idempotency

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/batch"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is an executor that counts its calls; "slow" waits for release.
type counting struct {
	n       atomic.Int32
	release chan struct{}
}

func (e *counting) play(ctx context.Context, req executor.Request) (*executor.Result, error) {
	n := e.n.Add(1)
	switch req.Code {
	case "slow":
		select {
		case <-e.release:
		case <-ctx.Done():
			return apitest.Result(sandbox.VerdictCancelled, ""), nil
		}
	case "wrong":
		return nil, sandbox.Invalid("code", "is not code")
	case "large":
		return apitest.Result(sandbox.VerdictOK, strings.Repeat("x", 1<<20)), nil
	}
	if req.OnEvent != nil {
		req.OnEvent(sandbox.Event{Seq: 1, Time: time.Now(), Kind: sandbox.EventStdout, Data: fmt.Append(nil, n)})
	}
	return apitest.Result(sandbox.VerdictOK, fmt.Sprint(n)), nil
}

func serve(t *testing.T, o Options, dir string) (*apitest.Client, *counting, *AnswerStore) {
	t.Helper()
	e := &counting{release: make(chan struct{})}
	k := New(o)
	c := apitest.New(t, api.Options{
		Executor: apitest.Fake(e.play), Middleware: []func(http.Handler) http.Handler{k.Middleware}, Auth: apitest.Tokens{"a": {}, "b": {}},
		Dir: dir,
	}, func(s *api.Server) {
		k.Attach(s)
		batch.Mount(s, batch.Options{})
	})
	c.Token = "a"
	return c, e, k
}

const header = wire.HeaderIdempotencyKey

func TestOnce(t *testing.T) {
	for path, body := range map[string]string{
		wire.PathRun: `{"code":"x"}`, wire.PathRuns: `{"code":"x"}`, wire.PathBatch: `{"runs":[{"code":"x"},{"code":"y"}]}`,
	} {
		t.Run(path, func(t *testing.T) {
			c, e, _ := serve(t, Options{}, "")
			status := map[string]int{wire.PathRuns: 202}[path]
			if status == 0 {
				status = 200
			}
			first, h := c.Ask(status, path, body, header, "key-1")
			if h.Get(HeaderReplayed) != "" {
				t.Error("the first is said to be a repetition")
			}
			all := int32(strings.Count(body, "code"))
			apitest.Eventually(t, "it ran", func() bool { return e.n.Load() == all })
			second, h2 := c.Ask(status, path, body, header, `"key-1"`) // in quotes it is the same
			if string(first) != string(second) || h2.Get(HeaderReplayed) != "true" || h2.Get("Content-Type") != h.Get("Content-Type") ||
				h2.Get(wire.HeaderRunID) != h.Get(wire.HeaderRunID) {
				t.Errorf("%s %v\n%s %v", first, h, second, h2)
			}
			if e.n.Load() != all {
				t.Error("it was done again")
			}
			// Another body.
			p := c.Problem(422, path, strings.Replace(body, `"x"`, `"z"`, 1), header, "key-1")
			if p.Errors[0].Field != header {
				t.Errorf("%+v", p)
			}
			// Another key, and another owner: other requests.
			c.Ask(status, path, body, header, "key-2")
			other := *c
			other.Token = "b"
			if b, h := other.Ask(status, path, body, header, "key-1"); h.Get(HeaderReplayed) != "" || string(b) == string(first) {
				t.Error("one owner got another's answer")
			}
			// Without a key every request runs.
			if _, h := c.Ask(status, path, body); h.Get(HeaderReplayed) != "" {
				t.Error("replayed without a key")
			}
		})
	}
}

func TestStreamsAreReplayed(t *testing.T) {
	c, e, _ := serve(t, Options{}, "")
	first, h := c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "k", "Accept", wire.TypeNDJSON)
	second, h2 := c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "k", "Accept", wire.TypeNDJSON)
	if string(first) != string(second) || h2.Get("Content-Type") != wire.TypeNDJSON || h.Get("Content-Type") != wire.TypeNDJSON ||
		e.n.Load() != 1 || !strings.Contains(string(first), `"stdout"`) {
		t.Errorf("%s\n%s", first, second)
	}
	c.Problem(422, wire.PathRun, `{"code":"x"}`, header, "k") // another form is another request
}

// A repeated request waits while the first is under way.
func TestConcurrent(t *testing.T) {
	c, e, k := serve(t, Options{Waiting: 3}, "")
	var answers [4]string
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			b, _ := c.Ask(200, wire.PathRun, `{"code":"slow"}`, header, "k")
			answers[i] = string(b)
		})
	}
	apitest.Eventually(t, "three wait", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		e := k.entries[id{"a", wire.PathRun, "k"}]
		return e != nil && e.waiting == 3
	})
	if p := c.Problem(409, wire.PathRun, `{"code":"slow"}`, header, "k"); p.RetryAfter == 0 {
		t.Errorf("%+v", p)
	}
	close(e.release)
	wg.Wait()
	for _, a := range answers {
		if a == "" || a != answers[0] {
			t.Errorf("%q", answers)
		}
	}
	if e.n.Load() != 1 {
		t.Errorf("it was done %d times", e.n.Load())
	}
}

// A refusal, an error and an answer to a client that left are not kept; one of the waiting requests takes over.
func TestNotKept(t *testing.T) {
	c, e, k := serve(t, Options{}, "")
	for range 2 {
		if _, h := c.Ask(422, wire.PathRun, `{"code":"wrong"}`, header, "k1"); h.Get(HeaderReplayed) != "" {
			t.Error("a mistake was kept")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		res, err := c.Post(ctx, wire.PathRun, `{"code":"slow"}`, header, "k2")
		if err == nil {
			res.Body.Close()
		}
	}()
	apitest.Eventually(t, "it runs", func() bool { return e.n.Load() == 3 })
	done := make(chan string)
	go func() {
		b, _ := c.Ask(200, wire.PathRun, `{"code":"slow"}`, header, "k2")
		done <- string(b)
	}()
	apitest.Eventually(t, "the second waits", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		e := k.entries[id{"a", wire.PathRun, "k2"}]
		return e != nil && e.waiting == 1
	})
	cancel()
	apitest.Eventually(t, "the second is the first now", func() bool { return e.n.Load() == 4 })
	close(e.release)
	if b := <-done; !strings.Contains(b, `"verdict":"ok"`) {
		t.Errorf("%s", b)
	}
}

func TestKeys(t *testing.T) {
	c, _, _ := serve(t, Options{}, "")
	for _, key := range []string{"", `""`, strings.Repeat("x", 256), "a b", "ü", `a"b`, `a\b`} {
		if p := c.Problem(400, wire.PathRun, `{"code":"x"}`, header, key); p.Errors[0].Field != header {
			t.Errorf("%q: %+v", key, p)
		}
	}
	c.Problem(400, wire.PathRun, `{"code":"x"}`, header, "a", header, "b")
	c.Ask(200, wire.PathRun, `{"code":"x"}`, header, strings.Repeat("x", 255))
	// The body is still validated.
	c.Problem(415, wire.PathRun, `{"code":"x"}`, header, "k", "Content-Encoding", "gzip")
	c.Problem(400, wire.PathRun, `{`, header, "k")
}

// A client that closes its connection after the last byte of a large answer has received it.
func TestLargeAndGone(t *testing.T) {
	for sent, keep := range map[int]bool{20: true, 15: false} {
		rec := &recorder{ResponseWriter: httptest.NewRecorder(), most: 10}
		rec.Header().Set("Content-Length", "20")
		for range sent / 5 {
			_, _ = rec.Write([]byte("12345"))
		}
		if rec.keep(true) != keep || !rec.keep(false) {
			t.Errorf("%d of 20 bytes sent: kept %v", sent, !keep)
		}
	}
}

func TestBounds(t *testing.T) {
	c, e, k := serve(t, Options{Keys: 8, PerOwner: 5, Answer: 10 * sandbox.KiB, For: time.Hour}, "")
	c.Ask(200, wire.PathRun, `{"code":"large"}`, header, "large")
	if p := c.Problem(409, wire.PathRun, `{"code":"large"}`, header, "large"); !strings.Contains(p.Detail, "too large") {
		t.Errorf("%+v", p)
	}
	for i := range 20 {
		c.Ask(200, wire.PathRun, `{"code":"x"}`, header, fmt.Sprint("k", i))
	}
	kept := func(n int) func() bool { // an answer is kept just after it was sent
		return func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			return len(k.entries) == n && k.owners["a"].entries == n && k.done.Len() == n
		}
	}
	apitest.Eventually(t, "five answers are kept", kept(5))
	before := e.n.Load()
	c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "k19")
	if e.n.Load() != before {
		t.Error("the newest is forgotten")
	}
	// A request under way is not removed for a new one.
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { c.Ask(200, wire.PathRun, `{"code":"slow"}`, header, fmt.Sprint("s", i)) })
	}
	apitest.Eventually(t, "five run", func() bool { return e.n.Load() == before+5 })
	if p := c.Problem(429, wire.PathRun, `{"code":"x"}`, header, "new"); p.RetryAfter == 0 {
		t.Errorf("%+v", p)
	}
	close(e.release)
	wg.Wait()
	apitest.Eventually(t, "all have ended", kept(5))
	c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "new")
	apitest.Eventually(t, "it is kept", kept(5))
	// Time and memory.
	k.mu.Lock()
	k.prune(time.Now().Add(2 * time.Hour))
	if len(k.entries) != 0 || k.size != 0 || len(k.owners) != 0 || k.done.Len() != 0 {
		t.Errorf("%d entries, %d bytes, %v", len(k.entries), k.size, k.owners)
	}
	k.o.Memory = 3000
	k.mu.Unlock()
	for i := range 10 {
		c.Ask(200, wire.PathRun, `{"code":"x"}`, header, fmt.Sprint("m", i))
	}
	apitest.Eventually(t, "little is kept", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.size <= 3000 && k.size > 0 && k.done.Len() == len(k.entries)
	})
}

// One owner's answers evict its own, not another's, by number and by size.
func TestFair(t *testing.T) {
	for name, o := range map[string]Options{
		"number": {Keys: 8, PerOwner: 8}, "size": {Memory: 4000, OfOwner: 4000}, "size of one": {Memory: 1 << 20, OfOwner: 3000},
	} {
		t.Run(name, func(t *testing.T) {
			c, e, k := serve(t, o, "")
			c.Token = "b"
			c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "mine")
			c.Token = "a"
			for i := range 20 {
				c.Ask(200, wire.PathRun, `{"code":"x"}`, header, fmt.Sprint("k", i))
			}
			before := e.n.Load()
			c.Token = "b"
			c.Ask(200, wire.PathRun, `{"code":"x"}`, header, "mine")
			if e.n.Load() != before {
				t.Error("another's many answers have pushed it out")
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if a := k.owners["a"]; a == nil || a.entries == 20 || a.entries == 0 {
				t.Errorf("of the other's there are %+v", a) // otherwise nothing was pushed out at all
			}
		})
	}
}

// An asynchronous run is found by its key after a restart.
func TestRestart(t *testing.T) {
	dir := t.TempDir() + "/state"
	e := &counting{}
	open := func() (*api.Server, *AnswerStore) {
		k := New(Options{})
		s, err := api.New(api.Options{
			Executor: apitest.Fake(e.play), Middleware: []func(http.Handler) http.Handler{k.Middleware}, Auth: apitest.Tokens{"a": {}, "b": {}},
			Dir: dir,
		})
		apitest.Must(t, err)
		k.Attach(s)
		return s, k
	}
	s, _ := open()
	c := apitest.Serve(t, s)
	c.Token = "a"
	b, _ := c.Ask(202, wire.PathRuns, `{"code":"x"}`, header, "k")
	first := apitest.Decode[wire.RunInfo](t, b)
	apitest.Eventually(t, "it is done", func() bool { return c.Info(first.ID).State.Over() })
	apitest.Must(t, s.Close())

	s, _ = open()
	c = apitest.Serve(t, s)
	c.Token = "a"
	b, h := c.Ask(202, wire.PathRuns, `{"code":"x"}`, header, "k")
	if again := apitest.Decode[wire.RunInfo](t, b); again.ID != first.ID || h.Get(HeaderReplayed) != "true" ||
		h.Get("Location") != wire.PathRuns+"/"+first.ID || e.n.Load() != 1 {
		t.Errorf("%s %v, %d runs", b, h, e.n.Load())
	}
	c.Problem(422, wire.PathRuns, `{"code":"y"}`, header, "k")
	other := *c
	other.Token = "b"
	b, _ = other.Ask(202, wire.PathRuns, `{"code":"x"}`, header, "k")
	if apitest.Decode[wire.RunInfo](t, b).ID == first.ID {
		t.Error("one owner got another's run")
	}
	r, err := http.NewRequest(http.MethodDelete, "http://server"+wire.PathRuns+"/"+first.ID, nil)
	apitest.Must(t, err)
	r.Header.Set("Authorization", "Bearer a")
	res, err := c.Do(r)
	apitest.Must(t, err)
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if b, _ = c.Ask(202, wire.PathRuns, `{"code":"x"}`, header, "k"); apitest.Decode[wire.RunInfo](t, b).ID == first.ID {
		t.Error("a run that is forgotten is given again")
	}
}
