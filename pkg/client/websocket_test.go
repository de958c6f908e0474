package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// serveSocket answers with another implementation of WebSocket.
func serveSocket(t *testing.T, talk func(ctx context.Context, c *websocket.Conn)) *Unix {
	t.Helper()
	path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Who", "me")
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"p"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		talk(r.Context(), c)
	}))
	return newUnix(t, path)
}

func TestSocket(t *testing.T) {
	u := serveSocket(t, func(ctx context.Context, c *websocket.Conn) {
		go func() { _ = c.Ping(ctx) }()
		for {
			kind, data, err := c.Read(ctx)
			if err != nil {
				return
			}
			if string(data) == "bye" {
				_ = c.Close(websocket.StatusNormalClosure, "")
				return
			}
			w, err := c.Writer(ctx, kind) // fragmented
			if err != nil {
				return
			}
			for part := range bytes.Lines(data) {
				_, _ = w.Write(part)
			}
			_ = w.Close()
		}
	})
	s, header, err := u.Dial(t.Context(), "/", "p")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if header.Get("X-Who") != "me" {
		t.Error(header)
	}
	for _, size := range []int{0, 1, 125, 126, 127, 65535, 65536, 3 << 20} {
		for _, isBinary := range []bool{true, false} {
			data := make([]byte, size)
			for i := range data {
				if data[i] = byte(rand.IntN(256)); !isBinary {
					data[i] = "abcdefghijklmnopqrstuvwxyz01234\n"[data[i]%32]
				}
			}
			sent := make(chan error, 1)
			go func() { sent <- s.Send(t.Context(), data, isBinary) }()
			got, kind, err := s.Receive(t.Context())
			if err != nil || kind != isBinary || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, binary %v: %d, %v, %v", size, isBinary, len(got), kind, err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Send(t.Context(), []byte("bye"), false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_ = s.Close()
	if err := s.Send(t.Context(), []byte("x"), false); err == nil {
		t.Error("it can be sent to after its end")
	}
}

func TestSocketEnds(t *testing.T) {
	for name, c := range map[string]struct {
		talk func(context.Context, *websocket.Conn)
		says string
	}{
		"policy": {func(_ context.Context, c *websocket.Conn) { _ = c.Close(websocket.StatusPolicyViolation, "no") }, `1008): "no"`},
		"away":   {func(_ context.Context, c *websocket.Conn) { _ = c.Close(websocket.StatusGoingAway, "the server ends") }, "the server ends"},
		"gone":   {func(_ context.Context, c *websocket.Conn) { _ = c.CloseNow() }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, err := serveSocket(t, c.talk).Dial(t.Context(), "/", "p")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, _, err := s.Receive(t.Context()); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
		})
	}
	// The context interrupts a receive.
	s, _, err := serveSocket(t, func(ctx context.Context, c *websocket.Conn) { _, _, _ = c.Read(ctx) }).Dial(t.Context(), "/", "p")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, _, err := s.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Dial refuses every invalid handshake.
func TestHostileHandshakes(t *testing.T) {
	for name, c := range map[string]struct{ answer, says string }{
		"refused": {"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nContent-Length: 32\r\n\r\n" +
			`{"title":"x","code":"forbidden"}`, "x"},
		"not ours":  {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", `200 "hi"`},
		"no accept": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "handshake"},
		"wrong": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: p\r\n\r\n",
			"handshake"},
		"hung up":     {"", "EOF"},
		"large frame": {"HTTP/1.1 500 x\r\n" + strings.Repeat("A: b\r\n", 500), "headers"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := newUnix(t, serveBytes(t, nil, c.answer)).Dial(t.Context(), "/", "p")
			if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrNotSent) {
				t.Error(err)
			}
		})
	}
}

// FuzzFrames: any bytes are messages or an error, and take at most twice the memory of what has arrived.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{"\x81\x02hi", "\x01\x01h\x80\x01i", "\x89\x00", "\x88\x02\x03\xe8", "\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
		"\x81\x7e\x01\x00", "\x81\x82mask..", "\x80\x00", "\xc1\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frames []byte) {
		near, far := net.Pipe()
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }() // what is answered
		s := &socket{c: &conn{Conn: near, r: bufio.NewReader(bytes.NewReader(frames)), w: bufio.NewWriter(near)}}
		defer near.Close()
		for range 100 {
			data, _, err := s.receive()
			if err != nil {
				break
			}
			if len(data) > len(frames) {
				t.Errorf("%d bytes came of %d", len(data), len(frames))
			}
		}
	})
}

// Frames of every length are masked and readable.
func TestFramesAreMasked(t *testing.T) {
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	if err := writeFrame(w, opText, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if b := out.Bytes(); b[1]&maskBit == 0 || bytes.Contains(b, []byte("secret")) && !bytes.Equal(b[2:6], []byte{0, 0, 0, 0}) {
		t.Errorf("%x", b)
	}
}
