package webhook_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const secret = "a secret of some length"

// told is a message that a receiver got.
type told struct {
	ID   string
	Type string       `json:"type"`
	Data wire.RunInfo `json:"data"`
}

// receiver keeps what is signed with the secret, and answers 503 while it is down.
func receiver(t *testing.T) (url string, got chan told, down *atomic.Bool) {
	t.Helper()
	got, down = make(chan told, 10), new(atomic.Bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if err := webhook.Verify(r.Header, b, secret, time.Now()); err != nil {
			t.Error(err)
		}
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		m := apitest.Decode[told](t, b)
		m.ID = r.Header.Get(webhook.HeaderID)
		got <- m
	}))
	t.Cleanup(server.Close)
	return server.URL, got, down
}

func body(code, url string) string {
	b, _ := json.Marshal(map[string]any{"code": code, "language": "shell", "webhook": map[string]string{"url": url, "secret": secret}})
	return string(b)
}

func next(t *testing.T, got <-chan told) told {
	t.Helper()
	select {
	case m := <-got:
		return m
	case <-time.After(apitest.Timeout):
		t.Fatal("no webhook arrived")
		panic("unreachable")
	}
}

func played(_ context.Context, req executor.Request) (*executor.Result, error) {
	if req.Code == "wrong" {
		return nil, sandbox.Invalid("code", "is not code")
	}
	return apitest.Result(sandbox.VerdictOK, req.Code), nil
}

func TestRunsAreReported(t *testing.T) {
	url, got, _ := receiver(t)
	s, err := webhook.New(webhook.Options{Dir: t.TempDir() + "/hooks", Allow: []string{strings.TrimPrefix(url, "http://")},
		First: 5 * time.Millisecond})
	apitest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	dir := t.TempDir() + "/state"
	c := apitest.New(t, api.Options{Executor: apitest.Fake(played), Webhooks: s, Dir: dir}, nil)
	b, _ := c.Ask(202, wire.PathRuns, body("hello", url))
	if strings.Contains(string(b), secret) {
		t.Error("the answer tells the secret")
	}
	info := apitest.Decode[wire.RunInfo](t, b)
	m := next(t, got)
	r, err := wire.DecodeResult(m.Data.Result)
	apitest.Must(t, err)
	if m.ID != info.ID || m.Data.ID != info.ID || m.Type != webhook.TypeRun || m.Data.State != wire.StateDone || m.Data.Verdict != "ok" ||
		string(r.Stdout.Bytes()) != "hello" {
		t.Errorf("%+v", m)
	}
	// The receiver can get the run by its id.
	if i := c.Info(info.ID); i.State != wire.StateDone {
		t.Errorf("told of a run that is %s", i.State)
	}
	// The secret is not kept after the end.
	_ = os.CopyFS(t.TempDir(), os.DirFS(dir)) // it can be read
	entries, err := os.ReadDir(dir + "/runs")
	apitest.Must(t, err)
	for _, e := range entries {
		if data, _ := os.ReadFile(dir + "/runs/" + e.Name()); strings.Contains(string(data), secret) {
			t.Errorf("%s has the secret", e.Name())
		}
	}
	// A run without a result is reported, too.
	c.Ask(202, wire.PathRuns, body("wrong", url))
	if m := next(t, got); m.Data.Error == nil || m.Data.Error.Code != wire.CodeInvalid || m.Data.Result != nil {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"https://127.0.0.1:1/", "http://169.254.169.254/latest", "https://0x7f.1/", "ftp://x", ""} {
		if p := c.Problem(422, wire.PathRuns, body("x", bad)); p.Errors[0].Field != "webhook" {
			t.Errorf("%s: %+v", bad, p)
		}
	}
	c.Problem(422, wire.PathRun, body("x", url)) // there the client itself waits
	off := apitest.New(t, api.Options{Executor: apitest.Fake(played)}, nil)
	off.Problem(501, wire.PathRuns, body("x", url))
}

// The next server sends the webhooks that the last one left, and reports lost runs.
func TestRestartSendsWebhooks(t *testing.T) {
	url, got, down := receiver(t)
	down.Store(true)
	hooks, state := t.TempDir()+"/hooks", t.TempDir()+"/state"
	open := func() *webhook.Sender {
		s, err := webhook.New(webhook.Options{Dir: hooks, Allow: []string{strings.TrimPrefix(url, "http://")}, First: 20 * time.Millisecond,
			Longest: 50 * time.Millisecond, Attempts: 10_000})
		apitest.Must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open()
	server, err := api.New(api.Options{Executor: apitest.Fake(played), Webhooks: s, Dir: state})
	apitest.Must(t, err)
	c := apitest.Serve(t, server)
	b, _ := c.Ask(202, wire.PathRuns, body("kept", url))
	info := apitest.Decode[wire.RunInfo](t, b)
	apitest.Eventually(t, "it is done", func() bool { return c.Info(info.ID).State.Over() })
	if s.Waiting() != 1 {
		t.Errorf("%d deliveries wait", s.Waiting())
	}
	apitest.Must(t, server.Close())
	apitest.Must(t, s.Close())
	// The files of a run that was under way during a crash.
	lost := "00000000000000000000000000000001"
	record, _ := json.Marshal(map[string]any{
		"id": lost, "principal": map[string]string{"ID": "owner"}, "accepted": time.Now(), "state": "running", "request_sha256": "",
		"request": json.RawMessage(body("lost", url)),
	})
	apitest.Must(t, os.WriteFile(state+"/runs/"+lost+".r", append(record, '\n'), 0o600))

	down.Store(false)
	s = open()
	apitest.New(t, api.Options{Executor: apitest.Fake(played), Webhooks: s, Dir: state}, nil)
	// An attempt that was under way when the first sender was closed may have arrived all the same: deliveries are made at least once.
	seen := map[string]told{}
	for len(seen) < 2 {
		m := next(t, got)
		seen[m.ID] = m
	}
	if m := seen[info.ID]; m.Data.Verdict != "ok" {
		t.Errorf("%+v", seen)
	}
	if m := seen[lost]; m.Data.State != wire.StateLost || m.Data.Error == nil || m.Data.Error.Code != wire.CodeLost {
		t.Errorf("%+v", seen)
	}
	apitest.Eventually(t, "nothing waits", func() bool { return s.Waiting() == 0 })
}
