package containerproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
)

// Kind is the first byte of a frame.
type Kind byte

// The kinds of frame. The first four are the streams' own; no handler sees them.
const (
	KindData   Kind = iota + 1
	KindCredit      // the number of further bytes that may be sent
	KindClose       // the sender has ended the stream
	KindStop        // the reader wants no more data

	KindSetup
	KindReady
	KindExec
	KindStarted
	KindFailed
	KindExited
	KindSignal
	KindResize
	KindKill
	KindFinish
	KindFinished
	KindSample
	KindSampled
	KindRefusal
	KindCreate
	KindOpen
	KindOpened
	KindList
	KindEntries
	KindRemove
	KindDone
	KindBeat
	KindMeasure // measure again; the answer is another ready
	kindEnd
)

// Version of the protocol. Both ends must have the same.
const Version = 5

// Bounds.
const (
	headerSize = 9
	MaxBody    = 4 << 20 // arguments and environment are the longest, at most 1 MiB
	MaxData    = 32 << 10
	Window     = 256 << 10 // unacknowledged bytes of one stream
)

// ErrMalformed is the error of a peer that violates the protocol.
var ErrMalformed = errors.New("malformed frame")

// ErrClosed is the error of streams whose connection has ended.
var ErrClosed = errors.New("the connection to the container's helper has ended")

// Conn carries frames and streams. Make it with NewConn. It is safe for concurrent use.
type Conn struct {
	writing sync.Mutex
	w       io.Writer
	out     []byte // guarded by writing

	mu      sync.Mutex
	inlets  map[uint32]*Inlet
	outlets map[uint32]*Outlet
	err     error // why it has ended
}

// NewConn writes frames to w. Serve reads them.
func NewConn(w io.Writer) *Conn {
	return &Conn{w: w, inlets: map[uint32]*Inlet{}, outlets: map[uint32]*Outlet{}}
}

// Send writes one frame. It blocks while the peer does not read.
func (c *Conn) Send(kind Kind, number uint32, body []byte) error {
	if len(body) > MaxBody {
		return fmt.Errorf("frame: send: %d bytes are more than the maximum of %d", len(body), MaxBody)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	// One write per frame: the other end wakes once.
	c.out = append(c.out[:0], byte(kind))
	c.out = binary.LittleEndian.AppendUint32(c.out, number)
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(len(body)))
	c.out = append(c.out, body...)
	_, err := c.w.Write(c.out)
	if cap(c.out) > 2*MaxData {
		c.out = nil // do not keep a large buffer
	}
	return err
}

// Serve reads frames until r ends, and passes those that belong to no stream to handle. It returns nil at the end of r. handle must
// not block or keep body.
func (c *Conn) Serve(r io.Reader, handle func(kind Kind, number uint32, body []byte) error) (err error) {
	defer func() { c.fail(err) }()
	var header [headerSize]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		kind, number, length := Kind(header[0]), binary.LittleEndian.Uint32(header[1:]), binary.LittleEndian.Uint32(header[5:])
		if kind == 0 || kind >= kindEnd || length > MaxBody || kind == KindData && length > MaxData || kind == KindCredit && length != 4 {
			return ErrMalformed
		}
		if int(length) > cap(buf) || cap(buf) > 4*MaxData {
			buf = make([]byte, length, max(int(length), MaxData))
		}
		buf = buf[:length]
		if _, err := io.ReadFull(r, buf); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		switch kind {
		case KindData, KindCredit, KindClose, KindStop:
			err = c.stream(kind, number, buf)
		default:
			err = handle(kind, number, buf)
		}
		if err != nil {
			return err
		}
	}
}

// stream handles a frame of a stream. A frame for an unknown stream is late, and ignored.
func (c *Conn) stream(kind Kind, number uint32, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind {
	case KindData:
		if in := c.inlets[number]; in != nil {
			if len(in.buf)-in.from+len(body) > Window {
				return ErrMalformed
			}
			if in.from > 0 && len(in.buf)+len(body) > cap(in.buf) { // move the unread bytes to the front
				in.buf = in.buf[:copy(in.buf, in.buf[in.from:])]
				in.from = 0
			}
			in.buf = append(in.buf, body...)
			in.wake.Broadcast()
		}
	case KindClose:
		if in := c.inlets[number]; in != nil {
			in.ended = true
			in.wake.Broadcast()
		}
	case KindCredit:
		if out := c.outlets[number]; out != nil {
			out.credit += int(binary.LittleEndian.Uint32(body))
			if out.credit > Window || out.credit < 0 {
				return ErrMalformed
			}
			out.wake.Broadcast()
		}
	case KindStop:
		if out := c.outlets[number]; out != nil {
			out.stopped = true
			out.wake.Broadcast()
		}
	}
	return nil
}

