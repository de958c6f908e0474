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

// Running is a run whose events are being read.
type Running struct {
	// ID names the run at the server. Header is what stood before the events.
	ID     string
	Header Header

	client *Client
	body   io.ReadCloser
	lines  *bufio.Reader
	last   uint64 // sequence number of the last event
	over   bool   // there was a result, or the reason why there is none
}

func newRunning(c *Client, resp *Response) *Running {
	return &Running{ID: resp.Header.Get(wire.HeaderRunID), Header: resp.Header, client: c, body: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10)}
}

// Gap says that events are missing, which the server no longer keeps. Those after it follow.
type Gap struct{ From, To uint64 }

func (g *Gap) Error() string {
	return fmt.Sprintf("the events %d to %d are no longer kept", g.From, g.To)
}

// ErrBroken: the connection was lost before there was a result. Whether the program ran, nobody knows.
var ErrBroken = errors.New("the connection to the server was lost")

// Next gives the next event; the last one has a result. It is io.EOF after that, a *Problem where there is no result, a *Gap where events
// are missing, and wraps ErrBroken when the stream ends before its end.
func (r *Running) Next() (executor.Event, error) {
	if r.over {
		return executor.Event{}, io.EOF
	}
	for {
		line, err := readBounded(r.lines)
		if err != nil {
			r.over = true
			return executor.Event{}, fmt.Errorf("%w: %w", ErrBroken, midway(err))
		}
		if len(bytes.TrimSpace(line)) == 0 { // a sign of life
			continue
		}
		ev, skip, err := r.read(line)
		if skip {
			continue
		}
		return ev, err
	}
}

// read makes an event of a line, or of a message.
func (r *Running) read(line []byte) (ev executor.Event, skip bool, err error) {
	// Events begin with their number, and most lines are events; to look twice at a result would cost the most.
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
		return ev, false, fmt.Errorf("the server sent what is no event: %w", err)
	}
	if ev.Kind == executor.EventResult {
		r.over = true
		if ev.Result == nil {
			return ev, false, errors.New("the server sent an end without a result")
		}
	}
	r.last = ev.Seq
	return ev, false, nil
}

func noticeOf(line []byte) *wire.Notice {
	if bytes.HasPrefix(line, []byte(`{"seq":`)) {
		return nil
	}
	return wire.NoticeOf(line)
}

// readBounded reads a line without its end. One that is cut off by the end of the stream is none.
func readBounded(r *bufio.Reader) ([]byte, error) {
	var whole []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && whole == nil {
			return part[:len(part)-1], nil
		}
		if len(whole)+len(part) > maxMessage {
			return nil, fmt.Errorf("a line has more than %d MiB", maxMessage>>20)
		}
		whole = append(whole, part...)
		switch {
		case err == nil:
			return whole[:len(whole)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, midway(err)
		}
	}
}

// Cancel ends the program. Its result follows.
func (r *Running) Cancel(ctx context.Context) error {
	if r.ID == "" {
		return errors.New("the server has not said what the run is called")
	}
	return r.client.Cancel(ctx, r.ID)
}

// Close stops listening, which ends a program that still runs.
func (r *Running) Close() error { return r.body.Close() }

// Times to wait before a lost connection is taken up again, and how often it is tried without anything new.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	mostTries  = 12 // half a minute in all
)

// Events yields what has happened in a run that was started, from a sequence number on, and what happens then; the last event carries the
// result. It comes back after a lost connection and asks for what it missed. Events that are no longer kept are a *Gap, after which it goes on.
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

// follow reads events over one connection. It returns nil when there is nothing more to come, or nobody wants it.
func (c *Client) follow(ctx context.Context, id string, from *uint64, yield func(executor.Event, error) bool) error {
	resp, err := c.do(ctx, &Request{
		Method: "GET", Path: query(wire.PathRuns+"/"+url.PathEscape(id)+"/events", *from), Header: Header{"Accept": wire.TypeNDJSON}, Patience: c.Patience,
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
		case errors.As(err, &problem): // the end, and why there is no result
			yield(ev, err)
			return nil
		case err != nil:
			return err
		case ev.Seq < *from: // it has been seen
		default:
			*from = ev.Seq + 1
			if !yield(ev, nil) {
				return nil
			}
		}
	}
}
