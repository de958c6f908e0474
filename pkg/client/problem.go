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

// Problem is an answer of the server's that is none of success (RFC 9457). It is also the error that the engine would have returned:
// errors.Is finds sandbox.ErrInvalid and its like in it, and errors.As a *sandbox.Error.
type Problem struct {
	wire.Problem
}

func (p *Problem) Error() string { return p.local().Error() }

// Unwrap gives the error that the engine would have returned.
func (p *Problem) Unwrap() error { return p.local() }

// Temporary reports whether the same request may be answered otherwise a little later.
func (p *Problem) Temporary() bool {
	switch p.Code {
	case wire.CodeTooMany, wire.CodeBusy, wire.CodeDraining:
		return true
	}
	return p.Code == "" && p.Status/100 == 5
}

// Missing reports whether the server lacks a language, or the image it needs.
func (p *Problem) Missing() bool { return p.Code == wire.CodeMissing }

// Wait is how long the server wants to be left alone; 0 where it does not say.
func (p *Problem) Wait() time.Duration { return time.Duration(p.RetryAfter) * time.Second }

// kinds are what the codes of problems are for the engine. A code that is not here is a failure.
var kinds = map[string]error{
	wire.CodeInvalid: sandbox.ErrInvalid, wire.CodeMalformed: sandbox.ErrInvalid, wire.CodeTooLarge: sandbox.ErrInvalid, wire.CodeMediaType: sandbox.ErrInvalid,
	wire.CodeMethod: sandbox.ErrUnsupported, wire.CodeNotAccepted: sandbox.ErrUnsupported, wire.CodeUnsupported: sandbox.ErrUnsupported,
	wire.CodeUnauthorized: sandbox.ErrRefused, wire.CodeForbidden: sandbox.ErrRefused, wire.CodeRefused: sandbox.ErrRefused, wire.CodeCeiling: sandbox.ErrRefused,
	wire.CodeNotFound: sandbox.ErrNotFound, wire.CodeGone: sandbox.ErrNotFound, wire.CodeConflict: sandbox.ErrState, wire.CodeNotStarted: sandbox.ErrNotStarted,
}

// local is the problem as an error of the engine's. A field that is wrong is named as the engine names it: like its flag.
func (p *Problem) local() *sandbox.Error {
	e := &sandbox.Error{Op: "server", Kind: kinds[p.Code], Hint: p.Hint}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if len(p.Errors) > 0 && !p.Missing() { // what is not there is not wrong
		first := p.Errors[0]
		e.Op, text = flagOf(first.Field), first.Message
		for _, more := range p.Errors[1:] {
			text += "; " + more.Field + ": " + more.Message
		}
	}
	if wait := p.Wait(); wait > 0 {
		text += fmt.Sprintf(" (again in %v)", wait)
	}
	e.Err = errors.New(text)
	return e
}

// ProblemOf reads an answer that is none of success, and closes it. A server that says nothing we understand has a problem all the same.
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
	p.Problem = wire.Problem{Status: resp.Status, Title: fmt.Sprintf("the answer is %d %.200q", resp.Status, first)}
	return p
}
