package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/peer"
)

// Errors of transports; test with errors.Is.
var (
	// ErrNoServer: nobody listens there.
	ErrNoServer = errors.New("no server listens there")
	// ErrNotSent: the server can not have seen the whole of the request, and has done nothing.
	ErrNotSent = errors.New("the request was not sent")
	// ErrStranger: whoever listens there is somebody else.
	ErrStranger = errors.New("it belongs to somebody else")
	// ErrSilent: the server has not said anything for longer than it should take.
	ErrSilent = errors.New("the server does not say anything any more")
)

// Unix is the transport to a server that listens on a unix socket. Its zero value needs a Path.
type Unix struct {
	Path string
	// Trusted says whose server may be talked to; nil is the user's own, and root's. What is asked of a server and what it
	// answers is somebody's code and data, so this is decided by what the kernel says of who listens, before a byte is sent (A2).
	Trusted func(Peer) error

	mu   sync.Mutex
	idle []*conn
}

// Peer is who listens at the other end of a socket.
type Peer = peer.Peer

const (
	maxIdle = 4
	// dialPatience: a server that is there takes connections at once.
	dialPatience = 2 * time.Second
	// hostOfSockets is who is asked for: a socket has no name.
	hostOfSockets = "localhost"
)

// OwnOrRoot trusts the user's own servers, and root's.
func OwnOrRoot(p Peer) error {
	if p.UID == 0 || p.UID == os.Geteuid() && p.UID >= 0 {
		return nil
	}
	return fmt.Errorf("%w: uid %d", ErrStranger, p.UID)
}

// conn is a connection; one request at a time.
type conn struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	used bool // it has served a request
}

func (u *Unix) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // what comes before it names the path twice
		}
		return nil, fmt.Errorf("%w: %w: %w", ErrNotSent, ErrNoServer, err)
	}
	trusted := u.Trusted
	if trusted == nil {
		trusted = OwnOrRoot
	}
	who, err := peer.Of(c)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrStranger, err) // nobody is trusted whom we do not know
	} else {
		err = trusted(who)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, maxLine), w: bufio.NewWriterSize(c, maxLine)}, nil
}

// Connect makes a connection for the next request, unless there is one.
func (u *Unix) Connect(ctx context.Context) error {
	c, err := u.take(ctx)
	if err == nil {
		u.put(c)
	}
	return err
}

func (u *Unix) take(ctx context.Context) (*conn, error) {
	u.mu.Lock()
	if n := len(u.idle); n > 0 {
		c := u.idle[n-1]
		u.idle = u.idle[:n-1]
		u.mu.Unlock()
		return c, nil
	}
	u.mu.Unlock()
	return u.dial(ctx)
}

func (u *Unix) put(c *conn) {
	u.mu.Lock()
	if len(u.idle) < maxIdle {
		u.idle = append(u.idle, c)
		c = nil
	}
	u.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// Close closes the connections that nobody uses.
func (u *Unix) Close() error {
	u.mu.Lock()
	idle := u.idle
	u.idle = nil
	u.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// RoundTrip sends a request. One that asks only, and goes to a connection which the server has closed meanwhile, is sent once more.
func (u *Unix) RoundTrip(ctx context.Context, r *Request) (*Response, error) {
	for {
		c, err := u.take(ctx)
		if err != nil {
			return nil, err
		}
		again := c.used && r.Body == nil && (r.Method == "GET" || r.Method == "HEAD")
		resp, err := u.exchange(ctx, c, r)
		if again && errors.Is(err, errHungUp) && ctx.Err() == nil {
			continue
		}
		return resp, err
	}
}

// errHungUp is a connection that has ended before an answer began.
var errHungUp = errors.New("the server has closed the connection")

// exchange sends a request over a connection, which is the answer's from then on.
func (u *Unix) exchange(ctx context.Context, c *conn, r *Request) (*Response, error) {
	x := &exchange{u: u, c: c, ctx: ctx, patience: r.Patience, sent: make(chan error, 1)}
	// A deadline in the past ends reads and writes that wait.
	x.release = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err := writeHead(c.w, hostOfSockets, r); err != nil {
		x.abandon()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, x.explain(err))
	}
	send := func() { x.sent <- writeBody(c.w, r) }
	if r.Body == nil {
		send()
	} else {
		go send() // the server may answer before it has read everything, and read no more after that
	}
	x.waitNoLonger()
	status, header, err := readHead(c.r)
	if err == nil {
		x.body, x.whole, err = bodyOf(c.r, r.Method, status, header)
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // it went before, or without, reading what was sent
			err = errHungUp
		}
		err = x.explain(err)
		x.abandon()
		if r.Length >= 0 { // what is sent while it is read may be waited for, for ever
			if failed := <-x.sent; failed != nil && errors.Is(err, errHungUp) {
				err = fmt.Errorf("%w: %w", ErrNotSent, err) // it was still being written
			}
		}
		return nil, err
	}
	return &Response{Status: status, Header: header, Body: x}, nil
}

// exchange is a request under way, and the body of its answer.
type exchange struct {
	u        *Unix
	c        *conn
	ctx      context.Context //nolint:containedctx // of the request, for as long as the answer is read
	patience time.Duration
	release  func() bool
	body     io.Reader
	whole    bool // after its end the connection can be used again
	sent     chan error

	mu    sync.Mutex
	ended bool
}

// waitNoLonger bounds the next wait.
func (x *exchange) waitNoLonger() {
	if x.patience > 0 && x.ctx.Err() == nil {
		_ = x.c.SetReadDeadline(time.Now().Add(x.patience))
		if x.ctx.Err() != nil { // it has ended meanwhile, and its deadline was the earlier one
			_ = x.c.SetDeadline(time.Unix(1, 0))
		}
	}
}

// explain says why a read or write was cut short, where we know.
func (x *exchange) explain(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case x.ctx.Err() != nil:
		return context.Cause(x.ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w (for %v)", ErrSilent, x.patience)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Read reads the answer.
func (x *exchange) Read(p []byte) (int, error) {
	x.waitNoLonger()
	n, err := x.body.Read(p)
	if errors.Is(err, io.EOF) {
		x.finish()
		return n, io.EOF
	}
	return n, x.explain(err)
}

// Close ends the exchange. One whose answer was not read to its end takes the connection with it: that is how a server hears that
// nobody listens any more.
func (x *exchange) Close() error {
	x.abandon()
	return nil
}

// finish gives the connection back after the end of the answer, if the request was sent in full as well.
func (x *exchange) finish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	select {
	case err := <-x.sent:
		x.sent <- err
		if err == nil && x.whole && x.c.r.Buffered() == 0 && x.release() {
			x.ended = true
			_ = x.c.SetDeadline(time.Time{})
			x.c.used = true
			x.u.put(x.c)
			return
		}
	default: // the answer did not need the rest of the request
	}
	x.drop()
}

func (x *exchange) abandon() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		x.drop()
	}
}

// drop closes the connection; mu is held.
func (x *exchange) drop() {
	x.ended = true
	x.release()
	_ = x.c.Close()
}
