package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// Running is a run whose events the caller reads. Make one with Client.Open.
type Running struct {
	// ID is the run's id at the server. Header is that of the answer.
	ID     string
	Header Header

	client *Client
	body   io.ReadCloser
	lines  *bufio.Reader

	seen func(line []byte) // is given each line, which is valid until the next one; or nil

	over bool // a result or a problem was read
}

func newRunning(c *Client, resp *Response) *Running {
	return &Running{ID: resp.Header.Get(wire.HeaderRunID), Header: resp.Header, client: c, body: resp.Body,
		lines: bufio.NewReaderSize(resp.Body, 64<<10)}
}

// Gap reports events that the server no longer keeps. The events after them follow.
type Gap struct{ From, To uint64 }

func (g *Gap) Error() string {
	return fmt.Sprintf("events %d to %d: no longer kept by the server", g.From, g.To)
}

// ErrBroken: the connection was lost before a result arrived. It is unknown whether the program ran.
var ErrBroken = errors.New("the connection to the server was lost")

// Next blocks for the next event; the last one has a result, after which Next returns io.EOF. The error is a *Problem where there is no
// result, a *Gap where events are missing, and wraps ErrBroken when the stream ends too early.
func (r *Running) Next() (executor.Event, error) {
	if r.over {
		return executor.Event{}, io.EOF
	}
	for {
		line, err := readBounded(r.lines)
		if err != nil {
			r.over = true
			return executor.Event{}, fmt.Errorf("%w: %w", ErrBroken, noEOF(err))
		}
		if len(bytes.TrimSpace(line)) == 0 { // keep-alive
			continue
		}
		if r.seen != nil {
			r.seen(line)
		}
		ev, skip, err := r.read(line)
		if skip {
			continue
		}
		return ev, err
	}
}

// read decodes a line, or a message, to an event.
func (r *Running) read(line []byte) (ev executor.Event, skip bool, err error) {
	// Events begin with their number. Most lines are events; do not decode a large result twice.
	if n := noticeOf(line); n != nil {
		switch {
		case n.Kind == wire.KindGap:
			return ev, false, &Gap{n.From, n.To}
		case n.Kind == wire.KindError && n.Problem != nil:
			r.over = true
			return ev, false, &Problem{Problem: *n.Problem}
		}
		return ev, true, nil
	}
	if ev, err = wire.DecodeEvent(line); err != nil {
		r.over = true
		return ev, false, fmt.Errorf("server event: decode: %w", err)
	}
	if ev.Kind == executor.EventResult {
		r.over = true
		if ev.Result == nil {
			return ev, false, errors.New("server event: the last event has no result")
		}
	}

	return ev, false, nil
}

func noticeOf(line []byte) *wire.Notice {
	if bytes.HasPrefix(line, []byte(`{"seq":`)) {
		return nil
	}
	return wire.NoticeOf(line)
}

// readBounded reads a line without its line end. A line that the end of the stream cuts off is an error.
func readBounded(r *bufio.Reader) ([]byte, error) {
	var whole []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && whole == nil {
			return part[:len(part)-1], nil
		}
		if len(whole)+len(part) > maxMessage {
			return nil, fmt.Errorf("line: larger than %d MiB", maxMessage>>20)
		}
		whole = append(whole, part...)
		switch {
		case err == nil:
			return whole[:len(whole)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, noEOF(err)
		}
	}
}

// Cancel ends the program. Next then returns its result.
func (r *Running) Cancel(ctx context.Context) error {
	if r.ID == "" {
		return errors.New("cancel: the server has not sent the run's id")
	}
	return r.client.Cancel(ctx, r.ID)
}

// Close closes the stream. The server then ends a program that still runs.
func (r *Running) Close() error { return r.body.Close() }

// Pauses before a lost connection is opened again, and how often that is tried without a new event.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	mostTries  = 12 // half a minute in all
)

// Events yields the events of a started run from a sequence number on, past ones first; the last event has the result. After a lost
// connection it reconnects and requests the missed events. Events that the server no longer keeps are a *Gap, after which it continues.
func (c *Client) Events(ctx context.Context, id string, from uint64) iter.Seq2[executor.Event, error] {
	return func(yield func(executor.Event, error) bool) {
		pause := firstPause
		for tries := 0; ; {
			err := c.follow(ctx, id, &from, func(ev executor.Event, err error) bool {
				tries, pause = 0, firstPause
				return yield(ev, err)
			})
			var problem *Problem
			switch {
			case err == nil:
				return
			case ctx.Err() != nil:
				yield(executor.Event{}, context.Cause(ctx))
				return
			case errors.As(err, &problem) && !problem.Temporary(), tries >= mostTries:
				yield(executor.Event{}, err)
				return
			}
			tries++
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// follow reads events over one connection. It returns nil after the last event, or when yield returns false.
func (c *Client) follow(ctx context.Context, id string, from *uint64, yield func(executor.Event, error) bool) error {
	resp, err := c.do(ctx, &Request{
		Method: "GET", Path: query(wire.PathRuns+"/"+url.PathEscape(id)+"/events", *from), Header: Header{"Accept": wire.TypeNDJSON},
		IdleTimeout: c.IdleTimeout,
	})
	if err != nil {
		return err
	}
	r := newRunning(c, resp)
	defer r.Close()
	for {
		ev, err := r.Next()
		var gap *Gap
		var problem *Problem
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &gap):
			if !yield(ev, err) {
				return nil
			}
			*from = gap.To + 1
		case errors.As(err, &problem): // the run ended without a result
			yield(ev, err)
			return nil
		case err != nil:
			return err
		case ev.Seq < *from: // already yielded
		default:
			*from = ev.Seq + 1
			if !yield(ev, nil) {
				return nil
			}
		}
	}
}
