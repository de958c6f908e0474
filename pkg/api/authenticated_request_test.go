package api

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// removable is an Authenticator whose keys can be revoked.
type removable struct {
	keys
	mu   sync.Mutex
	gone map[string]bool
}

func (r *removable) StillAuthorized(p *Principal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.gone[p.ID]
}

func (r *removable) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[id] = true
}

// TestKeyRevoked (A2): the requests of a revoked key end, and its waiting runs do not start; other keys are not affected.
func TestKeyRevoked(t *testing.T) {
	auth := &removable{keys: keys{"a": {ID: "a"}, "b": {ID: "b"}}, gone: map[string]bool{}}
	w := newTestServer(t, func(o *Options) { o.Auth = auth })
	w.token = "a"
	id := w.start("out x\ncat", `"interactive":true`)
	theirs := w.dial(id, "")
	streamed := w.request("GET", wire.PathRuns+"/"+id+"/events", "")
	defer streamed.Body.Close()
	w.token = "b"
	other := w.start("out x\ncat", `"interactive":true`)
	ours := w.dial(other, "")
	theirs.readUntil(func() bool { return theirs.out == "x\n" })
	ours.readUntil(func() bool { return ours.out == "x\n" })
	w.token = "a"
	waiting := make(chan wire.Problem, 1)
	go func() { waiting <- w.problem(401, "POST", wire.PathRun, body("wait")) }()
	live := w.request("POST", wire.PathRun, body("out x\nwait"), "Accept", wire.TypeNDJSON)
	defer live.Body.Close()
	interactive := w.dialPath(wire.PathTalk)
	if err := interactive.Write(t.Context(), websocket.MessageText, []byte(body("out x\nwait"))); err != nil {
		t.Fatal(err)
	}
	interactive.readUntil(func() bool { return interactive.out == "x\n" })
	eventually(t, "all of it is under way", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.active) == 5
	})
	auth.remove("a") // the server notices by itself
	for _, c := range []*socketClient{theirs, interactive} {
		if code := c.readUntil(nil); code != websocket.StatusPolicyViolation || !strings.Contains(c.why, "key") {
			t.Errorf("%v %q", code, c.why)
		}
	}
	for name, answer := range map[string]*http.Response{"events": streamed, "run": live} {
		all := lines(t, answer.Body)
		if n := wire.NoticeOf(bytes.TrimSpace(all[len(all)-1])); n == nil || n.Kind != wire.KindError || n.Problem.Code != wire.CodeUnauthorized {
			t.Errorf("%s: its last event is %s", name, all[len(all)-1])
		}
	}
	select {
	case p := <-waiting:
		if !strings.Contains(p.Detail, "has expired") {
			t.Errorf("%+v", p)
		}
	case <-time.After(testTimeout):
		t.Error("it waits on")
	}
	if w.runs.get("a", id) == nil || w.runs.get("a", id).isOver() {
		t.Error("what was accepted has ended with it")
	}
	ours.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "hello\n"})
	ours.sendMessage(wire.Message{Type: wire.MessageStdinClose})
	ours.readUntil(nil)
	if ours.out != "x\nhello\n" {
		t.Errorf("%q", ours.out)
	}
}

// TestKeyRevokedInQueue: accepted runs of a revoked key do not start.
func TestKeyRevokedInQueue(t *testing.T) {
	auth, g := &removable{keys: keys{"a": {ID: "a"}}, gone: map[string]bool{}}, &gate{open: make(chan struct{})}
	w := newTestServer(t, func(o *Options) { o.Auth, o.Admission = auth, g })
	w.token = "a"
	id := w.start("out x")
	auth.remove("a")
	close(g.open)
	if info := w.waitForEnd(id); info.Started != nil || info.Error == nil || info.Error.Code != wire.CodeUnauthorized {
		t.Errorf("%+v", info)
	}
	w.problem(401, "POST", wire.PathRun, body("out x"))
}
