package api

import (
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ReadBody reads a JSON body within the bounds of the policy. The caller calls release when it no longer uses the body.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if body, ok := r.Context().Value(bodyKey{}).([]byte); ok { // see WithBody
		return body, func() {}, nil
	}
	if err := wantJSON(r); err != nil {
		return nil, nil, err
	}
	most := int64(s.opts.Policy.MaxBody)
	if r.ContentLength > most {
		return nil, nil, wire.NewProblem(wire.CodeTooLarge, "body: %d bytes are above %s, the most that the operator allows",
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
		return wire.NewProblem(wire.CodeMalformed, "body: it ends before the length that was announced")
	}
	return err
}

func wantJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	charset := params["charset"]
	if err != nil || kind != wire.TypeJSON || charset != "" && !strings.EqualFold(charset, "utf-8") {
		p := wire.NewProblem(wire.CodeMediaType, "Content-Type: %.80q is not accepted; send %s", given, wire.TypeJSON)
		p.Hint = "curl --json '{…}'"
		return p
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return wire.NewProblem(wire.CodeMediaType, "Content-Encoding: %.40q is not accepted; send the body uncompressed", e)
	}
	return nil
}

// Negotiate returns the content type that the client prefers among those offered. The first is the default.
func Negotiate(r *http.Request, offered ...string) (string, error) {
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
		return "", wire.NewProblem(wire.CodeNotAccepted, "Accept: this resource is available as %s", strings.Join(offered, ", "))
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
	if !quality.MatchString(text) {
		return 0
	}
	q, _ := strconv.ParseFloat(text, 64) // a text of this form is a number
	return min(q, 1)
}

var quality = regexp.MustCompile(`^[01](\.[0-9]{0,3})?$`)
