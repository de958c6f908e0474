package requestcheck

import (
	"crypto/rand"

	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configures the request checks.
type Options struct {
	// Hosts are the server's host names, without ports.
	Hosts []string
	// Origins are those whose pages may use the API, such as https://app.example.com.
	Origins []string
	// MaxBody bounds every body; 0 means no bound here.
	MaxBody int64
	// BodyIdle is how long a body may pause. BodyRate is how many bytes per second it must reach on average after BodyIdle. The defaults are
	// 30 seconds and 64 KiB.
	BodyIdle time.Duration
	BodyRate int64
	// Log gets a message for every refused request; nil means no log.
	Log *slog.Logger
}

const (
	defaultBodyIdle = 30 * time.Second
	defaultBodyRate = 64 << 10
)

// HeaderRequestID has the id of a request, in answers and logs.
const HeaderRequestID = "X-Request-Id"

type handler struct {
	o    Options
	next http.Handler
}

// New returns next behind the request checks. Hosts and origins must pass CheckHost and CheckOrigin.
func New(next http.Handler, o Options) http.Handler {
	if o.BodyIdle <= 0 {
		o.BodyIdle = defaultBodyIdle
	}
	if o.BodyRate <= 0 {
		o.BodyRate = defaultBodyRate
	}
	hosts := make([]string, len(o.Hosts))
	for i, h := range o.Hosts {
		hosts[i] = canonical(h)
	}
	o.Hosts = hosts
	return &handler{o, next}
}

// CheckHost refuses text that is no host name.
func CheckHost(name string) error {
	if name == "" || strings.ContainsAny(name, "/:@ \t*,") || canonical(name) == "" {
		return sandbox.Invalid("host", "%q is no host name; give one like sandbox.example.com, without a port", name)
	}
	return nil
}

// CheckOrigin refuses text that no browser sends as an origin.
func CheckOrigin(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != text ||
		strings.ToLower(text) != text || strings.Contains(text, "*") {
		return sandbox.Invalid("allow-origin", "%q is no origin; give one like https://app.example.com, without a path", text)
	}
	return nil
}

// canonical returns a host name in lower case without a trailing dot.
func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID(r)
	w.Header().Set(HeaderRequestID, id)
	r.Header.Set(HeaderRequestID, id)
	// Browsers must neither guess another type of an answer nor keep it.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if why := h.checkHost(r); why != "" {
		h.refuse(w, r, id, "host", why, "use the server's address, or ask its operator for serve --host NAME")
		return
	}
	origin := r.Header.Get("Origin")
	w.Header().Add("Vary", "Origin")
	switch {
	case len(r.Header.Values("Origin")) > 1:
		h.refuse(w, r, id, "origin", "the request has several Origin headers", "")
		return
	case origin != "" && slices.Contains(h.o.Origins, origin):
		allowOrigin(w, origin)
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			answerPreflight(w)
			return
		}
	default:
		if why := checkOrigin(r, origin); why != "" {
			h.refuse(w, r, id, "origin", why, "ask the operator for serve --allow-origin ORIGIN")
			return
		}
	}
	h.limitBody(w, r)
	h.next.ServeHTTP(w, r)
}

// checkHost returns why the Host is refused, or "". On a unix socket every Host is accepted: browsers can not connect to it.
func (h *handler) checkHost(r *http.Request) string {
	via, known := listen.ViaOf(r.Context())
	if known && via.Kind == listen.Unix {
		return ""
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = canonical(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if name == "localhost" || slices.Contains(h.o.Hosts, name) {
		return ""
	}
	// An address can not be rebound as a name can. It must be the one that was connected to, or loopback.
	if ip, err := netip.ParseAddr(name); err == nil && ip.Zone() == "" {
		if ip = ip.Unmap(); ip.IsLoopback() {
			return ""
		}
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if ok && local.AddrPort().Addr().Unmap().WithZone("") == ip {
			return ""
		}
	}
	return fmt.Sprintf("host: %.100q is no name of this server", r.Host)
}

// checkOrigin returns why a request from a page of another site is refused, or "". The server's own pages are accepted: their host was
// checked already.
func checkOrigin(r *http.Request, origin string) string {
	if origin != "" {
		u, err := url.Parse(origin)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		if err != nil || u.Host == "" || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Sprintf("origin: pages of %.100q may not use this server", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none": // a program; a page of this server; an address typed by the user
		return ""
	default:
		return fmt.Sprintf("origin: a browser sent the request for a page of another site (%.40q)", site)
	}
}

// allowOrigin lets pages of an origin read the answer.
func allowOrigin(w http.ResponseWriter, origin string) {
	w.Header().Set("Access-Control-Allow-Origin", origin)
	w.Header().Set("Access-Control-Expose-Headers", strings.Join([]string{
		HeaderRequestID, "Location", "Retry-After", wire.HeaderRunID, wire.HeaderReceipt, wire.HeaderVersion,
	}, ", "))
}

// answerPreflight tells a browser which methods and headers pages of an allowed origin may send. Cookies are not among them: keys go into a
// header.
func answerPreflight(w http.ResponseWriter) {
	w.Header().Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", strings.Join([]string{
		"Accept", "Authorization", "Content-Type", "Last-Event-ID", wire.HeaderKey, HeaderRequestID, wire.HeaderIdempotencyKey,
	}, ", "))
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, id, what, why, hint string) {
	if h.o.Log != nil {
		h.o.Log.LogAttrs(r.Context(), slog.LevelWarn, "request refused", slog.String("request", id), slog.String("why", what),
			slog.String("detail", why), slog.String("remote", r.RemoteAddr))
	}
	// Do not read the rest of the body.
	w.Header().Set("Connection", "close")
	p := wire.NewProblem(wire.CodeForbidden, "%s", why)
	p.Title, p.Hint, p.Instance = "Forbidden", hint, "urn:request:"+id
	api.WriteProblem(w, p)
}

// requestID returns the client's id of the request if it is safe to log, or a new random one.
func requestID(r *http.Request) string {
	const most = 64
	id := r.Header.Get(HeaderRequestID)
	if id != "" && len(id) <= most && strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == "" {
		return id
	}
	return rand.Text()
}
