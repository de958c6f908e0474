package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxMessage bounds one message of a client.
const maxMessage = 1 << 20

// smallMessage is enough for a keystroke, a signal or a terminal size; such messages are not counted as memory.
const smallMessage = 4 << 10

// socket handles GET /v1/runs/{id}/ws: events to the client, input to the run. wire.Subprotocol defines the messages.
func (s *Server) socket(w http.ResponseWriter, r *http.Request) error {
	return s.socketOf(w, r, s.find)
}

// socketOf serves a WebSocket of a run.
func (s *Server) socketOf(w http.ResponseWriter, r *http.Request, find func(*http.Request) (*run, error)) error {
	from, err := readFrom(r)
	if err != nil {
		return err
	}
	run, err := find(r)
	if err != nil {
		return err
	}
	return s.takeOver(w, r, func(ctx context.Context, cancel context.CancelFunc, conn *websocket.Conn) {
		conn.SetReadLimit(maxMessage)
		c := &socketConn{server: s, owner: run.owner, run: run, conn: conn}
		if in := run.input; in != nil {
			in.addClient()
			defer in.removeClient()
		}
		c.serve(ctx, cancel, from)
	})
}

// takeOver upgrades a request to a WebSocket and calls use, with a context that ends when the key is revoked or the server closes.
func (s *Server) takeOver(w http.ResponseWriter, r *http.Request, use func(context.Context, context.CancelFunc, *websocket.Conn)) error {
	if err := wantSocket(r); err != nil {
		return err
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{wire.Subprotocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil //nolint:nilerr // Accept has answered
	}
	defer func() { _ = conn.CloseNow() }() // does nothing after a Close
	// The context of a request does not end with a hijacked connection.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	unhookRevoked := whenRevoked(r.Context(), func() {
		time.AfterFunc(stream.FarewellTimeout, cancel) // even if the client does not answer the close frame
		_ = conn.Close(websocket.StatusPolicyViolation, revokedText)
		cancel()
	})
	defer unhookRevoked()
	unhook := context.AfterFunc(s.closing, cancel)
	defer unhook()
	use(ctx, cancel, conn)
	return nil
}

// wantSocket checks the handshake, because the library's errors do not help a client.
func wantSocket(r *http.Request) error {
	p := wire.NewProblem(wire.CodeMalformed, "connection: it is no WebSocket with the subprotocol %s", wire.Subprotocol)
	p.Hint = "connect with a WebSocket client that offers the subprotocol"
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		p.Status = http.StatusUpgradeRequired
		return p
	}
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		if slices.ContainsFunc(strings.Split(header, ","), func(name string) bool { return strings.TrimSpace(name) == wire.Subprotocol }) {
			return nil
		}
	}
	return p
}

// socketConn is one WebSocket connection.
type socketConn struct {
	server *Server
	owner  string
	run    *run
	conn   *websocket.Conn
	ready  func() any // the message that a cell has begun; or nil

	handling atomic.Bool // a message is being handled, and the following ones are not read

	long    io.WriteCloser // the message that is being sent in parts
	stalled *time.Timer    // cancels it when a part takes too long
	ended   context.CancelFunc

	mu     sync.Mutex
	reason string // why the server closes the connection; empty: it does not
}

