package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// WayInteractive is GET /v1/run/ws: an interactive run with a WebSocket of its own.
const WayInteractive Way = "talk"

// window is how much input a client may send before it is acknowledged. It is below maxBuffered, so that a later message, such as one that
// cancels the run, never waits for a program that does not read.
const window = maxBuffered - 64<<10

// errGone cancels a run whose client has disconnected.
var errGone = errors.New("the client disconnected")

// interactive handles GET /v1/run/ws: it runs a program over one connection, and cancels it when the connection ends. The command line uses
// it for runs on a server. The handshake identifies the server before the client sends anything.
func (s *Server) interactive(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	return s.takeOver(w, r, func(ctx context.Context, _ context.CancelFunc, conn *websocket.Conn) {
		c := &socketConn{server: s, owner: PrincipalFrom(ctx).ID, conn: conn}
		j, release, err := s.readFirstMessage(ctx, conn, PrincipalFrom(ctx))
		if err == nil {
			defer release()
			s.runInteractive(ctx, c, j)
			return
		}
		if release != nil { // the message was read, but the run is refused
			p := s.Problem(ctx, err)
			s.observer.Refused(ctx, refused(ctx, r, p))
			_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: p})
			_ = conn.Close(websocket.StatusNormalClosure, "")
			release()
		}
	})
}

// readFirstMessage reads the first message and prepares its run. release is nil if there was no message.
func (s *Server) readFirstMessage(ctx context.Context, conn *websocket.Conn, p *Principal) (j *job, release func(), err error) {
	body, release, err := s.readFirstBody(ctx, conn, p)
	if err != nil {
		return nil, release, err
	}
	run, err := wire.Decode(body)
	if err != nil {
		return nil, release, err
	}
	j, err = s.prepare(p, WayInteractive, run, audit.Digest(body))
	return j, release, err
}

// readFirstBody reads the first message, within the bounds of a body. release is nil if there was no message.
func (s *Server) readFirstBody(ctx context.Context, conn *websocket.Conn, p *Principal) (body []byte, release func(), err error) {
	most := int64(s.opts.Policy.MaxBody)
	conn.SetReadLimit(most)
	wait, cancel := context.WithTimeout(ctx, s.opts.Policy.BodyTimeout)
	defer cancel()
	kind, message, err := conn.Reader(wait)
	if err != nil { // the library has closed the connection with a reason
		return nil, nil, err
	}
	body, release, err = s.bodies.readAll(p.ID, message)
	if err != nil {
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			release = func() {} // the caller reports the refusal
		}
		return nil, release, err
	}
	conn.SetReadLimit(maxMessage)
	if kind != websocket.MessageText {
		return nil, release, wire.NewProblem(wire.CodeMalformed, "send text messages, not binary ones")
	}
	return body, release, nil
}

// runInteractive runs a job, and exchanges messages with its client meanwhile.
func (s *Server) runInteractive(ctx context.Context, c *socketConn, j *job) {
	running, a, err := s.registerRun(ctx)
	if err != nil {
		_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, err)})
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
		return
	}
	defer s.unregisterRun(a)
	in := attach(j)
	defer in.close()
	c.run = &run{stop: a.stop, input: in, over: make(chan struct{})}
	var goroutines sync.WaitGroup
	listening, stopListening := context.WithCancel(ctx)
	writing, cut := context.WithCancel(ctx)
	defer cut()
	goroutines.Go(func() {
		c.handleMessages(listening)
		a.stop(errGone)
	})
	if j.run.Interactive { // in large steps: short input needs no acknowledgement
		goroutines.Go(func() {
			c.acknowledge(listening, window/8, func(n wire.Notice) error {
				return c.conn.Write(writing, websocket.MessageText, wire.AppendJSON(nil, n))
			})
		})
	}
	// A client that does not read blocks the program, for as long as the program may run. There is no other time limit, as for a local run
	// whose output is not read.
	feed := &live{to: func(_ uint64, line []byte) {
		if err := c.conn.Write(writing, websocket.MessageText, line[:len(line)-1]); err != nil {
			a.stop(errGone)
		}
	}}
	j.req.OnEvent = feed.event
	j.req.OnReady = func(p *executor.Plan, i sandbox.Isolation) {
		ready := wire.Ready{
			Kind: wire.KindReady, Run: j.ID, Language: p.Language, Version: p.Version, Image: p.Spec.Root.From.Reference, Isolation: i,
		}
		if j.run.Interactive { // other runs get no acknowledgements
			ready.Window = window
		}
		if err := c.conn.Write(writing, websocket.MessageText, wire.AppendJSON(nil, ready)); err != nil {
			a.stop(errGone)
		}
	}
	f := s.runJob(running, j)
	stuck := time.AfterFunc(stream.StallTimeout, cut) // after the program's end, an unread event is waited for this long only
	next := feed.end()
	stuck.Stop()
	in.close()
	if f.Err != nil {
		_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, f.Err)})
	} else {
		defer f.Close()
		release := s.results.count(j.Principal.ID, f.Document.Memory())
		defer release()
		_ = newResultLine(next, time.Now(), f.Document).send(0, func(p portion) error { return c.portion(ctx, p) })
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
	stopListening()
	goroutines.Wait()
}
