package remote

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// Kinds of errors, for errors.Is.
var (
	ErrUnauthorized = errors.New("access refused")
	ErrNotFound     = errors.New("not found in the registry")
	ErrStalled      = errors.New("stalled")
	ErrPlainHTTP    = errors.New("plain HTTP is not accepted")
	ErrPlatform     = errors.New("no image for the platform")
	ErrUnsupported  = errors.New("unsupported")
	ErrInvalid      = errors.New("invalid answer")
)

// Error is a failed operation on an image of a registry, with its cause and the next step. It never contains credentials, tokens, or the
// query of an address that the registry redirected to: such queries are signed. Messages of the registry are short and have no control
// characters.
type Error struct {
	Reference  string // docker.io/library/python:3.12
	Registry   string // docker.io
	Repository string // library/python
	Op         string // read manifest, download layer sha256:…
	Status     int    // of the HTTP answer; 0 without an answer
	Hint       string
	Err        error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: registry %s: %s: %v", e.Reference, e.Registry, e.Op, e.Err)
	if e.Hint != "" {
		fmt.Fprintf(&b, "; try: %s", e.Hint)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// statusError is an HTTP answer with an unexpected status.
type statusError struct {
	status     int
	host       string // that answered: after a redirect not the registry
	message    string
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s answered %d %s", e.host, e.status, http.StatusText(e.status))
	if e.message != "" {
		text += ": " + e.message
	}
	if e.retryAfter > 0 {
		text += fmt.Sprintf(" (Retry-After: %s)", e.retryAfter)
	}
	return text
}

func (e *statusError) Is(target error) bool {
	switch target {
	case ErrUnauthorized:
		return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden
	case ErrNotFound:
		return e.status == http.StatusNotFound || e.status == http.StatusGone
	}
	return false
}

// stalledError reports a peer that keeps the connection open and sends less than leastRate.
type stalledError struct {
	host string
	wait time.Duration
}

func (e *stalledError) Error() string        { return fmt.Sprintf("%s sent nothing for %s", e.host, e.wait) }
func (e *stalledError) Is(target error) bool { return target == ErrStalled }

// plainError is a refused request over plain HTTP.
type plainError struct{ host, reason string }

func (e *plainError) Error() string {
	return fmt.Sprintf("plain HTTP to %s is refused: %s", e.host, e.reason)
}
func (e *plainError) Is(target error) bool { return target == ErrPlainHTTP }

// isTemporary reports whether the next attempt may succeed.
func isTemporary(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		switch status.status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return true
		case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
			return false
		}
		return status.status >= 500
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsTimeout || dns.IsTemporary
	}
	if slices.ContainsFunc([]error{
		ErrStalled, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.DeadlineExceeded,
		syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
	}, func(temporary error) bool { return errors.Is(err, temporary) }) {
		return true
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	// The standard library does not export the errors of HTTP/2.
	text := err.Error()
	return strings.Contains(text, "http2: ") || strings.Contains(text, "stream error: stream ID")
}

// isNetworkOrTemporary is isTemporary for a host that has answered before: then every failure of the network is worth another attempt.
func isNetworkOrTemporary(err error) bool {
	var network *net.OpError
	return isTemporary(err) || errors.As(err, &network)
}

// tidy converts errors of net/http and of the registry library into the errors above.
func tidy(err error) error {
	if err == nil {
		return nil
	}
	var answer *transport.Error
	if errors.As(err, &answer) {
		status := &statusError{status: answer.StatusCode, host: "the registry"}
		if answer.Request != nil {
			status.host = answer.Request.URL.Host
		}
		var said []string
		for _, d := range answer.Errors {
			said = append(said, plain(string(d.Code)+": "+d.Message))
		}
		status.message = plain(strings.Join(said, "; "))
		return status
	}
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	for { // a request for a token is nested in the request that needs it: the innermost failed
		var inner *url.Error
		if !errors.As(at.Err, &inner) {
			break
		}
		at = inner
	}
	// The library tries HTTPS first, and its error is the more useful one unless the registry does not speak HTTPS.
	var (
		plainHTTP *plainError
		stalled   *stalledError
	)
	switch {
	case errors.As(at.Err, &plainHTTP), errors.Is(at.Err, http.ErrSchemeMismatch) && errors.As(err, &plainHTTP):
		return plainHTTP
	case errors.As(at.Err, &stalled):
		return stalled
	}
	host := "the registry"
	if u, bad := url.Parse(at.URL); bad == nil && u.Host != "" {
		host = u.Host
	}
	return fmt.Errorf("%s: %w", host, at.Err)
}

// plain returns untrusted text as one short line without control characters, for a message.
func plain(text string) string {
	const most = 300
	var b strings.Builder
	for _, r := range strings.TrimSpace(text) {
		if b.Len() > most {
			b.WriteString(" …")
			break
		}
		switch {
		case r == utf8.RuneError || !unicode.IsPrint(r) && !unicode.IsSpace(r):
			b.WriteByte('?')
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// fail wraps an error in an Error with the reference and a hint. It returns nil and an Error unchanged.
func (c *client) fail(op string, err error) error {
	var done *Error
	if err == nil || errors.As(err, &done) {
		return err
	}
	err = tidy(err)
	out := &Error{
		Reference: c.ref.String(), Registry: c.ref.Registry, Repository: c.ref.Repository,
		Op: op, Err: err, Hint: c.hint(err),
	}
	var status *statusError
	if errors.As(err, &status) {
		out.Status = status.status
	}
	return out
}

func (c *client) hint(err error) string {
	var (
		status    *statusError
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		wrongName x509.HostnameError
		expired   x509.CertificateInvalidError
	)
	login := loginCommand(c.ref.Registry)
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.As(err, &status) && status.status == http.StatusTooManyRequests:
		if c.source == "" {
			return "wait a while, or log in for a higher limit: " + login
		}
		return "wait a while"
	case errors.Is(err, ErrUnauthorized) && c.source != "":
		return fmt.Sprintf("check the name, or log in again, the credentials from %s do not do: %s", c.source, login)
	case errors.Is(err, ErrUnauthorized):
		return "check the name (some registries say so of what they do not have), or log in: " + login
	case errors.Is(err, ErrNotFound):
		return "check the name and the tag"
	case errors.Is(err, ErrPlainHTTP), errors.Is(err, http.ErrSchemeMismatch):
		if loopbackName(c.ref.host) {
			return "--insecure, if this registry speaks plain HTTP"
		}
		return fmt.Sprintf("give the registry a certificate, or bring it to this machine: ssh -N -L 5000:%s HOST, and pull localhost:5000/%s "+
			"with --insecure",
			c.ref.host, c.ref.Repository)
	case errors.As(err, &authority):
		return fmt.Sprintf("put the certificate of its authority into /etc/docker/certs.d/%s/ca.crt", c.ref.host)
	case errors.As(err, &wrongName), errors.As(err, &expired):
		return "ask the operator of the registry for a valid certificate, and check this machine's clock"
	case errors.As(err, &dns):
		return "check the registry's name and this machine's network; without one, bring the image as a file: sandbox-run image import"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "the network is unreachable: check the connection, or HTTPS_PROXY; without a network, bring the image as a file: sandbox-run " +
			"image import"
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("check that a registry listens at %s", c.ref.host)
	case errors.Is(err, image.ErrInvalid):
		return "the same image from another registry, and tell the operator of this one"
	case errors.As(err, &status) && status.status >= 500:
		return "again later; what has arrived is kept"
	case isNetworkOrTemporary(err):
		return "again; what has arrived is kept"
	}
	return ""
}

func loginCommand(registry string) string {
	if registry == "docker.io" {
		return "docker login"
	}
	return "docker login " + registry
}
