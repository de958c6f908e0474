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
	// ErrNoServer: the connection was refused, or the socket does not exist.
	ErrNoServer = errors.New("no server listens there")
	// ErrNotSent: the server can not have received the whole request, and has done nothing.
	ErrNotSent = errors.New("the request was not sent")
	// ErrOtherUser: the listening process belongs to another user.
	ErrOtherUser = errors.New("the server belongs to another user")
	// ErrIdleTimeout: the server has sent nothing for longer than the request's IdleTimeout.
	ErrIdleTimeout = errors.New("the server sends nothing any more")
)

// Unix is the transport to a server on a unix socket. Set Path before use.
type Unix struct {
	Path string
	// Trusted decides whether the client uses a server, by the owner of the listening process; nil means OwnOrRoot. Requests and answers have
	// private code and data, so the client checks the kernel's peer credentials before it sends a byte.
	Trusted func(Peer) error

	mu   sync.Mutex
	idle []*conn
}

// Peer is the process that listens at the other end of a socket.
type Peer = peer.Peer

const (
	maxIdle = 4
	// dialTimeout bounds the connect, which a running server accepts at once.
	dialTimeout = 2 * time.Second
	// socketHost is the Host header: a unix socket has no host name.
	socketHost = "localhost"
)

// OwnOrRoot returns nil for servers of this user and of root, and an error that wraps ErrOtherUser for all others.
func OwnOrRoot(p Peer) error {
	if p.UID == 0 || p.UID == os.Geteuid() && p.UID >= 0 {
		return nil
	}
	return fmt.Errorf("%w: uid %d", ErrOtherUser, p.UID)
}

// conn is a connection with one request at a time.
type conn struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	used bool // it has served a request
}

func (u *Unix) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // the rest repeats the path
		}
		return nil, fmt.Errorf("%w: %w: %w", ErrNotSent, ErrNoServer, err)
	}
	trusted := u.Trusted
	if trusted == nil {
		trusted = OwnOrRoot
	}
	credentials, err := peer.Of(c)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrOtherUser, err) // an unknown peer is not trusted
	} else {
		err = trusted(credentials)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, maxLine), w: bufio.NewWriterSize(c, maxLine)}, nil
}

// Connect opens a connection for the next request, unless there is an idle one.
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

// Close closes idle connections.
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

// RoundTrip sends a request. A GET or HEAD without a body is sent again if the server closed the idle connection meanwhile.
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

// errHungUp: the server closed the connection before it answered.
var errHungUp = errors.New("the server has closed the connection")

// exchange sends a request over a connection, which belongs to the answer from then on.
func (u *Unix) exchange(ctx context.Context, c *conn, r *Request) (*Response, error) {
	x := &exchange{u: u, c: c, ctx: ctx, idleTimeout: r.IdleTimeout, sent: make(chan error, 1)}
	// A deadline in the past ends blocked reads and writes.
	x.release = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err := writeHead(c.w, socketHost, r); err != nil {
		x.discard()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, x.describe(err))
	}
	send := func() { x.sent <- writeBody(c.w, r) }
	if r.Body == nil {
		send()
	} else {
		go send() // the server may answer before it has read the whole body, and then stop reading
	}
	x.extendDeadline()
	status, header, err := readHead(c.r)
	if err == nil {
		x.body, x.reusable, err = bodyOf(c.r, r.Method, status, header)
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // the server closed before it read the request
			err = errHungUp
		}
		err = x.describe(err)
		x.discard()
		if r.Length >= 0 { // a body of unknown length may never end
			if failed := <-x.sent; failed != nil && errors.Is(err, errHungUp) {
				err = fmt.Errorf("%w: %w", ErrNotSent, err) // the request was still being written
			}
		}
		return nil, err
	}
	return &Response{Status: status, Header: header, Body: x}, nil
}

// exchange is a request under way and the body of its answer.
type exchange struct {
	u           *Unix
	c           *conn
	ctx         context.Context //nolint:containedctx // of the request, for as long as the answer is read
	idleTimeout time.Duration
	release     func() bool
	body        io.Reader
	reusable    bool // the connection can serve another request after the body
	sent        chan error

	mu    sync.Mutex
	ended bool
}

// extendDeadline sets the read deadline for the next read.
func (x *exchange) extendDeadline() {
	if x.idleTimeout > 0 && x.ctx.Err() == nil {
		_ = x.c.SetReadDeadline(time.Now().Add(x.idleTimeout))
		if x.ctx.Err() != nil { // ctx ended meanwhile; restore the deadline that it set
			_ = x.c.SetDeadline(time.Unix(1, 0))
		}
	}
}

// describe replaces the error of a cancelled or timed-out read or write by its cause.
func (x *exchange) describe(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case x.ctx.Err() != nil:
		return context.Cause(x.ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w (for %v)", ErrIdleTimeout, x.idleTimeout)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Read reads the answer.
func (x *exchange) Read(p []byte) (int, error) {
	x.extendDeadline()
	n, err := x.body.Read(p)
	if errors.Is(err, io.EOF) {
		x.finish()
		return n, io.EOF
	}
	return n, x.describe(err)
}

// Close ends the exchange. If the answer was not read to its end, Close closes the connection, which tells the server that its reader is
// gone.
func (x *exchange) Close() error {
	x.discard()
	return nil
}

// finish returns the connection to the pool of idle ones after the end of the answer, if the request was sent completely.
func (x *exchange) finish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	select {
	case err := <-x.sent:
		x.sent <- err
		if err == nil && x.reusable && x.c.r.Buffered() == 0 && x.release() {
			x.ended = true
			_ = x.c.SetDeadline(time.Time{})
			x.c.used = true
			x.u.put(x.c)
			return
		}
	default: // the server answered without reading the whole request
	}
	x.drop()
}

func (x *exchange) discard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		x.drop()
	}
}

// drop closes the connection. The caller holds mu.
func (x *exchange) drop() {
	x.ended = true
	x.release()
	_ = x.c.Close()
}