// serve serves the connection until the run is over or the client disconnects.
func (c *socketConn) serve(ctx context.Context, cancel context.CancelFunc, from uint64) {
	// The library closes a connection whose context ends. The reason must be sent before that.
	open, shut := context.WithCancel(context.WithoutCancel(ctx))
	defer shut()
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(stream.FarewellTimeout, shut) })
	defer unhook()
	var goroutines sync.WaitGroup
	goroutines.Go(func() {
		defer cancel()
		c.handleMessages(open)
	})
	if c.run.input != nil {
		goroutines.Go(func() {
			c.acknowledge(open, 1, func(n wire.Notice) error { return c.notice(open, n) })
		})
	}
	if c.ready != nil {
		goroutines.Go(func() { c.sendReady(open) })
	}
	goroutines.Go(func() { c.ping(open, cancel, 2*stream.KeepAliveInterval, stream.StallTimeout) })
	whole := c.server.replay(ctx, c.run, from,
		func(p portion) error { return c.portion(open, p) }, func(n wire.Notice) error { return c.notice(open, n) })
	c.mu.Lock()
	reason := c.reason
	c.mu.Unlock()
	switch {
	case reason != "":
		_ = c.conn.Close(websocket.StatusPolicyViolation, reason)
	case whole:
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
	case c.server.closing.Err() != nil:
		_ = c.conn.Close(websocket.StatusGoingAway, "the server is shutting down")
	default:
		_ = c.conn.CloseNow()
	}
	shut()
	goroutines.Wait()
}

// portion sends lines that a reader has read. A line in several portions is one message.
func (c *socketConn) portion(ctx context.Context, p portion) error {
	if !p.continued && !p.open {
		return c.lines(ctx, p.data)
	}
	if !p.continued {
		ctx, cancel := context.WithCancel(ctx)
		c.stalled = time.AfterFunc(stream.StallTimeout, cancel)
		var err error
		if c.long, err = c.conn.Writer(ctx, websocket.MessageText); err != nil {
			cancel()
			return err
		}
		c.ended = cancel
	}
	c.stalled.Reset(stream.StallTimeout)
	_, err := c.long.Write(bytes.TrimSuffix(p.data, []byte("\n")))
	if err == nil && !p.open {
		err = c.long.Close()
	}
	if err != nil || !p.open {
		c.stalled.Stop()
		c.ended()
	}
	return err
}

// lines sends events, one message each.
func (c *socketConn) lines(ctx context.Context, lines []byte) error {
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		if err := c.send(ctx, line); err != nil {
			return err
		}
		lines = rest
	}
	return nil
}

func (c *socketConn) notice(ctx context.Context, n wire.Notice) error {
	return c.send(ctx, bytes.TrimSuffix(wire.AppendJSON(nil, n), []byte("\n")))
}

// sendReady reports that the cell has begun.
func (c *socketConn) sendReady(ctx context.Context) {
	select {
	case <-c.run.started:
		if c.run.failed() == nil {
			_ = c.send(ctx, bytes.TrimSuffix(wire.AppendJSON(nil, c.ready()), []byte("\n")))
		}
	case <-ctx.Done():
	}
}

func (c *socketConn) send(ctx context.Context, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stream.StallTimeout)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageText, message)
}

// ping detects clients that disconnected silently. A pong may be unread while a message is handled; that does not count.
func (c *socketConn) ping(ctx context.Context, cancel context.CancelFunc, every, most time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			answer, done := context.WithTimeout(ctx, most)
			err := c.conn.Ping(answer)
			done()
			if unread := errors.Is(err, context.DeadlineExceeded) && c.handling.Load(); err != nil && !unread {
				cancel()
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// acknowledge reports how many bytes of input the program has read, at steps of that many, so that a client knows how much it may send.
func (c *socketConn) acknowledge(ctx context.Context, step uint64, send func(wire.Notice) error) {
	var reported uint64
	for {
		taken, changed := c.run.input.bytesTaken()
		if taken-reported >= step {
			reported = taken
			if send(wire.Notice{Kind: wire.KindAck, Bytes: taken}) != nil {
				return
			}
			continue
		}
		select {
		case <-changed:
		case <-c.run.input.over:
			return
		case <-ctx.Done():
			return
		}
	}
}

// handleMessages handles messages until the client disconnects or violates the protocol.
func (c *socketConn) handleMessages(ctx context.Context) {
	for c.handleMessage(ctx) {
	}
}

// handleMessage handles one message, and returns whether another may follow.
func (c *socketConn) handleMessage(ctx context.Context) bool {
	kind, message, release, err := c.read(ctx)
	defer c.handling.Store(false)
	defer release()
	if err != nil {
		return false
	}
	if kind != websocket.MessageText {
		c.setCloseReason("send text messages, not binary ones")
		return false
	}
	var m wire.Message
	if err := wire.DecodeStrict(message, &m); err != nil {
		c.setCloseReason(err.Error())
		return false
	}
	err = c.apply(ctx, &m)
	var against protocolError
	switch {
	case errors.As(err, &against):
		c.setCloseReason(err.Error())
		return false
	case err != nil && ctx.Err() == nil:
		return c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: wire.NewProblem(wire.CodeConflict, "%s: %s", m.Type, err)}) == nil
	}
	return true
}

