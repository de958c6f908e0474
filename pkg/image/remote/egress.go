package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	connectWait = 15 * time.Second
	maxAnswer   = 8 << 20 // bytes of any answer that is not a layer
	maxHeader   = 256 << 10
	leastRate   = 256 // bytes per second; a slower connection is stalled
)

// egress is the transport of every request. A redirect, the address of a token server or the library's fallback to http:// may name any
// host; egress allows only
//
//	https to the registry                   home    any address: the user named it
//	https to another host                   abroad  not further inside than the registry itself (N2, N4)
//	http  with Insecure, loopback only      plain   the dialled address is checked, not the name
//
// It ends answers that stall, and short answers that exceed maxAnswer.
type egress struct {
	registry string // host[:port]
	insecure bool
	stall    time.Duration

	home, abroad, plain *http.Transport
	inside              atomic.Int32          // innermost zone of the registry's addresses
	plainFailure        atomic.Pointer[error] // last failure over plain HTTP
}

// Zones, from the outside in.
const (
	zonePublic int32 = iota
	zonePrivate
	zoneLoopback
	zoneNever // link-local and other addresses of cloud metadata; unspecified; multicast
)

// Addresses that net/netip classifies as public.
var (
	metadata = []netip.Prefix{ // outside of link-local: Azure's, Alibaba's, Oracle's, and Amazon's by IPv6
		netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("100.100.100.200/32"),
		netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("fd00:ec2::/32"),
	}
	shared = []netip.Prefix{ // carrier-grade NAT, benchmark networks, site-local
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fec0::/10"),
	}
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	translated  = netip.MustParsePrefix("64:ff9b::/96") // IPv4 in its last four bytes
)

func zone(addr netip.Addr) int32 {
	addr = addr.Unmap().WithZone("")
	if translated.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	switch {
	case in(metadata), thisNetwork.Contains(addr), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return zoneNever
	case addr.IsLoopback():
		return zoneLoopback
	case addr.IsPrivate(), in(shared):
		return zonePrivate
	case addr.IsLinkLocalUnicast(), addr.IsUnspecified(), addr.IsMulticast(), addr.IsInterfaceLocalMulticast():
		return zoneNever
	}
	return zonePublic
}

func newEgress(registry string, insecure bool, stall time.Duration, certDirs []string) (*egress, error) {
	g := &egress{registry: registry, insecure: insecure, stall: stall}
	trust, err := loadTrust(registry, certDirs)
	if err != nil {
		return nil, err
	}
	g.home = g.transport(func(addr netip.Addr) error {
		g.noteZone(zone(addr))
		return nil
	})
	g.home.TLSClientConfig = trust
	g.abroad = g.transport(g.checkZone)
	g.plain = g.transport(checkLoopback)
	g.plain.Proxy = nil
	return g, nil
}

func (g *egress) transport(check func(addr netip.Addr) error) *http.Transport {
	dialer := &net.Dialer{Timeout: connectWait, KeepAlive: 30 * time.Second}
	dialer.Control = func(_, address string, _ syscall.RawConn) error {
		host, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("dial %q: not an address", address)
		}
		return check(host.Addr())
	}
	direct := &http.Transport{
		DialContext:            dialer.DialContext,
		Proxy:                  http.ProxyFromEnvironment,
		TLSHandshakeTimeout:    connectWait,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		// Digests are those of the transferred bytes. Without decompression a small answer can not expand.
		DisableCompression: true,
	}
	return direct
}

// noteZone records the zone of an address of the registry.
func (g *egress) noteZone(z int32) {
	if z == zoneNever {
		return
	}
	for old := g.inside.Load(); z > old && !g.inside.CompareAndSwap(old, z); old = g.inside.Load() {
	}
}

// checkZone refuses addresses further inside than the registry: the registry could not reach those itself.
func (g *egress) checkZone(addr netip.Addr) error {
	if z := zone(addr); z > g.inside.Load() {
		return fmt.Errorf("%w: the registry sends us to %s, an address of this machine or its network", ErrInvalid, addr)
	}
	return nil
}

func checkLoopback(addr netip.Addr) error {
	if zone(addr) != zoneLoopback {
		return &plainError{host: addr.String(), reason: "it is not a loopback address"}
	}
	return nil
}

