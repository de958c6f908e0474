package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Connection is an interactive run: its input, signals and terminal size can be set while it runs. One goroutine calls Next; others may
// call the remaining methods meanwhile. The caller closes it.
type Connection struct {
	ID     string // of the run; after OpenInteractive, it is set when OnReady is called
	Header Header // of the handshake; it identifies the server
	// OnReady is called by Next when the sandbox of a run that StartRun began is made; nil means no call.
	OnReady func(*wire.Ready)

	socket Socket
	state  Running // of the events
	window sendWindow
}

// sendWindow delays input for a program that does not read, in the client rather than at the server: there, messages behind the input, such
// as Cancel, would wait too.
type sendWindow struct {
	mu          sync.Mutex
	size        uint64 // bytes that may be sent and not yet read; 0: no limit known
	sent, taken uint64
	over        bool
	changed     sync.Cond
}

// update changes fields and wakes the waiters.
func (f *sendWindow) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.changed.Broadcast()
}

// reserve blocks until n bytes may be sent, and counts them as sent.
func (f *sendWindow) reserve(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.over && f.size > 0 && f.sent-f.taken+uint64(n) > f.size {
		f.changed.Wait()
	}
	if f.over {
		return ErrBroken
	}
	f.sent += uint64(n)
	return nil
}

func (f *sendWindow) close() { f.update(func() { f.over = true }) }

// OpenInteractive opens a connection for StartRun. The run ends with the connection.
func (c *Client) OpenInteractive(ctx context.Context) (*Connection, error) {
	return c.connect(ctx, "", wire.PathTalk)
}

func (c *Client) connect(ctx context.Context, id, path string) (*Connection, error) {
	socket, header, err := c.t.Dial(ctx, path, wire.Subprotocol)
	if err != nil {
		return nil, err
	}
	s := &Connection{ID: id, Header: header, socket: socket}
	s.window.changed.L = &s.window.mu
	return s, nil
}

// StartRun starts a program on a connection of OpenInteractive. With run.Interactive its standard input stays open. An error wraps
// ErrNotSent if the server can not have received the whole request.
func (s *Connection) StartRun(ctx context.Context, run *wire.Run) error {
	text, err := json.Marshal(run)
	if err == nil {
		err = s.socket.Send(ctx, text, false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return nil
}

// Attach connects to a started run, and reads its events from a sequence number on. A run that was started as interactive begins now.
func (c *Client) Attach(ctx context.Context, id string, from uint64) (*Connection, error) {
	return c.connect(ctx, id, query(wire.PathRuns+"/"+url.PathEscape(id)+"/ws", from))
}

// Next blocks for the next event, with the errors of Running.Next.
func (s *Connection) Next(ctx context.Context) (executor.Event, error) {
	defer func() {
		if s.state.over {
			s.window.close()
		}
	}()
	if s.state.over {
		return executor.Event{}, io.EOF
	}
	for {
		message, _, err := s.socket.Receive(ctx)
		if err != nil {
			s.state.over = true
			return executor.Event{}, fmt.Errorf("%w: %w", ErrBroken, noEOF(err))
		}
		if bytes.HasPrefix(message, readyPrefix) {
			ready := new(wire.Ready)
			if err := json.Unmarshal(message, ready); err != nil {
				return executor.Event{}, fmt.Errorf("server message: decode: %w", err)
			}
			s.window.update(func() { s.window.size = ready.Window })
			if s.ID = ready.Run; s.OnReady != nil {
				s.OnReady(ready)
			}
			continue
		}
		if n := noticeOf(message); n != nil {
			switch {
			case n.Kind == wire.KindAck:
				s.window.update(func() { s.window.taken = min(max(s.window.taken, n.Bytes), s.window.sent) })
				continue
			case n.Kind == wire.KindError && n.Problem != nil && n.Problem.Code == wire.CodeConflict:
				continue // a message of ours came too late; the run continues, or its result follows
			}
		}
		ev, skip, err := s.state.read(message)
		if !skip {
			return ev, err
		}
	}
}

// readyPrefix is the start of a Ready message.
var readyPrefix = []byte(`{"kind":"` + wire.KindReady + `"`)

// Write sends bytes to the program's standard input. It blocks while the program does not read, so another goroutine must call Next.
func (s *Connection) Write(p []byte) (int, error) {
	// A character that is cut in two is sent as base64, which loses no byte.
	const most = 32 << 10
	for sent := 0; sent < len(p); {
		part := p[sent:min(len(p), sent+most)]
		if err := s.window.reserve(len(part)); err != nil {
			return sent, err
		}
		m := wire.Message{Type: wire.MessageStdin}
		m.Data, m.Encoding = sandbox.EncodeText(part)
		if err := s.send(context.Background(), m); err != nil {
			return sent, err
		}
		sent += len(part)
	}
	return len(p), nil
}

// CloseWrite ends the program's standard input.
func (s *Connection) CloseWrite() error {
	return s.send(context.Background(), wire.Message{Type: wire.MessageStdinClose})
}

// Signal sends a signal to the program, by a name such as SIGINT.
func (s *Connection) Signal(ctx context.Context, name string) error {
	return s.send(ctx, wire.Message{Type: wire.MessageSignal, Signal: name})
}

// Resize sets the size of the program's terminal.
func (s *Connection) Resize(ctx context.Context, size sandbox.TTY) error {
	return s.send(ctx, wire.Message{Type: wire.MessageResize, Rows: size.Rows, Cols: size.Cols})
}

// Cancel ends the program: it gets SIGTERM or, if interrupt is set, SIGINT, and SIGKILL when its grace period is over. Next then
// returns its result.
func (s *Connection) Cancel(ctx context.Context, interrupt bool) error {
	m := wire.Message{Type: wire.MessageCancel}
	if interrupt {
		m.Signal = wire.SignalInterrupt
	}
	return s.send(ctx, m)
}

func (s *Connection) send(ctx context.Context, m wire.Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := s.socket.Send(ctx, text, false); err != nil {
		return errors.Join(ErrBroken, err)
	}
	return nil
}

// Close closes the connection, which ends a run of StartRun. It may be called twice.
func (s *Connection) Close() error {
	s.window.close()
	return s.socket.Close()
}
