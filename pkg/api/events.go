package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/keepalive"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Timeouts of streams.
const (
	keepAliveInterval = 15 * time.Second // between two keep-alive comments, so that proxies keep the connection
	stallTimeout      = 2 * time.Minute  // how long a client may read nothing
)

// stream writes events as lines, or as server-sent events. mu excludes the keep-alive goroutine.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sse     bool

	mu     sync.Mutex
	begun  bool
	inLine bool // a line was sent in part
	err    error
	buf    []byte

	deadline sync.Mutex // for shortenDeadline, while a writer holds mu
	leaving  bool
}

// setWriteDeadline sets the deadline of the next write.
func (o *stream) setWriteDeadline() {
	o.deadline.Lock()
	defer o.deadline.Unlock()
	timeout := stallTimeout
	if o.leaving {
		timeout = farewellTimeout
	}
	_ = o.control.SetWriteDeadline(time.Now().Add(timeout)) // fails without a connection, as in some tests
}

// shortenDeadline shortens the write deadline of a client whose key was revoked.
func (o *stream) shortenDeadline() {
	o.deadline.Lock()
	o.leaving = true
	o.deadline.Unlock()
	o.setWriteDeadline()
}

func newStream(w http.ResponseWriter, kind string) *stream {
	return &stream{w: w, control: http.NewResponseController(w), sse: kind == wire.TypeSSE}
}

// writeHead sends the head. mu is held.
func (o *stream) writeHead() {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Content-Type", wire.TypeNDJSON)
	if o.sse {
		h.Set("Content-Type", wire.TypeSSE)
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	o.w.WriteHeader(http.StatusOK)
}

// portion sends and flushes lines; the first and the last may be incomplete.
func (o *stream) portion(p portion) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inLine = p.open
	if !o.sse {
		return o.send(p.data)
	}
	o.buf = o.buf[:0]
	for seq, rest := p.first, p.data; len(rest) > 0; seq++ {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if seq > p.first || !p.continued {
			o.buf = fmt.Appendf(o.buf, "id: %d\nevent: %s\ndata: ", seq, kindOf(line))
		}
		if o.buf = append(o.buf, line...); whole {
			o.buf = append(o.buf, "\n\n"...)
		}
		rest = after
	}
	return o.send(o.buf)
}

// notice sends a message that is no event.
func (o *stream) notice(n wire.Notice) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := appendJSON(nil, n)
	if o.sse {
		line = append(append([]byte("event: "+n.Kind+"\ndata: "), line...), '\n')
	}
	return o.send(line)
}

// send writes and flushes. mu is held.
func (o *stream) send(b []byte) error {
	if o.err != nil {
		return o.err
	}
	o.writeHead()
	o.setWriteDeadline()
	if _, o.err = o.w.Write(b); o.err == nil {
		o.err = o.control.Flush()
	}
	if errors.Is(o.err, http.ErrNotSupported) {
		o.err = nil
	}
	return o.err
}

// clearDeadline removes the deadline: the connection may serve other requests.
func (o *stream) clearDeadline() { _ = o.control.SetWriteDeadline(time.Time{}) }

// started reports whether the head was sent. Later problems are sent as notices.
func (o *stream) started() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}

// keepAlive sends keep-alive comments once the stream has begun. stop waits until the last one is sent.
func (o *stream) keepAlive() (stop func()) {
	if !o.sse {
		return func() {}
	}
	return keepalive.Start(keepAliveInterval, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.begun && !o.inLine {
			_ = o.send([]byte(":\n\n")) // the next event returns the error
		}
	})
}

// live encodes the executor's events as lines for one reader. It drops events that arrive after the run was cancelled.
type live struct {
	to func(seq uint64, line []byte)

	mu   sync.Mutex
	last uint64
	over bool
	buf  []byte
}

func (l *live) event(ev sandbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.last = ev.Seq
	l.buf = appendEvent(l.buf[:0], &ev)
	l.to(ev.Seq, l.buf)
}

// end returns the number of the result, and drops all later events.
func (l *live) end() (next uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.last + 1
}

// events handles GET /v1/runs/{id}/events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	kind, err := Negotiate(r, wire.TypeNDJSON, wire.TypeSSE)
	if err != nil {
		return err
	}
	from, err := readFrom(r)
	if err != nil {
		return err
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if _, next := run.journal.kept(); kind == wire.TypeSSE && run.isOver() && from >= next {
		w.WriteHeader(http.StatusNoContent) // ends the reconnects of an EventSource
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	unhook := context.AfterFunc(s.closing, cancel) // streams do not keep the server from ending
	defer unhook()
	out := newStream(w, kind)
	out.mu.Lock()
	out.writeHead()
	_ = out.control.Flush() // the client sees the head at once
	out.mu.Unlock()
	defer out.clearDeadline()
	unhookRevoked := whenRevoked(r.Context(), out.shortenDeadline)
	defer unhookRevoked()
	stopKeepAlive := out.keepAlive()
	defer stopKeepAlive()
	s.replay(ctx, run, from, out.portion, out.notice)
	return nil
}

// replay sends the events of a run from that number to the last, and reports gaps. It returns whether it reached the end.
func (s *Server) replay(ctx context.Context, r *run, from uint64, write func(portion) error, notice func(wire.Notice) error) bool {
	reader := r.journal.newReader(from)
	defer reader.close()
	for {
		p, err := reader.readMore(ctx)
		var g *gap
		switch {
		case err == nil:
			if write(p) != nil {
				return false
			}
		case reader.within:
			return false // the client sees an incomplete line
		case errors.As(err, &g):
			if notice(wire.Notice{Kind: wire.KindGap, From: g.from, To: g.to}) != nil {
				return false
			}
		case errors.Is(err, io.EOF):
			if p := r.problem(); p != nil {
				return notice(wire.Notice{Kind: wire.KindError, Problem: p}) == nil
			}
			return true
		case ctx.Err() != nil:
			if p := revokedReason(ctx); p != nil {
				_ = notice(wire.Notice{Kind: wire.KindError, Problem: p})
			}
			return false
		default:
			_ = notice(wire.Notice{Kind: wire.KindError, Problem: s.failure(ctx, err)})
			return false
		}
	}
}

// readFrom returns the number of the first event to send: from the query, or after the client's Last-Event-ID.
func readFrom(r *http.Request) (uint64, error) {
	name, text, next := "Last-Event-ID", r.Header.Get("Last-Event-ID"), uint64(1)
	if text == "" {
		query, err := readQuery(r, "from")
		if err != nil {
			return 0, err
		}
		if name, text, next = "from", query.Get("from"), 0; text == "" {
			return 1, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, wire.WrongField(wire.CodeInvalid, name, "not the number of an event; give a number from 0 on")
	}
	return n + next, nil
}
