package client

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The client side of WebSocket (RFC 6455) over a connection of its own, written by hand for the same reason as HTTP.
//
//	frame = FIN|opcode, MASK|length [, 16 or 64 bits of length] [, mask] , payload
//
// A client's frames are masked, a server's are not. Control frames (close, ping, pong) are short and not fragmented, and may come between
// the fragments of a message.

const (
	opContinue = 0x0
	opText     = 0x1
	opBinary   = 0x2
	opClose    = 0x8
	opPing     = 0x9
	opPong     = 0xA

	finBit     = 0x80
	maskBit    = 0x80
	maxControl = 125

	closeNormal    = 1000
	closeGoingAway = 1001
	// closeTimeout bounds the write of the close frame.
	closeTimeout = time.Second

	websocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
)

// maxMessage bounds one message or document. A result has its output and its files in it.
const maxMessage = 256 << 20

var errSocket = errors.New("the server violates the WebSocket protocol")

// Dial opens a WebSocket on a connection of its own.
func (u *Unix) Dial(ctx context.Context, path, protocol string) (Socket, Header, error) {
	c, err := u.take(ctx)
	if err != nil {
		return nil, nil, err
	}
	release := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	s, header, err := upgrade(c, path, protocol)
	if !release() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	_ = c.SetDeadline(time.Time{})
	return s, header, nil
}

func upgrade(c *conn, path, protocol string) (*socket, Header, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	r := &Request{Method: "GET", Path: path, Header: Header{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
		"Sec-WebSocket-Protocol": protocol,
	}}
	if err := errors.Join(writeHead(c.w, socketHost, r), c.w.Flush()); err != nil {
		return nil, nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(answerTimeout))
	status, header, err := readHead(c.r)
	if err != nil {
		return nil, nil, noEOF(err)
	}
	if status != 101 {
		body, _, err := bodyOf(c.r, r.Method, status, header)
		if err != nil {
			return nil, nil, err
		}
		return nil, nil, ProblemOf(&Response{Status: status, Header: header, Body: io.NopCloser(body)})
	}
	if !strings.EqualFold(header.Get("Upgrade"), "websocket") || header.Get("Sec-WebSocket-Accept") != acceptOf(key) ||
		header.Get("Sec-WebSocket-Extensions") != "" || header.Get("Sec-WebSocket-Protocol") != protocol {
		return nil, nil, fmt.Errorf("%w: invalid handshake", errSocket)
	}
	return &socket{c: c}, header, nil
}

// acceptOf returns the value with which a server proves that it read the key. The protocol prescribes SHA-1; the value is no secret.
func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + websocketGUID))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// socket is one end of a WebSocket.
type socket struct {
	c *conn

	sending sync.Mutex // orders what is written
	closed  bool       // a close frame was sent; guarded by sending

	closing sync.Once
}

// interruptible runs do and lets the end of ctx interrupt it. An interrupted call may leave half a frame; the socket is then unusable.
func (s *socket) interruptible(ctx context.Context, cut func(time.Time) error, do func() error) error {
	release := context.AfterFunc(ctx, func() { _ = cut(time.Unix(1, 0)) })
	err := do()
	if !release() {
		return context.Cause(ctx)
	}
	return err
}

// Receive returns the next message, and answers pings and close frames.
func (s *socket) Receive(ctx context.Context) (data []byte, isBinary bool, err error) {
	err = s.interruptible(ctx, s.c.SetReadDeadline, func() (err error) {
		data, isBinary, err = s.receive()
		return err
	})
	return data, isBinary, err
}

func (s *socket) receive() (data []byte, isBinary bool, err error) {
	for begun := false; ; {
		op, fin, payload, err := readFrame(s.c.r, maxMessage-len(data))
		if err != nil {
			return nil, false, err
		}
		switch op {
		case opPing:
			if err := s.send(opPong, payload); err != nil {
				return nil, false, err
			}
			continue
		case opPong:
			continue
		case opClose:
			return nil, false, s.answerClose(payload)
		case opText, opBinary:
			if begun {
				return nil, false, fmt.Errorf("%w: a message begins within another", errSocket)
			}
			begun, isBinary = true, op == opBinary
		case opContinue:
			if !begun {
				return nil, false, fmt.Errorf("%w: a continuation without a message", errSocket)
			}
		default:
			return nil, false, fmt.Errorf("%w: opcode %d", errSocket, op)
		}
		data = append(data, payload...)
		if fin {
			if !isBinary && !utf8.Valid(data) {
				return nil, false, fmt.Errorf("%w: a text message is not UTF-8", errSocket)
			}
			return data, isBinary, nil
		}
	}
}

