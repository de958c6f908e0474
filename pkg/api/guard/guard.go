package guard

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options say who may come in.
type Options struct {
	// Hosts are names under which the server is known, without ports.
	Hosts []string
	// Origins are those whose pages may use the API: https://app.example.com.
	Origins []string
	// MaxBody bounds every body; 0 is no bound here.
	MaxBody int64
	// BodyIdle is how long a body may pause, BodyRate how many bytes a second it must bring in the long run, after BodyIdle. Zeros are
	// 30 seconds and 64 KiB.
	BodyIdle time.Duration
	BodyRate int64
	// Log is told of what is refused here; nil: nobody is.
	Log *slog.Logger
}

const (
	defaultBodyIdle = 30 * time.Second
	defaultBodyRate = 64 << 10
)

// HeaderRequestID names a request in answers and logs.
const HeaderRequestID = "X-Request-Id"

type handler struct {
	o    Options
	next http.Handler
}

// New puts the guard before a handler. Names and origins are as CheckHost and CheckOrigin want them.
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

// CheckHost refuses what can not be the name of a server.
func CheckHost(name string) error {
	if name == "" || strings.ContainsAny(name, "/:@ \t*,") || canonical(name) == "" {
		return sandbox.Invalid("host", "%q is no name of a server; write it like sandbox.example.com, without a port", name)
	}
	return nil
}

// CheckOrigin refuses what no browser sends.
func CheckOrigin(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != text || strings.ToLower(text) != text || strings.Contains(text, "*") {
		return sandbox.Invalid("allow-origin", "%q is no origin; write it like https://app.example.com, without a path", text)
	}
	return nil
}

// canonical is a host's one form: no case, no trailing dot.
func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID(r)
	w.Header().Set(HeaderRequestID, id)
	r.Header.Set(HeaderRequestID, id)
	// Whatever an answer contains, no browser is to take it for something else, or to keep it.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if why := h.host(r); why != "" {
		h.refuse(w, r, id, "host", why, "the server's address, or its operator: serve --host NAME")
		return
	}
	origin := r.Header.Get("Origin")
	w.Header().Add("Vary", "Origin")
	switch {
	case len(r.Header.Values("Origin")) > 1:
		h.refuse(w, r, id, "origin", "there are several origins", "")
		return
	case origin != "" && slices.Contains(h.o.Origins, origin):
		share(w, origin)
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			preflight(w)
			return
		}
	default:
		if why := foreign(r, origin); why != "" {
			h.refuse(w, r, id, "origin", why, "its operator: serve --allow-origin ORIGIN")
			return
		}
	}
	oneHeader(r)
	h.pace(w, r)
	h.next.ServeHTTP(w, r)
}

// HeaderKey is another place for a key, for those who can not set Authorization.
const HeaderKey = "X-API-Key"

// oneHeader puts a key where the API looks for it.
func oneHeader(r *http.Request) {
	if key := r.Header.Get(HeaderKey); key != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	r.Header.Del(HeaderKey)
}

// host says what is wrong with the name that a client has for us. On a unix socket a name says nothing: no browser comes that way.
func (h *handler) host(r *http.Request) string {
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
	// An address can not be made to mean something else, as a name can. It must be the one that was connected to, or loopback.
	if ip, err := netip.ParseAddr(name); err == nil && ip.Zone() == "" {
		if ip = ip.Unmap(); ip.IsLoopback() {
			return ""
		}
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.AddrPort().Addr().Unmap().WithZone("") == ip {
			return ""
		}
	}
	return fmt.Sprintf("this server is not known as %.100q", r.Host)
}

// foreign says why a request is one that a browser made for somebody else's page. A page of our own is fine: its host was
// checked already.
func foreign(r *http.Request, origin string) string {
	if origin != "" {
		u, err := url.Parse(origin)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		if err != nil || u.Host == "" || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Sprintf("pages of %.100q may not use this server", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none": // a program; a page of our own; somebody who typed the address
		return ""
	default:
		return fmt.Sprintf("a browser sent it for a page of another site (%.40q)", site)
	}
}

// share lets pages of an origin read the answer.
func share(w http.ResponseWriter, origin string) {
	w.Header().Set("Access-Control-Allow-Origin", origin)
	w.Header().Set("Access-Control-Expose-Headers", strings.Join([]string{
		HeaderRequestID, "Location", "Retry-After", wire.HeaderRunID, wire.HeaderReceipt, wire.HeaderVersion,
	}, ", "))
}

// preflight says what pages of an origin that may share can send. Credentials are not among it: keys go into a header.
func preflight(w http.ResponseWriter) {
	w.Header().Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", strings.Join([]string{
		"Accept", "Authorization", "Content-Type", "Last-Event-ID", HeaderKey, HeaderRequestID, wire.HeaderIdempotencyKey,
	}, ", "))
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, id, what, why, hint string) {
	if h.o.Log != nil {
		h.o.Log.LogAttrs(r.Context(), slog.LevelWarn, "request refused", slog.String("request", id), slog.String("why", what), slog.String("detail", why),
			slog.String("remote", r.RemoteAddr))
	}
	// The rest of its body is of no interest.
	w.Header().Set("Connection", "close")
	writeProblem(w, &wire.Problem{
		Status: http.StatusForbidden, Code: wire.CodeForbidden, Title: "Forbidden", Detail: why, Hint: hint, Instance: "urn:request:" + id,
	})
}

func writeProblem(w http.ResponseWriter, p *wire.Problem) {
	p.Type = wire.ProblemBase + p.Code
	data, err := json.Marshal(p)
	if err != nil { // of strings and numbers it can not
		data = []byte("{}")
	}
	w.Header().Set("Content-Type", wire.TypeProblem)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(data, '\n')) // who does not read it has missed it
}

// requestID is what a client calls its request, if that can be said in a log, or a name of ours.
func requestID(r *http.Request) string {
	const most = 64
	id := r.Header.Get(HeaderRequestID)
	if id != "" && len(id) <= most && strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == "" {
		return id
	}
	return rand.Text()
}
