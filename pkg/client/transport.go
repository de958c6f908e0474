package client

import (
	"context"
	"io"
	"strings"
	"time"
)

// Transport carries requests to one server. Unix is one; package web has one for URLs.
type Transport interface {
	// RoundTrip sends a request and returns its answer as soon as that begins. It may still be sending then: whoever reads the answer
	// to its end, or closes it, ends that. An error wraps ErrNotSent if the server can not have seen the whole of the request.
	RoundTrip(ctx context.Context, r *Request) (*Response, error)
	// Dial opens a WebSocket on which that protocol is spoken.
	// Its header is that of the handshake.
	Dial(ctx context.Context, path, protocol string) (Socket, Header, error)
	// Close closes what is idle. Answers that are being read are not affected.
	Close() error
}

// Request is one request.
type Request struct {
	Method string
	Path   string // with its query
	Header Header
	Body   io.Reader // nil is none; it is read by another goroutine, perhaps beyond the end of the answer by one Read
	Length int64     // of Body; -1 is unknown, and it is sent while it is read
	// Patience is the longest silence to bear, before the answer and in it; 0 is for ever.
	Patience time.Duration
}

// Response is the answer to it. Whoever gets one closes Body.
type Response struct {
	Status int
	Header Header
	Body   io.ReadCloser
}

// Header is what stands before a body, by names in lower case. A name that came several times has its values joined by commas.
type Header map[string]string

// Get is the value of a name in whichever case.
func (h Header) Get(name string) string { return h[strings.ToLower(name)] }

// Socket is a WebSocket: messages both ways. One goroutine may receive while another sends.
type Socket interface {
	// Receive gives the next message. It is io.EOF when the other side has closed as it should.
	Receive(ctx context.Context) (data []byte, binary bool, err error)
	Send(ctx context.Context, data []byte, binary bool) error
	// Close may be called at any time, and twice.
	Close() error
}
