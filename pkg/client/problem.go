package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Problem is an answer of the server without success (RFC 9457). It is also the error that the executor would have returned: errors.Is
// finds sandbox.ErrInvalid and the other kinds in it, and errors.As a *sandbox.Error.
type Problem struct {
	wire.Problem
}

func (p *Problem) Error() string { return p.local().Error() }

// Unwrap returns the error that the executor would have returned.
func (p *Problem) Unwrap() error { return p.local() }

// Temporary reports whether the same request may succeed later.
func (p *Problem) Temporary() bool {
	switch p.Code {
	case wire.CodeTooMany, wire.CodeBusy, wire.CodeDraining:
		return true
	}
	return p.Code == "" && p.Status/100 == 5
}

// Missing reports whether the server lacks a language, or the image that the language needs.
func (p *Problem) Missing() bool { return p.Code == wire.CodeMissing }

// Wait returns how long the server asks the client to wait before the next try; 0 where it does not say.
func (p *Problem) Wait() time.Duration { return time.Duration(p.RetryAfter) * time.Second }

// kinds maps the codes of problems to kinds of errors. A code without an entry is a failure of the server.
var kinds = map[string]error{
	wire.CodeInvalid: sandbox.ErrInvalid, wire.CodeMalformed: sandbox.ErrInvalid, wire.CodeTooLarge: sandbox.ErrInvalid,
	wire.CodeMediaType: sandbox.ErrInvalid,
	wire.CodeMethod:    sandbox.ErrUnsupported, wire.CodeNotAccepted: sandbox.ErrUnsupported, wire.CodeUnsupported: sandbox.ErrUnsupported,
	wire.CodeUnauthorized: sandbox.ErrRefused, wire.CodeForbidden: sandbox.ErrRefused, wire.CodeRefused: sandbox.ErrRefused,
	wire.CodeCeiling:  sandbox.ErrRefused,
	wire.CodeNotFound: sandbox.ErrNotFound, wire.CodeGone: sandbox.ErrNotFound, wire.CodeConflict: sandbox.ErrState,
	wire.CodeNotStarted: sandbox.ErrNotStarted,
}

// local returns the problem as an error of the executor. A wrong field has the name of its flag.
func (p *Problem) local() *sandbox.Error {
	e := &sandbox.Error{Op: "server", Kind: kinds[p.Code], Hint: flagsIn(p.Hint)}
	if p.Code == wire.CodeUnauthorized { // the server's hint names the header of a request
		e.Hint = "--server-key-file FILE, with a key that sandbox-run key create has printed on the server"
	}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if len(p.Errors) > 0 && !p.Missing() { // a missing language or image is no invalid field
		first := p.Errors[0]
		e.Op, text = flagOf(first.Field), first.Message
		for _, more := range p.Errors[1:] {
			text += "; " + more.Field + ": " + more.Message
		}
	}
	// What the executor says without "try" stays so.
	if strings.HasPrefix(p.Hint, "write it like ") || strings.HasPrefix(p.Hint, "use one of ") {
		text, e.Hint = text+"; "+p.Hint, ""
	}
	if wait := p.Wait(); wait > 0 {
		text += fmt.Sprintf(" (try again in %v)", wait)
	}
	e.Err = errors.New(text)
	return e
}

// flagsIn replaces the fields with which a server's hint, or a part of it, begins by their flags: `entry FILE, or language go` becomes
// `--entry FILE, or --lang go`.
func flagsIn(hint string) string {
	const or, leave = ", or ", "leave out "
	parts := strings.Split(hint, or)
	for i, part := range parts {
		rest, found := strings.CutPrefix(part, leave)
		end := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') })
		if end < 0 {
			end = len(rest)
		}
		if wire.IsField(rest[:end]) {
			parts[i] = "--" + flagOf(rest[:end]) + rest[end:]
			if found {
				parts[i] = leave + parts[i]
			}
		}
	}
	return strings.Join(parts, or)
}

// ProblemOf reads an answer without success, closes it, and returns it as a *Problem. An answer without a problem document gives one, too.
func ProblemOf(resp *Response) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	p := &Problem{}
	if err == nil && json.Unmarshal(body, &p.Problem) == nil && p.Title+p.Detail != "" {
		p.Status = resp.Status
		if wait, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && wait > 0 && p.RetryAfter == 0 {
			p.RetryAfter = wait
		}
		return p
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	p.Problem = wire.Problem{Status: resp.Status, Title: fmt.Sprintf("unexpected answer %d %.200q", resp.Status, first)}
	return p
}
