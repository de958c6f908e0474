// Package web is the client's transport to servers with a URL: http:// and https://, TLS, API keys.
//
// What. New makes a client.Transport from a URL and Options.
//
// Place in the flow. Below package client, beside client.Unix. It links net/http, so cmd/sandbox-rund has it and the thin executable does
// not: the thin one executes sandbox-rund for --server with a URL.
//
// Lifecycle. The caller closes the Transport. Open answers and sockets are not affected by that.
//
// Concurrency. Any number of goroutines may use a Transport.
//
// Limits. A key is never sent unencrypted: over http:// only to this very machine. Redirects are not followed: our servers send none, and
// another server must not get the key.
package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configures the connection to a server.
type Options struct {
	Key    string // the API key; "" for none
	CAFile string // certificates to trust in place of the system's, as PEM
}

// Transport sends requests to one server.
type Transport struct {
	base   *url.URL
	key    string
	client *http.Client
}

var _ client.Transport = (*Transport)(nil)

// Bounds on the server's connection time, headers and messages.
const (
	dialTimeout    = 10 * time.Second
	maxHeaderBytes = 64 << 10
	maxMessage     = 256 << 20
)

// New makes the transport to the server at a URL. It does not connect yet.
func New(address string, o Options) (*Transport, error) {
	base, err := url.Parse(address)
	wrong := func(format string, args ...any) error { return sandbox.Invalid("server", format, args...) }
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https":
		return nil, wrong("%q is no http:// or https:// address; give one like https://host:8443", address)
	case base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, wrong("%q: only a host, a port and a path are allowed", base.Redacted())
	case o.Key != "" && base.Scheme == "http" && !isLoopback(base.Hostname()):
		return nil, wrong("an API key is not sent unencrypted to %s; use https://", base.Host)
	case strings.ContainsFunc(o.Key, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		return nil, wrong("the API key has blanks, line ends or other invalid characters")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, DisableCompression: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, sandbox.Invalid("server-ca", "%w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, sandbox.Invalid("server-ca", "%s: the file has no certificate", o.CAFile)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	return &Transport{base: base, key: o.Key, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// isLoopback reports whether a host is this machine. It does not ask a resolver.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// RoundTrip sends a request; see client.Transport.
func (t *Transport) RoundTrip(ctx context.Context, r *client.Request) (*client.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, r.Method, t.base.String()+r.Path, nil)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("%w: %w", client.ErrNotSent, err)
	}
	if r.Body != nil {
		req.Body, req.ContentLength = io.NopCloser(r.Body), r.Length
		if r.Length == 0 {
			req.Body = http.NoBody
		}
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	t.authorize(req.Header)
	timeout := cmp.Or(r.IdleTimeout, math.MaxInt64) // 0 means without limit
	idle := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("%w (for %v)", client.ErrIdleTimeout, timeout)) })
	resp, err := t.client.Do(req)
	if err != nil {
		err = describe(ctx, err)
		idle.Stop()
		cancel(nil)
		return nil, err
	}
	return &client.Response{
		Status: resp.StatusCode, Header: headerOf(resp.Header),
		Body: &body{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, idle: idle, timeout: timeout},
	}, nil
}

func headerOf(h http.Header) client.Header {
	header := client.Header{}
	for name, values := range h {
		header[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	return header
}

func (t *Transport) authorize(h http.Header) {
	if t.key != "" {
		h.Set("Authorization", "Bearer "+t.key)
	}
}

// describe removes the URL that net/http adds, and wraps client.ErrNotSent if the server can not have received the request.
func describe(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: %w: %w", client.ErrNotSent, client.ErrNoServer, err)
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("%w: %w", client.ErrNotSent, err)
	}
	return err
}

// body is an answer. Every read restarts the idle timer.
type body struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // of the request, for as long as the answer is read
	cancel  context.CancelCauseFunc
	idle    *time.Timer
	timeout time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.idle.Reset(b.timeout)
	if b.ctx.Err() != nil { // Close may have stopped the timer before
		b.idle.Stop()
	}
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *body) Close() error {
	b.cancel(nil)
	b.idle.Stop()
	return b.ReadCloser.Close()
}

// Dial opens a WebSocket; see client.Transport.
func (t *Transport) Dial(ctx context.Context, path, protocol string) (client.Socket, client.Header, error) {
	header := http.Header{}
	t.authorize(header)
	address := *t.base
	address.Scheme = map[string]string{"http": "ws", "https": "wss"}[t.base.Scheme]
	c, resp, err := websocket.Dial(ctx, address.String()+path, &websocket.DialOptions{
		HTTPClient: t.client, HTTPHeader: header, Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, nil, client.ProblemOf(&client.Response{Status: resp.StatusCode, Header: headerOf(resp.Header), Body: resp.Body})
		}
		return nil, nil, describe(ctx, err)
	}
	if c.Subprotocol() != protocol {
		_ = c.CloseNow()
		return nil, nil, fmt.Errorf("server: WebSocket protocol %s not supported", protocol)
	}
	c.SetReadLimit(maxMessage)
	return &socket{c}, headerOf(resp.Header), nil
}

type socket struct{ c *websocket.Conn }

func (s *socket) Receive(ctx context.Context) ([]byte, bool, error) {
	kind, data, err := s.c.Read(ctx)
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		err = io.EOF
	}
	return data, kind == websocket.MessageBinary, err
}

func (s *socket) Send(ctx context.Context, data []byte, binary bool) error {
	kind := websocket.MessageText
	if binary {
		kind = websocket.MessageBinary
	}
	return s.c.Write(ctx, kind, data)
}

func (s *socket) Close() error {
	_ = s.c.Close(websocket.StatusNormalClosure, "") // fails when the server is gone
	return nil
}

// Close closes idle connections.
func (t *Transport) Close() error {
	t.client.CloseIdleConnections()
	return nil
}
