// Package web is the transport of package client to servers that have an address: http:// and https:// URLs, TLS, API keys.
//
// What. New makes a client.Transport of a URL and Options.
//
// Place in the flow. Below package client, beside client.Unix. It links net/http, so cmd/sandbox-rund has it and the thin executable does not
// (D10): that one hands over.
//
// Lifecycle. Whoever makes a Transport closes it. Answers and sockets that are open then live on.
//
// Concurrency. A Transport may be used by any number of goroutines.
//
// Limits. A key is never sent in the clear: over http:// only to this very machine. Redirects are not followed, for a server of ours sends none and
// whoever does might want the key.
package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options are how a server is reached.
type Options struct {
	Key    string // the API key; "" is none
	CAFile string // certificates to trust in place of the system's, as PEM
}

// Transport is the way to one server.
type Transport struct {
	base   *url.URL
	key    string
	client *http.Client
}

var _ client.Transport = (*Transport)(nil)

// Bounds of what a server may take its time for, or say before an answer.
const (
	dialPatience   = 10 * time.Second
	maxHeaderBytes = 64 << 10
	maxMessage     = 256 << 20
)

// New makes the transport to a server by its URL. Nobody is asked yet.
func New(address string, o Options) (*Transport, error) {
	base, err := url.Parse(address)
	wrong := func(format string, args ...any) error { return sandbox.Invalid("server", format, args...) }
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https":
		return nil, wrong("%q is not an address like https://host:8443", address)
	case base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, wrong("%q has to be a host, perhaps with a port and a path, and nothing else", base.Redacted())
	case o.Key != "" && base.Scheme == "http" && !isLoopback(base.Hostname()):
		return nil, wrong("an API key is not sent in the clear to %s; use https://", base.Host)
	case strings.ContainsFunc(o.Key, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		return nil, wrong("the API key contains what no key does: blanks, line ends or other characters")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	carrier := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialPatience}).DialContext, TLSHandshakeTimeout: dialPatience,
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
			return nil, sandbox.Invalid("server-ca", "there is no certificate in %s", o.CAFile)
		}
		carrier.TLSClientConfig.RootCAs = roots
	}
	return &Transport{base: base, key: o.Key, client: &http.Client{
		Transport:     carrier,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// isLoopback reports whether a host is this very machine, whatever a resolver says.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// RoundTrip sends a request.
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
	t.authorise(req.Header)
	silence := newWatch(r.Patience, func() { cancel(fmt.Errorf("%w (for %v)", client.ErrSilent, r.Patience)) })
	resp, err := t.client.Do(req)
	if err != nil {
		err = explain(ctx, err)
		silence.stop()
		cancel(nil)
		return nil, err
	}
	return &client.Response{Status: resp.StatusCode, Header: headerOf(resp.Header), Body: &body{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, silence: silence}}, nil
}

func headerOf(h http.Header) client.Header {
	header := client.Header{}
	for name, values := range h {
		header[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	return header
}

func (t *Transport) authorise(h http.Header) {
	if t.key != "" {
		h.Set("Authorization", "Bearer "+t.key)
	}
}

// explain leaves out what net/http says about the place, and says whether anybody can have heard us.
func explain(ctx context.Context, err error) error {
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

// body is an answer; reading it is a sign of life.
type body struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // of the request, for as long as the answer is read
	cancel  context.CancelCauseFunc
	silence *watch
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.silence.reset()
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *body) Close() error {
	b.silence.stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// watch calls somebody when nothing has happened for too long. With no patience it never does.
type watch struct {
	patience time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil when it has stopped
}

func newWatch(patience time.Duration, call func()) *watch {
	w := &watch{patience: patience}
	if patience > 0 {
		w.timer = time.AfterFunc(patience, call)
	}
	return w
}

func (w *watch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Reset(w.patience)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// Dial opens a WebSocket.
func (t *Transport) Dial(ctx context.Context, path, protocol string) (client.Socket, client.Header, error) {
	header := http.Header{}
	t.authorise(header)
	address := *t.base
	address.Scheme = map[string]string{"http": "ws", "https": "wss"}[t.base.Scheme]
	c, resp, err := websocket.Dial(ctx, address.String()+path, &websocket.DialOptions{
		HTTPClient: t.client, HTTPHeader: header, Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, nil, client.ProblemOf(&client.Response{Status: resp.StatusCode, Header: headerOf(resp.Header), Body: resp.Body})
		}
		return nil, nil, explain(ctx, err)
	}
	if c.Subprotocol() != protocol {
		_ = c.CloseNow()
		return nil, nil, fmt.Errorf("the server does not speak %s", protocol)
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
	_ = s.c.Close(websocket.StatusNormalClosure, "") // the server may be gone
	return nil
}

// Close closes connections that nobody uses.
func (t *Transport) Close() error {
	t.client.CloseIdleConnections()
	return nil
}
