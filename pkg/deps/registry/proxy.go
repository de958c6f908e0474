package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// maxDocument bounds a document whose addresses are replaced.
	maxDocument = 64 << 20
	// maxHeld bounds all documents in memory. The registry is not trusted with this machine's.
	maxHeld = 256 << 20
	// maxForwarded is how many requests are forwarded at a time; further ones wait.
	maxForwarded = 64
	maxRedirects = 5
	connectTime  = 15 * time.Second
	headerTime   = 60 * time.Second
	stallTime    = 60 * time.Second // without a byte of an answer
)

// Proxy serves one registry to one installation.
type Proxy struct {
	config   Config
	hosts    map[string]bool
	auth     string // for the host of the index
	home     string // that host
	token    string
	listener net.Listener
	server   *http.Server
	client   *http.Client
	slots    chan struct{}
	held     atomic.Int64 // bytes of documents

	mu      sync.Mutex
	refused []string // sentences for people
}

// Start serves a registry on the loopback. The caller closes the Proxy.
func Start(name string, c Config) (*Proxy, error) {
	p := &Proxy{config: c, hosts: c.hosts(), token: rand.Text(), slots: make(chan struct{}, maxForwarded)}
	index, err := url.Parse(c.Index)
	if err != nil {
		return nil, err
	}
	p.home = index.Host
	if p.auth, err = c.authorization(); err != nil {
		return nil, &sandbox.Error{Op: "registries: " + name, Kind: sandbox.ErrInvalid, Err: err, Hint: "sandbox-run deps doctor"}
	}
	transport, err := p.transport()
	if err != nil {
		return nil, &sandbox.Error{Op: "registries: " + name, Kind: sandbox.ErrInvalid, Err: err, Hint: "sandbox-run deps doctor"}
	}
	p.client = &http.Client{Transport: transport, CheckRedirect: p.checkRedirect}
	if p.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: connectTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients that break off
	}
	go func() { _ = p.server.Serve(p.listener) }() // until Close
	return p, nil
}

// Access tells an installation how to reach the registry.
func (p *Proxy) Access() deps.Access {
	base := "http://" + deps.ProxyName + "/" + p.token
	a := deps.Access{Address: p.listener.Addr().(*net.TCPAddr).AddrPort(), Base: base} //nolint:forcetypeassert // it listens on TCP
	a.Index = p.inside(base, p.config.Index)
	if c := p.config.Checksums; c != "" && c != "off" {
		a.Checksums = strings.TrimSuffix(p.inside(base, c), "/")
	}
	return a
}

// inside is the address at the proxy of a URL of the registry. Clients quote a colon in a path, so that a port stands behind deps.PortMark.
func (p *Proxy) inside(base, text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	host, path, _ := strings.Cut(rest, "/")
	return base + "/" + scheme + "/" + strings.Replace(host, ":", deps.PortMark, 1) + "/" + path
}

// Refused are sentences about requests that were not forwarded.
func (p *Proxy) Refused() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.refused)
}

// Close ends all requests. A second call does nothing.
func (p *Proxy) Close() error {
	err := p.server.Close()
	p.client.CloseIdleConnections()
	return err
}

func (p *Proxy) transport() (*http.Transport, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.config.CA != "" {
		text, err := os.ReadFile(p.config.CA)
		if err != nil {
			return nil, err
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM", p.config.CA)
		}
	}
	return &http.Transport{
		DialContext: p.dial, TLSClientConfig: trust, TLSHandshakeTimeout: connectTime, ResponseHeaderTimeout: headerTime, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 256 << 10, DisableCompression: true,
	}, nil
}

// dial connects to a host of the registry. The address is checked, and not only the name.
func (p *Proxy) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	named := p.hosts[address]
	for _, port := range []string{":443", ":80"} {
		if host, cut := strings.CutSuffix(address, port); cut {
			named = named || p.hosts[host]
		}
	}
	d := net.Dialer{Timeout: connectTime, Control: func(_, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if !allowed(a.Addr(), named) {
			return fmt.Errorf("%s is a private or special address, which the public registry does not have; registries.yaml can name a host of its own",
				a.Addr())
		}
		return nil
	}}
	return d.DialContext(ctx, kind, address)
}

func (p *Proxy) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	if err := p.check(req.URL); err != nil {
		return err
	}
	p.authorize(req)
	return nil
}

// check refuses a URL of a host that is not the registry's.
func (p *Proxy) check(u *url.URL) error {
	if _, found := p.hosts[u.Host]; !found {
		return fmt.Errorf("the host %s is none of the registry's; registries.yaml can name it in hosts", u.Host)
	}
	if u.Scheme != "https" && !strings.HasPrefix(p.config.Index, u.Scheme+"://") {
		return fmt.Errorf("%s is not to be reached without TLS", u.Host)
	}
	return nil
}

