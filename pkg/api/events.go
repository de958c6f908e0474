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

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// eventStream writes events as lines, or as server-sent events.
type eventStream struct {
	*stream.Stream
	inLine bool // a line was sent in part
	buf    []byte
}

// newEventStream makes a stream for as long as a request lasts. The caller calls done when it has sent all.
func newEventStream(ctx context.Context, w http.ResponseWriter, kind string) (o *eventStream, done func()) {
	o = &eventStream{Stream: stream.New(w, kind)}
	unhookRevoked := whenRevoked(ctx, o.ShortenDeadline)
	stopKeepAlive := o.KeepAlive(func() bool { return !o.inLine })
	return o, func() {
		stopKeepAlive()
		unhookRevoked()
		o.ClearDeadline()
	}
}

// portion sends and flushes lines; the first and the last may be incomplete.
func (o *eventStream) portion(p portion) error {
	o.Lock()
	defer o.Unlock()
	o.inLine = p.open
	if o.Kind != wire.TypeSSE {
		return o.Send(p.data)
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
	return o.Send(o.buf)
}

// notice sends a message that is no event.
func (o *eventStream) notice(n wire.Notice) error {
	o.Lock()
	defer o.Unlock()
	line := wire.AppendJSON(nil, n)
	if o.Kind == wire.TypeSSE {
		line = append(append([]byte("event: "+n.Kind+"\ndata: "), line...), '\n')
	}
	return o.Send(line)
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
	return s.eventsOf(w, r, s.find)
}

// eventsOf sends the events of a run.
func (s *Server) eventsOf(w http.ResponseWriter, r *http.Request, find func(*http.Request) (*run, error)) error {
	kind, err := Negotiate(r, wire.TypeNDJSON, wire.TypeSSE)
	if err != nil {
		return err
	}
	from, err := readFrom(r)
	if err != nil {
		return err
	}
	run, err := find(r)
	if err != nil {
		return err
	}
	if _, next := run.journal.kept(); kind == wire.TypeSSE && run.isOver() && from >= next {
		w.WriteHeader(http.StatusNoContent) // ends the reconnects of an EventSource
		return nil
	}
	s.stream(w, r, kind, run, from)
	return nil
}

// stream sends the events of a run from a number on, until its end or that of the request.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, kind string, run *run, from uint64) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	unhook := context.AfterFunc(s.closing, cancel) // streams do not keep the server from ending
	defer unhook()
	out, done := newEventStream(r.Context(), w, kind)
	defer done()
	out.Lock()
	_ = out.Send(nil) // the client sees the head at once
	out.Unlock()
	s.replay(ctx, run, from, out.portion, out.notice)
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
			if p := r.current().Problem; p != nil {
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
