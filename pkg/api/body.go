package api

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// readBody reads a JSON body within its bounds of size and time. The caller calls release when it no longer uses the body.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if body, ok := r.Context().Value(bodyKey{}).([]byte); ok { // see WithBody
		return body, func() {}, nil
	}
	if err := wantJSON(r); err != nil {
		return nil, nil, err
	}
	most := int64(s.opts.Policy.MaxBody)
	if r.ContentLength > most {
		return nil, nil, newProblem(wire.CodeTooLarge, "body: %d bytes are above %s, the most that the operator allows",
			r.ContentLength, sandbox.Size(most))
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opts.Policy.BodyTimeout)) // fails without a connection, as in some tests
	body, release, err = s.bodies.readAll(PrincipalFrom(r.Context()).ID, http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return nil, nil, bodyError(err)
	}
	// net/http reads from the connection from now on, to notice a client that disconnects: that must not time out.
	_ = control.SetReadDeadline(time.Time{})
	return body, release, nil
}

// bodyError turns the error of a body that ends too early into a problem.
func bodyError(err error) error {
	if strings.Contains(err.Error(), "unexpected EOF") {
		return newProblem(wire.CodeMalformed, "body: it ends before the length that was announced")
	}
	return err
}

func wantJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	charset := params["charset"]
	if err != nil || kind != wire.TypeJSON || charset != "" && !strings.EqualFold(charset, "utf-8") {
		p := newProblem(wire.CodeMediaType, "Content-Type: %.80q is not accepted; send %s", given, wire.TypeJSON)
		p.Hint = "curl --json '{…}'"
		return p
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return newProblem(wire.CodeMediaType, "Content-Encoding: %.40q is not accepted; send the body uncompressed", e)
	}
	return nil
}

// negotiate returns the content type that the client prefers among those offered. The first is the default.
func negotiate(r *http.Request, offered ...string) (string, error) {
	accept := r.Header.Values("Accept")
	if len(accept) == 0 {
		return offered[0], nil
	}
	best, quality := "", 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			q = readQuality(text)
		}
		for _, o := range offered {
			if q > quality && matches(kind, o) {
				best, quality = o, q
			}
		}
	}
	if best == "" {
		return "", newProblem(wire.CodeNotAccepted, "Accept: this resource is available as %s", strings.Join(offered, ", "))
	}
	return best, nil
}

func matches(pattern, kind string) bool {
	if pattern == "*/*" || pattern == kind {
		return true
	}
	family, ok := strings.CutSuffix(pattern, "*")
	return ok && strings.HasSuffix(family, "/") && strings.HasPrefix(kind, family)
}

// readQuality reads a number from 0 to 1 with up to three decimals; it returns 0 for invalid text.
func readQuality(text string) float64 {
	if len(text) > 5 || text == "" || text[0] != '0' && text[0] != '1' {
		return 0
	}
	q, scale := 0.0, 1.0
	for i, c := range text {
		switch {
		case i == 1 && c == '.':
		case c >= '0' && c <= '9' && i == 0:
			q = float64(c - '0')
		case c >= '0' && c <= '9' && i > 1:
			scale /= 10
			q += float64(c-'0') * scale
		default:
			return 0
		}
	}
	return min(q, 1)
}