// readFrame reads one frame of at most that many bytes.
func readFrame(r *bufio.Reader, most int) (op byte, fin bool, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, false, nil, noEOF(err)
	}
	op, fin = head[0]&0x0f, head[0]&finBit != 0
	if head[0]&0x70 != 0 || head[1]&maskBit != 0 {
		return 0, false, nil, fmt.Errorf("%w: a frame has reserved bits or a mask", errSocket)
	}
	length := uint64(head[1])
	if width := map[uint64]int{126: 2, 127: 8}[length]; width > 0 {
		var wide [8]byte
		if _, err := io.ReadFull(r, wide[8-width:]); err != nil {
			return 0, false, nil, noEOF(err)
		}
		length = binary.BigEndian.Uint64(wide[:])
	}
	switch {
	case op >= opClose && (!fin || length > maxControl):
		return 0, false, nil, fmt.Errorf("%w: a control frame is fragmented, or has %d bytes", errSocket, length)
	case length > uint64(most):
		return 0, false, nil, fmt.Errorf("%w: a message is larger than %d MiB", errSocket, maxMessage>>20)
	}
	payload, err = readAllOf(r, int(length))
	return op, fin, payload, err
}

// readAllOf reads that many bytes, and allocates at most twice what has arrived.
func readAllOf(r io.Reader, length int) ([]byte, error) {
	const step = 64 << 10
	data := make([]byte, 0, min(length, step))
	for len(data) < length {
		if len(data) == cap(data) {
			grown := make([]byte, len(data), min(length, 2*cap(data)))
			copy(grown, data)
			data = grown
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err != nil && len(data) < length {
			return nil, noEOF(err)
		}
	}
	return data, nil
}

// answerClose answers a close frame and returns its meaning as an error: io.EOF for an orderly end.
func (s *socket) answerClose(payload []byte) error {
	code := closeNormal
	reason := ""
	if len(payload) >= 2 {
		code, reason = int(binary.BigEndian.Uint16(payload)), strings.ToValidUTF8(string(payload[2:]), "\uFFFD")
	}
	_ = s.send(opClose, payload[:min(len(payload), 2)]) // the server may not wait for it
	if code == closeNormal || code == closeGoingAway && reason == "" {
		return io.EOF
	}
	return fmt.Errorf("the server closed the connection (%d): %q", code, reason)
}

// Send sends one message.
func (s *socket) Send(ctx context.Context, data []byte, isBinary bool) error {
	op := byte(opText)
	if isBinary {
		op = opBinary
	}
	return s.interruptible(ctx, s.c.SetWriteDeadline, func() error { return s.send(op, data) })
}

func (s *socket) send(op byte, payload []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	s.closed = op == opClose
	return writeFrame(s.c.w, op, payload)
}

// writeFrame writes a whole message as one frame.
func writeFrame(w *bufio.Writer, op byte, payload []byte) error {
	head := []byte{finBit | op}
	switch n := len(payload); {
	case n <= maxControl:
		head = append(head, maskBit|byte(n))
	case n <= 0xffff:
		head = binary.BigEndian.AppendUint16(append(head, maskBit|126), uint16(n))
	default:
		head = binary.BigEndian.AppendUint64(append(head, maskBit|127), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:]) // never fails
	if _, err := w.Write(append(head, mask[:]...)); err != nil {
		return err
	}
	for i, b := range payload {
		if err := w.WriteByte(b ^ mask[i%4]); err != nil {
			return err
		}
	}
	return w.Flush()
}

// Close sends a close frame and closes the connection without waiting for the server's.
func (s *socket) Close() error {
	s.closing.Do(func() {
		_ = s.c.SetWriteDeadline(time.Now().Add(closeTimeout))
		if s.sending.TryLock() { // a sender that holds the lock is stuck; skip the close frame
			if !s.closed {
				s.closed = true
				_ = writeFrame(s.c.w, opClose, binary.BigEndian.AppendUint16(nil, closeNormal))
			}
			s.sending.Unlock()
		}
		_ = s.c.Close()
	})
	return nil
}
