package client

import (
	"context"
	"io"
	"strings"
	"time"
)

// Transport sends requests to one server. Unix is one; package web has one for URLs.
type Transport interface {
	// RoundTrip sends a request and returns the answer as soon as its head arrives. The body may still be on its way to the server; reading
	// the answer to its end, or closing it, ends that. An error wraps ErrNotSent if the server can not have received the whole request.
	RoundTrip(ctx context.Context, r *Request) (*Response, error)
	// Dial opens a WebSocket with that subprotocol. The header is that of the handshake.
	Dial(ctx context.Context, path, protocol string) (Socket, Header, error)
	// Close closes idle connections. Answers that are being read are not affected.
	Close() error
}

// Request is one request.
type Request struct {
	Method string
	Path   string // with its query
	Header Header
	Body   io.Reader // nil for none; another goroutine reads it, perhaps one Read beyond the end of the answer
	Length int64     // of Body; -1 means unknown: it is sent while it is read
	// IdleTimeout is how long the server may send nothing, before the answer and within it; 0 means without limit.
	IdleTimeout time.Duration
}

// Response is the answer to a request. The caller closes Body.
type Response struct {
	Status int
	Header Header
	Body   io.ReadCloser
}

// Header has the headers by their names in lower case. Several values of one name are joined by commas.
type Header map[string]string

// Get returns the value of a header; the case of name does not matter.
func (h Header) Get(name string) string { return h[strings.ToLower(name)] }

// Socket is a WebSocket. One goroutine may receive while another sends.
type Socket interface {
	// Receive blocks for the next message. It returns io.EOF when the server has closed in order.
	Receive(ctx context.Context) (data []byte, binary bool, err error)
	Send(ctx context.Context, data []byte, binary bool) error
	// Close may be called at any time, and twice.
	Close() error
}