// fail ends every stream.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = errors.Join(ErrClosed, err)
	}
	for _, in := range c.inlets {
		in.wake.Broadcast()
	}
	for _, out := range c.outlets {
		out.wake.Broadcast()
	}
}

// Inlet is the reading end of a stream.
type Inlet struct {
	c      *Conn
	number uint32
	wake   *sync.Cond

	// guarded by Conn.mu
	buf           []byte
	from          int // bytes of buf before it were read
	ended, closed bool
	owed          int // bytes read, for which no credit was sent yet
}

// Inlet opens the reading end of a stream. It must be open before the peer sends.
func (c *Conn) Inlet(number uint32) *Inlet {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &Inlet{c: c, number: number, wake: sync.NewCond(&c.mu)}
	c.inlets[number] = in
	return in
}

// Read blocks until there is data. At the end of the stream it returns io.EOF; if the connection ends first, ErrClosed.
func (in *Inlet) Read(p []byte) (int, error) {
	c := in.c
	c.mu.Lock()
	for len(in.buf) == in.from && !in.ended && !in.closed && c.err == nil {
		in.wake.Wait()
	}
	if in.closed {
		c.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	if len(in.buf) == in.from {
		defer c.mu.Unlock()
		if in.ended {
			return 0, io.EOF
		}
		return 0, c.err
	}
	n := copy(p, in.buf[in.from:])
	if in.from += n; in.from == len(in.buf) {
		in.buf, in.from = in.buf[:0], 0
	}
	grant := 0
	if in.owed += n; in.owed >= Window/4 && !in.ended {
		grant, in.owed = in.owed, 0
	}
	c.mu.Unlock()
	if grant > 0 {
		_ = c.Send(KindCredit, in.number, binary.LittleEndian.AppendUint32(nil, uint32(grant))) // the next Read returns the error
	}
	return n, nil
}

// Close stops the stream and notifies the sender. It may be called twice.
func (in *Inlet) Close() error {
	c := in.c
	c.mu.Lock()
	tell := !in.closed && !in.ended && c.err == nil
	in.closed = true
	in.buf, in.from = nil, 0
	delete(c.inlets, in.number)
	in.wake.Broadcast()
	c.mu.Unlock()
	if tell {
		_ = c.Send(KindStop, in.number, nil)
	}
	return nil
}

// Outlet is the writing end of a stream.
type Outlet struct {
	c      *Conn
	number uint32
	wake   *sync.Cond
	order  sync.Mutex // of writers

	// guarded by Conn.mu
	credit          int
	stopped, closed bool
}

// Outlet opens the writing end of a stream.
func (c *Conn) Outlet(number uint32) *Outlet {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &Outlet{c: c, number: number, wake: sync.NewCond(&c.mu), credit: Window}
	c.outlets[number] = out
	return out
}

// Write sends p, and blocks while the peer has no room for it. It returns EPIPE if the peer wants no more.
func (out *Outlet) Write(p []byte) (n int, err error) {
	out.order.Lock()
	defer out.order.Unlock()
	c := out.c
	for len(p) > 0 {
		c.mu.Lock()
		for out.credit == 0 && !out.stopped && !out.closed && c.err == nil {
			out.wake.Wait()
		}
		switch {
		case out.closed:
			err = io.ErrClosedPipe
		case out.stopped:
			err = syscall.EPIPE
		case c.err != nil:
			err = c.err
		}
		some := min(len(p), out.credit, MaxData)
		if err == nil {
			out.credit -= some
		}
		c.mu.Unlock()
		if err != nil {
			return n, err
		}
		if err := c.Send(KindData, out.number, p[:some]); err != nil {
			return n, err
		}
		n, p = n+some, p[some:]
	}
	return n, nil
}

// Close ends the stream, and a blocked Write. It may be called twice.
func (out *Outlet) Close() error {
	c := out.c
	c.mu.Lock()
	if out.closed {
		c.mu.Unlock()
		return nil
	}
	out.closed = true
	delete(c.outlets, out.number)
	out.wake.Broadcast()
	failed := c.err
	c.mu.Unlock()
	if failed != nil {
		return failed
	}
	return c.Send(KindClose, out.number, nil)
}