func (g *egress) close() {
	for _, t := range []*http.Transport{g.home, g.abroad, g.plain} {
		t.CloseIdleConnections()
	}
}

// chooseTransport returns the transport that a request may use.
func (g *egress) chooseTransport(req *http.Request) (*http.Transport, error) {
	host := req.URL.Host
	switch req.URL.Scheme {
	case "https":
		if strings.EqualFold(strings.TrimSuffix(host, ":443"), strings.TrimSuffix(g.registry, ":443")) {
			return g.home, nil
		}
		// A proxy usually has a private address, and resolves names itself.
		if proxy, err := http.ProxyFromEnvironment(req); err == nil && proxy != nil {
			return g.home, nil
		}
		return g.abroad, nil
	case "http":
		switch {
		case !loopbackName(host):
			return nil, &plainError{host: host, reason: "only loopback addresses may speak it"}
		case !g.insecure:
			return nil, &plainError{host: host, reason: "the request does not allow it"}
		}
		g.noteZone(zoneLoopback)
		return g.plain, nil
	}
	return nil, fmt.Errorf("%w: an address with the scheme %q", ErrInvalid, plain(req.URL.Scheme))
}

// loopbackName reports whether a host, with or without a port, is a name or an address of this machine. checkLoopback checks the
// address that the name resolves to.
func loopbackName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// RoundTrip implements http.RoundTripper.
func (g *egress) RoundTrip(req *http.Request) (*http.Response, error) {
	via, err := g.chooseTransport(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	stalled := &stalledError{host: req.URL.Host, wait: g.stall}
	timer := time.AfterFunc(g.stall, func() { cancel(stalled) })
	resp, err := via.RoundTrip(req.WithContext(ctx))
	if err != nil {
		timer.Stop()
		if cause := context.Cause(ctx); errors.Is(cause, ErrStalled) {
			err = cause
		}
		cancel(nil)
		if via == g.plain {
			g.plainFailure.Store(&err)
		}
		return nil, err
	}
	timer.Stop()
	// client.send replaces an expired token, one caller at a time. The library's transport would do so in every layer's goroutine,
	// without synchronisation.
	if req.URL.Path != "/v2/" {
		resp.Header.Del("WWW-Authenticate")
	}
	left := int64(maxAnswer)
	if isLayer(req.Context()) {
		left = -1
	}
	resp.Body = &watched{body: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stalled: stalled, left: left}
	return resp, nil
}

type layerKey struct{}

// asLayer marks a request whose answer may be large.
func asLayer(ctx context.Context) context.Context { return context.WithValue(ctx, layerKey{}, true) }
func isLayer(ctx context.Context) bool            { return ctx.Value(layerKey{}) != nil }

// watched is a body that fails if the peer stalls or sends more than left bytes. Only the time in Read counts, because a slow reader is
// not the peer's fault.
type watched struct {
	body    io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	stalled *stalledError
	left    int64 // bytes that the peer may still send; -1: any number
	waited  time.Duration
	got     int64
	once    sync.Once
}

func (w *watched) Read(p []byte) (int, error) {
	if w.waited >= w.stalled.wait {
		if float64(w.got) < leastRate*w.waited.Seconds() {
			w.cancel(w.stalled)
			return 0, w.stalled
		}
		w.waited, w.got = 0, 0
	}
	if w.left == 0 {
		return 0, fmt.Errorf("%w: %s sends more than %d bytes where a short answer belongs", ErrInvalid, w.stalled.host, maxAnswer)
	}
	if w.left > 0 {
		p = p[:min(int64(len(p)), w.left)]
	}
	w.timer.Reset(w.stalled.wait)
	start := time.Now()
	n, err := w.body.Read(p)
	w.timer.Stop()
	w.waited += time.Since(start)
	w.got += int64(n)
	if w.left > 0 {
		w.left -= int64(n)
	}
	if err != nil && err != io.EOF && errors.Is(context.Cause(w.ctx), ErrStalled) {
		err = w.stalled
	}
	return n, err
}

// Close may be called twice.
func (w *watched) Close() error {
	var err error
	w.once.Do(func() {
		w.timer.Stop()
		err = w.body.Close()
		w.cancel(nil)
	})
	return err
}
