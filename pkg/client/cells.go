package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Execute executes a cell after those that wait already, and returns its result. At the end of ctx the cell is interrupted, and the session
// continues. With OnEvent or Input it reads the events as they happen; a lost connection is opened again, and no event is missed. Events
// that the server no longer keeps are left out.
func (s *Session) Execute(ctx context.Context, c session.Cell) (*session.Result, error) {
	cell := &wire.Cell{Code: c.Code, Limits: c.Limits, Interactive: c.Input != nil}
	if c.OnEvent == nil && c.Input == nil {
		resp, err := s.c.post(ctx, s.path("/cells"), cell, wire.TypeJSON, "")
		if err != nil {
			return nil, ofSession(err)
		}
		var text json.RawMessage
		if err := decode(resp, &text); err != nil {
			return nil, err
		}
		return wire.DecodeCell(text)
	}
	text, err := json.Marshal(cell)
	if err != nil {
		return nil, err
	}
	socket, _, err := s.c.t.Dial(ctx, s.path("/cells/ws"), wire.Subprotocol)
	if err != nil {
		return nil, ofSession(err)
	}
	if err := socket.Send(ctx, text, false); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return s.follow(ctx, &cellStream{s: s, in: c, from: 1}, socket)
}

// Follow reads the events of a cell that has begun, of this client or another, from a sequence number on, and returns its result. c has the
// callbacks.
func (s *Session) Follow(ctx context.Context, cell, from uint64, c session.Cell) (*session.Result, error) {
	return s.follow(ctx, &cellStream{s: s, in: c, from: from, path: s.cellPath(strconv.FormatUint(cell, 10))}, nil)
}

// Cell returns the state of a cell of a session, and the result of a finished one in RunInfo.Result.
func (c *Client) Cell(ctx context.Context, session, cell string) (*wire.RunInfo, error) {
	info := new(wire.RunInfo)
	return info, ofSession(c.get(ctx, c.Sessions().Of(session).path("/cells/"+url.PathEscape(cell)), info))
}

func (s *Session) cellPath(cell string) string { return s.path("/cells/" + cell) }

// cellStream is a cell whose events are read, over one connection after the other.
type cellStream struct {
	s      *Session
	in     session.Cell
	from   uint64 // the next event
	path   string // of the cell; empty until it begins
	result *session.Result

	asking  sync.WaitGroup
	stopAsk context.CancelFunc // of the last question; or nil

	mu     sync.Mutex // guards socket
	socket Socket
}

// follow reads events until the result. socket is the first connection; nil: it is opened.
func (s *Session) follow(ctx context.Context, c *cellStream, socket Socket) (*session.Result, error) {
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer c.asking.Wait()
	defer stop()
	unhook := context.AfterFunc(ctx, func() { // the result still follows
		c.cancel(reading)
		time.AfterFunc(answerTimeout, stop)
	})
	defer unhook()
	pause := firstPause
	for tries := 0; ; tries++ {
		before := c.from
		err := c.connect(reading, socket)
		if err == nil {
			err = c.read(reading)
		}
		socket = nil
		var problem *Problem
		switch {
		case c.result != nil:
			return c.result, nil
		case ctx.Err() != nil && (c.path == "" || reading.Err() != nil):
			return nil, context.Cause(ctx)
		case c.path == "", errors.As(err, &problem) && !problem.Temporary(), tries >= mostTries:
			return nil, ofSession(c.lost(err))
		}
		if c.from > before {
			tries, pause = 0, firstPause
		}
		select {
		case <-reading.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// lost is the error of a stream that could not be read to its end. A cell that has begun was sent: its error does not say ErrNotSent.
func (c *cellStream) lost(err error) error {
	if c.path != "" && errors.Is(err, ErrNotSent) {
		return fmt.Errorf("%w, and could not be opened again: %v", ErrBroken, err) //nolint:errorlint // see above
	}
	return err
}

func (c *cellStream) connect(ctx context.Context, socket Socket) (err error) {
	if socket == nil {
		if socket, _, err = c.s.c.t.Dial(ctx, query(c.path+"/ws", c.from), wire.Subprotocol); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket = socket
	return nil
}

// read reads the events of one connection. It returns nil after the result.
func (c *cellStream) read(ctx context.Context) error {
	defer c.disconnect()
	for c.result == nil {
		message, _, err := c.socket.Receive(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBroken, noEOF(err))
		}
		if err := c.message(ctx, message); err != nil {
			return err
		}
	}
	return nil
}

func (c *cellStream) message(ctx context.Context, message []byte) error {
	if bytes.HasPrefix(message, readyPrefix) {
		return c.begin(message)
	}
	if n := noticeOf(message); n != nil {
		switch {
		case n.Kind == wire.KindGap:
			c.from = n.To + 1
		case n.Kind == wire.KindError && n.Problem != nil && n.Problem.Code != wire.CodeConflict: // a cancellation that came too late
			return &Problem{Problem: *n.Problem}
		}
		return nil
	}
	ev, result, err := wire.DecodeCellEvent(message)
	switch {
	case err != nil:
		return fmt.Errorf("server event: decode: %w", err)
	case ev.Kind == executor.EventResult && result == nil:
		return errors.New("server event: the last event has no result")
	case result != nil:
		c.result = result
	case ev.Seq >= c.from:
		c.from = ev.Seq + 1
		if c.in.OnEvent != nil {
			c.in.OnEvent(ev)
		}
		if ev.Kind == sandbox.EventInput && c.in.Input != nil {
			c.ask(ctx, ev)
		}
	}
	return nil
}

// begin learns the path of the cell.
func (c *cellStream) begin(message []byte) error {
	var ready wire.Ready
	if err := json.Unmarshal(message, &ready); err != nil {
		return fmt.Errorf("server message: decode: %w", err)
	}
	_, cell, found := strings.Cut(ready.Run, "/")
	if _, err := strconv.ParseUint(cell, 10, 64); err != nil || !found {
		return fmt.Errorf("server message: %.80q is no cell", ready.Run)
	}
	c.path = c.s.cellPath(cell)
	return nil
}

// ask asks the caller for the line that an event asks for, and sends it over a connection of its own: the one of the events may be lost
// meanwhile. Questions before this one have been answered.
func (c *cellStream) ask(ctx context.Context, ev sandbox.Event) {
	if c.stopAsk != nil {
		c.stopAsk()
	}
	ctx, c.stopAsk = context.WithCancel(ctx)
	var question protocol.Input
	_ = json.Unmarshal(ev.Content, &question) // foreign code's, perhaps: it has no prompt then
	c.asking.Go(func() {
		line, ok := c.in.Input(ctx, question)
		for ctx.Err() == nil {
			err := c.s.ask(ctx, "/input", wire.Line{Line: line, End: !ok, Seq: ev.Seq}, nil)
			if problem := (*Problem)(nil); err == nil || errors.As(err, &problem) && !problem.Temporary() {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(firstPause):
			}
		}
	})
}

// cancel asks the server to interrupt the cell. A lost connection is seen by its reader.
func (c *cellStream) cancel(ctx context.Context) {
	text, err := json.Marshal(wire.Message{Type: wire.MessageCancel})
	c.mu.Lock()
	socket := c.socket
	c.mu.Unlock()
	if err == nil && socket != nil {
		_ = socket.Send(ctx, text, false)
	}
}

func (c *cellStream) disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.socket.Close()
	c.socket = nil
}
