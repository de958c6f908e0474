package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/keepalive"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Patience of streams.
const (
	beatEvery = 15 * time.Second // a word that nothing has happened, so that nobody in between gives up
	stallMost = 2 * time.Minute  // a client that takes nothing for so long is gone
)

// stream is an answer of events: lines, or the same as server-sent events. mu is for the beat, which comes from aside.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sse     bool

	mu     sync.Mutex
	begun  bool
	inLine bool // a line was sent in part
	err    error
	buf    []byte

	deadline sync.Mutex // for what comes while mu is held by one who writes
	leaving  bool
}

// allow gives the client the time it may take for what is written next.
func (o *stream) allow() {
	o.deadline.Lock()
	defer o.deadline.Unlock()
	patience := stallMost
	if o.leaving {
		patience = farewell
	}
	_ = o.control.SetWriteDeadline(time.Now().Add(patience)) // there is no connection in some tests
}

// hurry has a client that is sent away take the rest soon, or not at all.
func (o *stream) hurry() {
	o.deadline.Lock()
	o.leaving = true
	o.deadline.Unlock()
	o.allow()
}

func newStream(w http.ResponseWriter, kind string) *stream {
	return &stream{w: w, control: http.NewResponseController(w), sse: kind == wire.TypeSSE}
}

// begin sends the head. Called with mu held.
func (o *stream) begin() {
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
	h.Set("X-Accel-Buffering", "no") // for proxies that would collect
	o.w.WriteHeader(http.StatusOK)
}

// write sends lines, which are numbered from first on, at once.
func (o *stream) write(first uint64, lines []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sse {
		return o.send(lines)
	}
	o.buf = o.buf[:0]
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		o.buf = append(appendField(o.buf, first, kindOf(line)), line...)
		o.buf = append(o.buf, "\n\n"...)
		lines = rest
		first++
	}
	return o.send(o.buf)
}

// appendField appends what stands before an event's line among server-sent events.
func appendField(b []byte, seq uint64, kind string) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, "\nevent: "...)
	b = append(b, kind...)
	return append(b, "\ndata: "...)
}

// portion sends lines that a reader has read, of which the first and the last may be parts.
func (o *stream) portion(p portion) error {
	if !p.continued && !p.open {
		return o.write(p.first, p.data)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inLine = p.open
	if !o.sse {
		return o.send(p.data)
	}
	o.buf = o.buf[:0]
	if !p.continued {
		o.buf = appendField(o.buf, p.first, kindOf(p.data))
	}
	o.buf = append(o.buf, p.data...)
	if !p.open {
		o.buf = append(o.buf, '\n')
	}
	return o.send(o.buf)
}

// writeResult sends the last line.
func (o *stream) writeResult(seq uint64, line *resultLine) error {
	return line.send(seq, o.portion)
}

// notice sends what is no event.
func (o *stream) notice(n wire.Notice) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := appendJSON(nil, n)
	if o.sse {
		line = append(append([]byte("event: "+n.Kind+"\ndata: "), line...), '\n')
	}
	return o.send(line)
}

// send is called with mu held.
func (o *stream) send(b []byte) error {
	if o.err != nil {
		return o.err
	}
	o.begin()
	o.allow()
	if _, o.err = o.w.Write(b); o.err == nil {
		o.err = o.control.Flush()
	}
	if errors.Is(o.err, http.ErrNotSupported) {
		o.err = nil
	}
	return o.err
}

// end takes back the deadline: the connection may serve others.
func (o *stream) end() { _ = o.control.SetWriteDeadline(time.Time{}) }

// started reports whether the head was sent: from then on, problems are notices.
func (o *stream) started() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}

// beats sends comments while nothing happens, once the stream has begun. stop waits until that is over.
func (o *stream) beats() (stop func()) {
	if !o.sse {
		return func() {}
	}
	return keepalive.Start(beatEvery, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.begun && !o.inLine {
			_ = o.send([]byte(":\n\n")) // the next event hears of it
		}
	})
}

// live turns the engine's events into lines for one listener. What was under way when a run was called off may come late: it is dropped.
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

// end says how the result is numbered, and lets nothing in any more.
func (l *live) end() (next uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.last + 1
}

// events is GET /v1/runs/{id}/events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	kind, err := negotiate(r, wire.TypeNDJSON, wire.TypeSSE)
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
		w.WriteHeader(http.StatusNoContent) // which keeps an EventSource from asking again
		return nil
	}
	ctx, stop := s.until(r.Context())
	defer stop()
	out := newStream(w, kind)
	out.mu.Lock()
	out.begin()
	_ = out.control.Flush() // the client knows that it is listened to
	out.mu.Unlock()
	defer out.end()
	welcome := whenUnwelcome(r.Context(), out.hurry)
	defer welcome()
	quiet := out.beats()
	defer quiet()
	s.replay(ctx, run, from, out.portion, out.notice)
	return nil
}

// until is a context that ends with the server, too: a stream must not keep it from ending.
func (s *Server) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.closing, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}

// replay passes the events of a run on, from that number to the last, and says what is missing. It reports whether it got to the end.
func (s *Server) replay(ctx context.Context, r *run, from uint64, write func(portion) error, notice func(wire.Notice) error) bool {
	reader := r.journal.from(from)
	defer reader.close()
	for {
		p, err := reader.more(ctx)
		var g *gap
		switch {
		case err == nil:
			if write(p) != nil {
				return false
			}
		case reader.within:
			return false // the client sees that the line does not end
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
			if p := sentAway(ctx); p != nil {
				_ = notice(wire.Notice{Kind: wire.KindError, Problem: p})
			}
			return false
		default:
			_ = notice(wire.Notice{Kind: wire.KindError, Problem: s.failure(ctx, err)})
			return false
		}
	}
}

// readFrom is the number of the first event that a client wants: what it asks for, or the one after the last it had.
func readFrom(r *http.Request) (uint64, error) {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		n, err := readSeq(last)
		if err != nil {
			return 0, wrongField(wire.CodeInvalid, "Last-Event-ID", "%s", err)
		}
		return n + 1, nil
	}
	query, err := readQuery(r, "from")
	if err != nil {
		return 0, err
	}
	from := query.Get("from")
	if from == "" {
		return 1, nil
	}
	n, err := readSeq(from)
	if err != nil {
		return 0, wrongField(wire.CodeInvalid, "from", "%s", err)
	}
	return n, nil
}

// readSeq reads the number of an event.
func readSeq(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || text[0] == '+' {
		return 0, errors.New("it is not the number of an event")
	}
	return n, nil
}
