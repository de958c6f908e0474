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

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxMessage bounds one message of a client; more is sent in several.
const maxMessage = 1 << 20

// smallMessage is what a key, a signal or a new size takes, and far less than what would add up.
const smallMessage = 4 << 10

// socket is GET /v1/runs/{id}/ws: events out, input in. wire.Subprotocol says what is said.
func (s *Server) socket(w http.ResponseWriter, r *http.Request) error {
	from, err := readFrom(r)
	if err != nil {
		return err
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	return s.takeOver(w, r, func(ctx context.Context, cancel context.CancelFunc, conn *websocket.Conn) {
		conn.SetReadLimit(maxMessage)
		c := &conversation{server: s, owner: run.owner, run: run, conn: conn}
		if in := run.input; in != nil {
			in.come()
			defer in.leave()
		}
		c.hold(ctx, cancel, from)
	})
}

// takeOver makes a WebSocket of a request and has it used, with a context that ends when its key is not welcome any more, or with the server.
func (s *Server) takeOver(w http.ResponseWriter, r *http.Request, use func(context.Context, context.CancelFunc, *websocket.Conn)) error {
	if err := wantSocket(r); err != nil {
		return err
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil //nolint:nilerr // it was answered, as the protocol of the handshake wants it
	}
	defer func() { _ = conn.CloseNow() }() // after a Close it has nothing to do
	// The context of a request does not end with a connection that was taken over.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	welcome := whenUnwelcome(r.Context(), func() {
		time.AfterFunc(farewell, cancel) // whatever the client does
		_ = conn.Close(websocket.StatusPolicyViolation, goodbye)
		cancel()
	})
	defer welcome()
	unhook := context.AfterFunc(s.closing, cancel)
	defer unhook()
	use(ctx, cancel, conn)
	return nil
}

// wantSocket says what is missing from a handshake in words; the library's are for programmers.
func wantSocket(r *http.Request) error {
	p := newProblem(wire.CodeMalformed, "this is for WebSocket clients that offer the subprotocol %s", wire.Subprotocol)
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

// conversation is one WebSocket connection.
type conversation struct {
	server *Server
	owner  string
	run    *run
	conn   *websocket.Conn

	holdsUp atomic.Bool // the client: a message is being done, and what comes after it not read

	long    io.WriteCloser // a message that is sent in parts
	stalled *time.Timer    // ends it when a part takes too long
	ended   context.CancelFunc

	mu     sync.Mutex
	reason string // why the client is sent away; empty: it is not
}

// farewell is how long a client may take to hear that it is over.
const farewell = 2 * time.Second

// hold talks until the run is over or the client has gone.
func (c *conversation) hold(ctx context.Context, cancel context.CancelFunc, from uint64) {
	// The library cuts a connection off whose context ends. Who is told why it ends is told before that.
	open, shut := context.WithCancel(context.WithoutCancel(ctx))
	defer shut()
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(farewell, shut) })
	defer unhook()
	var talking sync.WaitGroup
	talking.Go(func() {
		defer cancel()
		c.listen(open)
	})
	if c.run.input != nil {
		talking.Go(func() {
			c.acknowledge(open, 1, func(n wire.Notice) error { return c.notice(open, n) })
		})
	}
	talking.Go(func() { c.ping(open, cancel, 2*beatEvery, stallMost) })
	whole := c.server.replay(ctx, c.run, from, func(p portion) error { return c.portion(open, p) }, func(n wire.Notice) error { return c.notice(open, n) })
	c.mu.Lock()
	reason := c.reason
	c.mu.Unlock()
	switch {
	case reason != "":
		_ = c.conn.Close(websocket.StatusPolicyViolation, reason)
	case whole:
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
	case c.server.closing.Err() != nil:
		_ = c.conn.Close(websocket.StatusGoingAway, "the server ends")
	default:
		_ = c.conn.CloseNow()
	}
	shut()
	talking.Wait()
}