func (p *Proxy) authorize(req *http.Request) {
	req.Header.Del("Authorization")
	if p.auth != "" && req.URL.Host == p.home && strings.HasPrefix(p.config.Index, req.URL.Scheme+"://") {
		req.Header.Set("Authorization", p.auth)
	}
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// The headers that pass.
var (
	requestHeaders  = []string{"Accept", "If-None-Match", "If-Modified-Since", "Range", "Npm-Command", "Npm-In-Ci"}
	responseHeaders = []string{"Content-Type", "Etag", "Last-Modified", "Cache-Control", "Content-Range", "Accept-Ranges", "X-Pypi-Last-Serial"}
)

// ServeHTTP forwards one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(p.token)) != 1 {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		p.refuse(w, http.StatusMethodNotAllowed, r.Method+" requests are not forwarded: installations only read")
		return
	}
	scheme, rest, _ := strings.Cut(rest, "/")
	host, rest, _ := strings.Cut(rest, "/")
	target, err := url.Parse(scheme + "://" + strings.Replace(host, deps.PortMark, ":", 1) + "/" + rest)
	if err != nil || target.Host == "" || target.User != nil || scheme != "https" && scheme != "http" {
		p.refuse(w, http.StatusNotFound, "the path is none of the registry's")
		return
	}
	target.RawQuery = r.URL.RawQuery
	if err := p.check(target); err != nil {
		p.refuse(w, http.StatusForbidden, err.Error())
		return
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-r.Context().Done():
		return
	}
	p.forward(w, r, target)
}

// maxRefused bounds what is remembered for people.
const maxRefused = 32

func (p *Proxy) refuse(w http.ResponseWriter, status int, why string) {
	p.mu.Lock()
	if len(p.refused) < maxRefused && !slices.Contains(p.refused, why) {
		p.refused = append(p.refused, why)
	}
	p.mu.Unlock()
	http.Error(w, "sandbox-run: "+why, status)
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, target *url.URL) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, target.String(), nil)
	if err != nil {
		p.refuse(w, http.StatusBadRequest, "the path is none of the registry's")
		return
	}
	for _, h := range requestHeaders {
		if v := r.Header.Values(h); len(v) > 0 {
			req.Header[http.CanonicalHeaderKey(h)] = v
		}
	}
	req.Header.Set("User-Agent", "sandbox-run")
	p.authorize(req)
	answer, err := p.client.Do(req) //nolint:bodyclose // closed below
	if err != nil {
		if refusal := new(url.Error); errors.As(err, &refusal) {
			err = refusal.Err
		}
		p.refuse(w, http.StatusBadGateway, fmt.Sprintf("%s: %v", target.Host, err))
		return
	}
	defer func() { _ = answer.Body.Close() }()
	body := &watched{from: answer.Body, late: time.AfterFunc(stallTime, cancel)}
	defer body.late.Stop()
	for _, h := range responseHeaders {
		if v := answer.Header.Values(h); len(v) > 0 {
			w.Header()[h] = v
		}
	}
	if r.Method == http.MethodGet && isDocument(answer) {
		held := &counted{from: io.LimitReader(body, maxDocument+1), held: &p.held}
		defer held.release()
		text, err := io.ReadAll(held)
		if err == nil && len(text) <= maxDocument {
			text, err = p.replace(text, held)
		}
		if err != nil || len(text) > maxDocument {
			p.refuse(w, http.StatusBadGateway, target.Host+": the document is too large, or ended early")
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		w.WriteHeader(answer.StatusCode)
		_, _ = w.Write(text)
		return
	}
	if answer.ContentLength >= 0 {
		w.Header().Set("Content-Length", fmt.Sprint(answer.ContentLength))
	}
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// isDocument reports whether an answer may have addresses of the registry in it.
func isDocument(answer *http.Response) bool {
	if answer.StatusCode != http.StatusOK {
		return false
	}
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	// crates.io's configuration has no type of its own.
	return kind == "text/html" || kind == "application/json" || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+html") ||
		strings.HasSuffix(answer.Request.URL.Path, "/config.json")
}

// replace replaces the addresses of the registry's hosts by the proxy's own, which are longer.
func (p *Proxy) replace(text []byte, held *counted) ([]byte, error) {
	base := "http://" + deps.ProxyName + "/" + p.token
	for host := range p.hosts {
		for _, scheme := range []string{"https", "http"} {
			from := scheme + "://" + host + "/"
			to := p.inside(base, from)
			more := bytes.Count(text, []byte(from)) * (len(to) - len(from))
			if len(text)+more > maxDocument {
				return nil, errHeld
			}
			if more > 0 {
				if err := held.add(more); err != nil {
					return nil, err
				}
				text = bytes.ReplaceAll(text, []byte(from), []byte(to))
			}
		}
	}
	return text, nil
}

var errHeld = errors.New("the documents are too large")

// counted counts what is read of a document, until release.
type counted struct {
	from io.Reader
	held *atomic.Int64
	own  int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if more := c.add(n); more != nil {
		err = more
	}
	return n, err
}

func (c *counted) add(n int) error {
	c.own += n
	if c.held.Add(int64(n)) > maxHeld {
		return errHeld
	}
	return nil
}

func (c *counted) release() { c.held.Add(-int64(c.own)) }

// watched ends a request whose answer stalls.
type watched struct {
	from io.Reader
	late *time.Timer
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.late.Reset(stallTime)
	return n, err
}

// Open serves a registry as a configuration says.
func Open(file, name string) (*Proxy, error) {
	all, err := Load(file)
	if err != nil {
		return nil, err
	}
	if err := CheckName(name); err != nil {
		return nil, sandbox.Invalid("registries", "%w", err)
	}
	return Start(name, all[name])
}

// Local serves registries by this process.
type Local struct{ File string } // the configuration

// Open implements deps.Registries.
func (l Local) Open(_ context.Context, name string) (*deps.Access, func() []string, error) {
	p, err := Open(l.File, name)
	if err != nil {
		return nil, nil, err
	}
	access := p.Access()
	return &access, func() []string {
		_ = p.Close() // a failure ends nothing that would not end by itself
		return p.Refused()
	}, nil
}
