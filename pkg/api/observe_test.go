package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
)

// recording is an Observer that records its calls.
type recording struct {
	mu       sync.Mutex
	said     []string
	finished []*Finished
}

func (w *recording) sendMessage(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *recording) Queued(_ context.Context, r Info)  { w.sendMessage("queued %s", r.Way) }
func (w *recording) Started(_ context.Context, r Info) { w.sendMessage("started %s", r.Way) }
func (w *recording) Finished(_ context.Context, f *Finished) {
	w.sendMessage("finished %s", f.Way)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = append(w.finished, f)
}
func (w *recording) Refused(_ context.Context, r Refused) {
	w.sendMessage("refused %d %s", r.Status, r.Code)
}

func (w *recording) Session(_ context.Context, e SessionEvent) {
	w.sendMessage("session %s %s", e.Language, e.Ended)
}

// told returns the calls since the last time.
func (w *recording) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.said
	w.said = nil
	return said
}

// signer signs receipts.
type signer struct{ err error }

func (s signer) Receipt(_ context.Context, f *Finished) (json.RawMessage, error) {
	return json.RawMessage(fmt.Sprintf(`{"run":%q,"request":%q}`, f.ID, f.RequestSHA256)), s.err
}

func TestObserved(t *testing.T) {
	see := &recording{}
	w := newTestServer(t, func(o *Options) { o.Observer, o.Receipts = Observers{see}, signer{} })
	expect := func(what string, want ...string) {
		t.Helper()
		if got := see.told(); !slices.Equal(got, want) {
			t.Errorf("%s: %q instead of %q", what, got, want)
		}
	}
	text := body("out x", `"receipt":true`)
	answer := w.request("POST", wire.PathRun, text)
	answer.Body.Close()
	expect("whole", "queued run", "started run", "finished run")
	f := see.finished[0]
	if f.RequestSHA256 != audit.Digest([]byte(text)) || f.Result == nil || f.ID != answer.Header.Get(wire.HeaderRunID) ||
		f.Language != "act" ||
		f.Ended.Before(f.Started) {
		t.Errorf("%+v", f)
	}
	receipt, err := base64.StdEncoding.DecodeString(answer.Header.Get(wire.HeaderReceipt))
	if err != nil || !strings.Contains(string(receipt), f.ID) {
		t.Errorf("%v: %s", err, receipt)
	}
	answer = w.request("POST", wire.PathRun, text, "Accept", wire.TypeNDJSON)
	all := lines(t, answer.Body)
	answer.Body.Close()
	if n := wire.NoticeOf(all[len(all)-1]); n == nil || n.Kind != wire.KindReceipt || n.Receipt == nil {
		t.Errorf("%s", all[len(all)-1])
	}
	expect("stream", "queued stream", "started stream", "finished stream")
	info := w.waitForEnd(w.start("out x", `"receipt":true`))
	if !strings.Contains(string(info.Receipt), info.ID) {
		t.Errorf("%s", info.Receipt)
	}
	expect("async", "queued async", "started async", "finished async")
	c := w.dialPath(wire.PathTalk)
	if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
	c.readUntil(nil)
	if !strings.Contains(c.receipt, audit.Digest([]byte(text))) {
		t.Errorf("talk: the receipt is %q", c.receipt)
	}
	expect("talk", "queued talk", "started talk", "finished talk")
	w.problem(422, "POST", wire.PathRun, `{}`+" ", "Accept", wire.TypeJSON)
	if got := see.told(); len(got) != 3 || got[2] != "finished run" { // that there is no code, the engine says
		t.Errorf("%q", got)
	}
	w.problem(422, "POST", wire.PathRun, `{"memori":1}`)
	w.problem(403, "POST", wire.PathRun, body("out x", `"backend":"process"`))
	w.problem(404, "GET", "/nowhere", "")
	expect("refused", "refused 422 invalid", "refused 403 refused", "refused 404 not_found")
}

// TestUnsigned: a receipt that can not be signed is an error.
func TestUnsigned(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Receipts = signer{errors.New("no key")} })
	w.problem(500, "POST", wire.PathRun, body("flood 1500000", `"receipt":true`))
	if used := w.outputs.Used(); used != 0 {
		t.Errorf("%v of spill space are kept for a result that was not sent", used)
	}
	if p := w.problem(500, "POST", wire.PathRun, body("out x", `"receipt":true`)); !strings.Contains(p.Detail, "no key") {
		t.Errorf("%+v", p)
	}
	w.ask(200, "POST", wire.PathRun, body("out x"))
}

// TestMiddleware: middleware sees the principal.
func TestMiddleware(t *testing.T) {
	var order []string
	var mu sync.Mutex
	layer := func(name string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				order = append(order, name+":"+PrincipalFrom(r.Context()).ID)
				mu.Unlock()
				next.ServeHTTP(w, r)
			})
		}
	}
	w := newTestServer(t, func(o *Options) {
		o.Auth = keys{"a": {ID: "a"}}
		o.Middleware = []func(http.Handler) http.Handler{layer("outer"), layer("inner")}
	})
	w.Mount("GET /v1/mine", Access{Scope: ScopeAdmin},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	w.problem(401, "GET", "/v1/mine", "")
	w.token = "a"
	if b := w.ask(200, "GET", "/v1/mine", ""); string(b) != "here" {
		t.Errorf("%q", b)
	}
	if !slices.Equal(order, []string{"outer:a", "inner:a"}) {
		t.Errorf("%q", order)
	}
}