// read reads one message. A large one counts as its owner's memory until release is called, because it may wait for a program for long, and
// only the listener bounds the number of connections. While there is no room for it, read blocks.
func (c *socketConn) read(ctx context.Context) (kind websocket.MessageType, message []byte, release func(), err error) {
	release = func() {}
	kind, in, err := c.conn.Reader(ctx)
	if err != nil {
		return kind, nil, release, err
	}
	c.handling.Store(true)
	message, err = io.ReadAll(io.LimitReader(in, smallMessage))
	if err != nil || len(message) < smallMessage {
		return kind, message, release, err
	}
	if release, err = c.server.bodies.waitForResult(ctx, c.owner, maxMessage); err != nil {
		return kind, nil, release, err
	}
	rest, err := io.ReadAll(in)
	return kind, append(message, rest...), release, err
}

// setCloseReason sets the reason for which the connection is closed; a close frame has at most 123 bytes for it.
func (c *socketConn) setCloseReason(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = strings.ToValidUTF8(reason[:min(len(reason), 120)], "")
}

// protocolError is a violation of the protocol, which ends the connection.
type protocolError string

func (e protocolError) Error() string { return string(e) }

var errOver = errors.New("the run is over")

// apply applies a message to the run.
func (c *socketConn) apply(ctx context.Context, m *wire.Message) error {
	in := c.run.input
	if m.Type == wire.MessageCancel {
		switch m.Signal {
		case "":
			c.run.cancel(errForgotten)
		case wire.SignalInterrupt:
			c.run.cancel(errors.Join(errForgotten, sandbox.SignalCause(syscall.SIGINT)))
		default:
			return protocolError("cancel takes no signal but " + wire.SignalInterrupt)
		}
		return nil
	}
	if q := c.run.question; q != nil {
		switch m.Type {
		case wire.MessageInput:
			return q.answer(&wire.Line{Line: m.Data, Seq: m.Seq})
		case wire.MessageInputEnd:
			return q.answer(&wire.Line{End: true, Seq: m.Seq})
		}
		return protocolError(fmt.Sprintf("unknown type %.20q; a cell has input, input_end and cancel", m.Type))
	}
	if in == nil || c.run.isOver() {
		return errOver
	}
	switch m.Type {
	case wire.MessageStdin:
		data := []byte(m.Data)
		switch m.Encoding {
		case "", "text":
		case "base64":
			var err error
			if data, err = base64.StdEncoding.DecodeString(m.Data); err != nil {
				return protocolError("data: " + err.Error())
			}
		default:
			return protocolError(fmt.Sprintf("unknown encoding %.20q", m.Encoding))
		}
		return in.write(ctx, data)
	case wire.MessageStdinClose:
		return in.end()
	case wire.MessageSignal:
		n := wire.SignalNumber(m.Signal)
		if n == 0 {
			return protocolError(fmt.Sprintf("unknown signal %.20q; write it like SIGINT", m.Signal))
		}
		in.signal(syscall.Signal(n))
		return nil
	case wire.MessageResize:
		if m.Rows == 0 || m.Cols == 0 {
			return protocolError("rows and cols: give numbers above 0")
		}
		return in.resized(sandbox.TTY{Rows: m.Rows, Cols: m.Cols})
	}
	return protocolError(fmt.Sprintf("unknown type %.20q", m.Type))
}