// portion sends lines that a reader has read. A line that comes in parts is one message all the same.
func (c *conversation) portion(ctx context.Context, p portion) error {
	if !p.continued && !p.open {
		return c.lines(ctx, p.data)
	}
	if !p.continued {
		ctx, cancel := context.WithCancel(ctx)
		c.stalled = time.AfterFunc(stallMost, cancel)
		var err error
		if c.long, err = c.conn.Writer(ctx, websocket.MessageText); err != nil {
			cancel()
			return err
		}
		c.ended = cancel
	}
	c.stalled.Reset(stallMost)
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

// result sends the last line.
func (c *conversation) result(ctx context.Context, line *resultLine) error {
	return line.send(0, func(p portion) error { return c.portion(ctx, p) })
}

// lines sends events, one message each.
func (c *conversation) lines(ctx context.Context, lines []byte) error {
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		if err := c.send(ctx, line); err != nil {
			return err
		}
		lines = rest
	}
	return nil
}

func (c *conversation) notice(ctx context.Context, n wire.Notice) error {
	return c.send(ctx, bytes.TrimSuffix(appendJSON(nil, n), []byte("\n")))
}

func (c *conversation) send(ctx context.Context, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stallMost)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageText, message)
}

// ping finds out about clients that are gone without a word. One that is held up may have answered: nobody reads that now.
func (c *conversation) ping(ctx context.Context, cancel context.CancelFunc, every, most time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			answer, done := context.WithTimeout(ctx, most)
			err := c.conn.Ping(answer)
			done()
			if unread := errors.Is(err, context.DeadlineExceeded) && c.holdsUp.Load(); err != nil && !unread {
				cancel()
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// acknowledge says how much of the input was taken, whenever that is so much more than before, so that a client knows how much it may send.
func (c *conversation) acknowledge(ctx context.Context, more uint64, say func(wire.Notice) error) {
	var said uint64
	for {
		taken, changed := c.run.input.bytesTaken()
		if taken-said >= more {
			said = taken
			if say(wire.Notice{Kind: wire.KindAck, Bytes: taken}) != nil {
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

// listen takes messages until the client goes, or says what is against the protocol.
func (c *conversation) listen(ctx context.Context) {
	for c.hear(ctx) {
	}
}

// hear takes one message, and reports whether there may be another.
func (c *conversation) hear(ctx context.Context) bool {
	kind, message, release, err := c.read(ctx)
	defer c.holdsUp.Store(false)
	defer release()
	if err != nil {
		return false
	}
	if kind != websocket.MessageText {
		c.dismiss("messages are texts")
		return false
	}
	var m wire.Message
	if err := wire.DecodeStrict(message, &m); err != nil {
		c.dismiss(err.Error())
		return false
	}
	err = c.take(ctx, &m)
	var against protocolError
	switch {
	case errors.As(err, &against):
		c.dismiss(err.Error())
		return false
	case err != nil && ctx.Err() == nil:
		return c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: newProblem(wire.CodeConflict, "%s: %s", m.Type, err)}) == nil
	}
	return true
}

// read reads one message. A large one counts among what its owner has in memory until release is called, because it may wait for a program for long and
// there is no bound on connections but the listener's; while there is no room for it, the client is held up.
func (c *conversation) read(ctx context.Context) (kind websocket.MessageType, message []byte, release func(), err error) {
	release = func() {}
	kind, in, err := c.conn.Reader(ctx)
	if err != nil {
		return kind, nil, release, err
	}
	c.holdsUp.Store(true)
	message, err = io.ReadAll(io.LimitReader(in, smallMessage))
	if err != nil || len(message) < smallMessage {
		return kind, message, release, err
	}
	if release, err = c.server.held.await(ctx, c.owner, maxMessage); err != nil {
		return kind, nil, release, err
	}
	rest, err := io.ReadAll(in)
	return kind, append(message, rest...), release, err
}

// dismiss remembers why the client is sent away; a reason has at most 123 bytes.
func (c *conversation) dismiss(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = strings.ToValidUTF8(reason[:min(len(reason), 120)], "")
}

// protocolError is a message that no client of ours would send.
type protocolError string

func (e protocolError) Error() string { return string(e) }

var errOver = errors.New("the run is over")

// take does what a message says.
func (c *conversation) take(ctx context.Context, m *wire.Message) error {
	in := c.run.input
	if m.Type == wire.MessageCancel {
		c.run.cancel(errForgotten)
		return nil
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
			return protocolError("rows and cols must be more than zero")
		}
		return in.resized(sandbox.TTY{Rows: m.Rows, Cols: m.Cols})
	}
	return protocolError(fmt.Sprintf("unknown type %.20q", m.Type))
}
