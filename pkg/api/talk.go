package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// WayTalk is GET /v1/run/ws: a run with a WebSocket of its own.
const WayTalk Way = "talk"

// window is how much input a client may send before it hears that some was taken: less than what waits for a program (maxTyped), so that a message that
// comes after it, such as the one that ends the run, never waits for a program that does not read.
const window = maxTyped - 64<<10

// errGone ends a run whose client has gone.
var errGone = errors.New("the client went away")

// talk is GET /v1/run/ws: a program is run, spoken to and listened to over one connection, and ends with it. It is for clients that stand in for
// somebody: the command line. The whole of the handshake tells them who the server is, before they send anything.
func (s *Server) talk(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	return s.takeOver(w, r, func(ctx context.Context, _ context.CancelFunc, conn *websocket.Conn) {
		c := &conversation{server: s, owner: PrincipalFrom(ctx).ID, conn: conn}
		j, release, err := s.hear(ctx, conn, PrincipalFrom(ctx))
		if err == nil {
			defer release()
			s.hold(ctx, c, j)
			return
		}
		if release != nil { // it was a run, and may not be
			s.observer.Refused(ctx, s.refused(ctx, r, err))
			_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, err)})
			_ = conn.Close(websocket.StatusNormalClosure, "")
			release()
		}
	})
}

func (s *Server) refused(ctx context.Context, r *http.Request, err error) Refused {
	p := s.Problem(ctx, err)
	return Refused{Principal: PrincipalFrom(ctx), Method: r.Method, Route: r.Pattern, Status: p.Status, Code: p.Code, Detail: p.Detail}
}

// hear reads the first message, within the size and the time of a body. release is nil if there was none.
func (s *Server) hear(ctx context.Context, conn *websocket.Conn, p *Principal) (j *job, release func(), err error) {
	most := int64(s.opts.Policy.MaxBody)
	conn.SetReadLimit(most)
	wait, cancel := context.WithTimeout(ctx, s.opts.Policy.BodyTimeout)
	defer cancel()
	kind, message, err := conn.Reader(wait)
	if err != nil { // the library has closed the connection, and said why
		return nil, nil, err
	}
	body, release, err := s.held.gather(p.ID, message)
	if err != nil {
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			release = func() {} // the client is told
		}
		return nil, release, err
	}
	conn.SetReadLimit(maxMessage)
	if kind != websocket.MessageText {
		return nil, release, newProblem(wire.CodeMalformed, "messages are texts")
	}
	run, err := wire.Decode(body)
	if err != nil {
		return nil, release, err
	}
	j, err = s.prepare(ctx, p, WayTalk, run, digestOf(body))
	return j, release, err
}

// hold runs a job, and talks with its client meanwhile.
func (s *Server) hold(ctx context.Context, c *conversation, j *job) {
	running, a, err := s.enlist(ctx)
	if err != nil {
		_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, err)})
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
		return
	}
	defer s.discharge(a)
	in := attach(running, j)
	defer in.close()
	c.run = &run{stop: a.stop, input: in, over: make(chan struct{})}
	var talking sync.WaitGroup
	listening, hush := context.WithCancel(ctx)
	writing, cut := context.WithCancel(ctx)
	defer cut()
	talking.Go(func() {
		c.listen(listening)
		a.stop(errGone)
	})
	if j.run.Interactive { // in large steps: short inputs need no answer
		talking.Go(func() {
			c.acknowledge(listening, window/8, func(n wire.Notice) error { return c.conn.Write(writing, websocket.MessageText, appendJSON(nil, n)) })
		})
	}
	// A client that does not read holds the program up, for as long as the program may run: there is no other bound, because there is none
	// for who runs it himself.
	feed := &live{to: func(_ uint64, line []byte) {
		if err := c.conn.Write(writing, websocket.MessageText, line[:len(line)-1]); err != nil {
			a.stop(errGone)
		}
	}}
	j.req.OnEvent = feed.event
	j.req.OnReady = func(p *executor.Plan, i sandbox.Isolation) {
		ready := wire.Ready{Kind: wire.KindReady, Run: j.ID, Language: p.Language, Version: p.Version, Image: p.Spec.Root.From.Reference, Isolation: i}
		if j.run.Interactive { // of the others' input nothing is acknowledged
			ready.Window = window
		}
		if err := c.conn.Write(writing, websocket.MessageText, appendJSON(nil, ready)); err != nil {
			a.stop(errGone)
		}
	}
	f := s.perform(running, j)
	stuck := time.AfterFunc(stallMost, cut) // an event that nobody has taken while the program ran is not waited for much longer
	next := feed.end()
	stuck.Stop()
	in.close()
	if f.Err != nil {
		_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, f.Err)})
	} else {
		defer f.Close()
		letGo := s.results.keep(j.Principal.ID, f.Document.Memory())
		defer letGo()
		_ = c.result(ctx, newResultLine(next, time.Now(), f.Document))
		if j.receipt != nil {
			_ = c.notice(ctx, wire.Notice{Kind: wire.KindReceipt, Receipt: j.receipt})
		}
	}
	c.mu.Lock()
	reason := c.reason
	c.mu.Unlock()
	if reason != "" {
		_ = c.conn.Close(websocket.StatusPolicyViolation, reason)
	} else {
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
	}
	hush()
	talking.Wait()
}
