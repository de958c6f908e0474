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

// Session is a run that is talked to while it runs. One goroutine calls Next; the rest may be called by others meanwhile.
type Session struct {
	ID     string // of the run; one that was begun here has it from its Ready on
	Header Header // of the handshake: who the server is
	// OnReady is told when the sandbox is made, of a run that was begun here; nil: nobody wants to know. Next calls it.
	OnReady func(*wire.Ready)

	socket Socket
	state  Running // of the events
	flow   flow
}

// flow holds up what is sent to a program that does not read, here rather than at the server: what is behind it there, a Cancel say, would wait too.
type flow struct {
	mu          sync.Mutex
	window      uint64 // bytes that may be on their way; 0: the server does not say
	sent, taken uint64
	over        bool
	changed     chan struct{} // closed when something has; nil: nobody waits
}

// tell changes something.
func (f *flow) tell(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// pass waits until bytes may be sent, and counts them.
func (f *flow) pass(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.over && f.window > 0 && f.sent-f.taken+uint64(n) > f.window {
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		<-changed
		f.mu.Lock()
	}
	if f.over {
		return ErrBroken
	}
	f.sent += uint64(n)
	return nil
}

func (f *flow) end() { f.tell(func() { f.over = true }) }

// Talk opens a connection on which Begin runs a program. The run ends with the session.
func (c *Client) Talk(ctx context.Context) (*Session, error) {
	socket, header, err := c.t.Dial(ctx, wire.PathTalk, wire.Subprotocol)
	if err != nil {
		return nil, err
	}
	return &Session{Header: header, socket: socket}, nil
}

// Begin runs a program, on a session of Talk's. With run.Interactive its standard input stays open. An error wraps ErrNotSent if the server can not have seen
// the whole of it.
func (s *Session) Begin(ctx context.Context, run *wire.Run) error {
	text, err := json.Marshal(run)
	if err == nil {
		err = s.socket.Send(ctx, text, false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return nil
}

// Attach connects to a run that was started, with its events from a sequence number on. A run that was started as interactive begins then.
func (c *Client) Attach(ctx context.Context, id string, from uint64) (*Session, error) {
	socket, header, err := c.t.Dial(ctx, query(wire.PathRuns+"/"+url.PathEscape(id)+"/ws", from), wire.Subprotocol)
	if err != nil {
		return nil, err
	}
	return &Session{ID: id, Header: header, socket: socket}, nil
}

// Next gives the next event, as Running.Next does.
func (s *Session) Next(ctx context.Context) (executor.Event, error) {
	defer func() {
		if s.state.over {
			s.flow.end()
		}
	}()
	if s.state.over {
		return executor.Event{}, io.EOF
	}
	for {
		message, _, err := s.socket.Receive(ctx)
		if err != nil {
			s.state.over = true
			return executor.Event{}, fmt.Errorf("%w: %w", ErrBroken, midway(err))
		}
		if bytes.HasPrefix(message, readyPrefix) {
			ready := new(wire.Ready)
			if err := json.Unmarshal(message, ready); err != nil {
				return executor.Event{}, fmt.Errorf("the server sent what is no message: %w", err)
			}
			s.flow.tell(func() { s.flow.window = ready.Window })
			if s.ID = ready.Run; s.OnReady != nil {
				s.OnReady(ready)
			}
			continue
		}
		if n := noticeOf(message); n != nil {
			switch {
			case n.Kind == wire.KindAck:
				s.flow.tell(func() { s.flow.taken = min(max(s.flow.taken, n.Bytes), s.flow.sent) })
				continue
			case n.Kind == wire.KindError && n.Problem != nil && n.Problem.Code == wire.CodeConflict:
				continue // a message of ours came too late; the run goes on, or its result is on the way
			}
		}
		ev, skip, err := s.state.read(message)
		if !skip {
			return ev, err
		}
	}
}

// readyPrefix is how a Ready begins.
var readyPrefix = []byte(`{"kind":"` + wire.KindReady + `"`)

// Write sends bytes to the program's standard input. It waits while the program does not read; somebody has to call Next meanwhile.
func (s *Session) Write(p []byte) (int, error) {
	// A character that is cut in two makes both parts base64, which loses nothing.
	const most = 32 << 10
	for sent := 0; sent < len(p); {
		part := p[sent:min(len(p), sent+most)]
		if err := s.flow.pass(len(part)); err != nil {
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
func (s *Session) CloseWrite() error {
	return s.send(context.Background(), wire.Message{Type: wire.MessageStdinClose})
}

// Signal sends a signal to the program, by a name such as SIGINT.
func (s *Session) Signal(ctx context.Context, name string) error {
	return s.send(ctx, wire.Message{Type: wire.MessageSignal, Signal: name})
}

// Resize gives the program's terminal another size.
func (s *Session) Resize(ctx context.Context, size sandbox.TTY) error {
	return s.send(ctx, wire.Message{Type: wire.MessageResize, Rows: size.Rows, Cols: size.Cols})
}

// Cancel ends the program. Its result follows.
func (s *Session) Cancel(ctx context.Context) error {
	return s.send(ctx, wire.Message{Type: wire.MessageCancel})
}

func (s *Session) send(ctx context.Context, m wire.Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := s.socket.Send(ctx, text, false); err != nil {
		return errors.Join(ErrBroken, err)
	}
	return nil
}

// Close leaves the run alone. Twice is fine.
func (s *Session) Close() error {
	s.flow.end()
	return s.socket.Close()
}
