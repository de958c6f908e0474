package api

import (
	"net/http"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// A fork is admitted as a new session is: it starts an interpreter, and may execute all cells again.
func TestForkIsAdmitted(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	w := newSessionServer(t, func(o *Options) { o.Admission = g })
	s := w.session("python")
	s.execute("x = 1")
	fork := &testSession{testServer: w}
	decode(t, w.ask(http.StatusCreated, "POST", s.path("/fork"), "{}"), &fork.Info)
	g.mu.Lock()
	asks := g.asks
	g.err = &Refusal{Status: http.StatusTooManyRequests, Reason: "too much"}
	g.mu.Unlock()
	if len(asks) != 3 || asks[2].Memory != asks[0].Memory || asks[2].Memory == 0 || asks[2].Key != asks[0].Key {
		t.Errorf("%+v", asks) // of the session, the cell and the fork
	}
	w.ask(http.StatusTooManyRequests, "POST", s.path("/fork"), `{"name":"second"}`)
	var list wire.SessionList
	decode(t, w.ask(200, "GET", wire.PathSessions, ""), &list)
	if len(list.Sessions) != 2 || list.Sessions[0].State != session.StateIdle {
		t.Errorf("%+v", list)
	}
	g.mu.Lock()
	g.err = nil
	g.mu.Unlock()
	w.ask(http.StatusCreated, "POST", s.path("/fork"), `{"name":"second"}`)
	if r := fork.execute("x"); r.Value() != "1" {
		t.Errorf("%+v", r)
	}
}
