package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Sessions are the sessions of the client's key.
type Sessions struct{ c *Client }

// Sessions returns the sessions of the client's key.
func (c *Client) Sessions() Sessions { return Sessions{c} }

// NewSession converts a request for a local session to one for a server. The error is that of NewRun.
func NewSession(req *session.Request) (*wire.Session, error) {
	for _, no := range []struct {
		field string
		given bool
	}{
		{"code", req.Code != ""}, {"args", len(req.Args) > 0}, {"tty", req.TTY != nil},
		{"out", len(req.Outputs.Patterns) > 0},
	} {
		if no.given {
			return nil, &UnsendableError{no.field, "a session has none"}
		}
	}
	run, err := NewRun(&req.Request)
	if err != nil {
		return nil, err
	}
	return &wire.Session{Run: *run, Name: req.Name, Idle: wire.Duration(req.Idle), Lifetime: wire.Duration(req.Lifetime)}, nil
}

// Create makes a session. The error is an *executor.InstallFailure if its packages could not be installed, and otherwise a *Problem where
// the server refused or failed.
func (s Sessions) Create(ctx context.Context, req *wire.Session) (*Session, error) {
	return s.c.created(s.c.post(ctx, wire.PathSessions, req, wire.TypeJSON, ""))
}

// created reads the answer to the creation of a session.
func (c *Client) created(resp *Response, err error) (*Session, error) {
	if err != nil {
		return nil, ofSession(err)
	}
	if resp.Status != 201 {
		var text json.RawMessage
		if err := decode(resp, &text); err != nil {
			return nil, err
		}
		return nil, failedInstall(text)
	}
	own := &Session{c: c}
	if err := decode(resp, &own.info); err != nil {
		return nil, err
	}
	own.id = own.info.ID
	return own, nil
}

// Get finds a session by its id or its name.
func (s Sessions) Get(ctx context.Context, id string) (*Session, error) {
	own := s.Of(id)
	info, err := own.Refresh(ctx)
	own.id = info.ID
	return own, err
}

// Of returns the session with an id or a name, which it does not look up: the server refuses a call if there is none.
func (s Sessions) Of(id string) *Session { return &Session{c: s.c, id: id} }

// List returns the sessions of the client's key, oldest first.
func (s Sessions) List(ctx context.Context) ([]session.Info, error) {
	var all wire.SessionList
	err := s.c.get(ctx, wire.PathSessions, &all)
	return all.Sessions, err
}

// Close ends a session and removes everything of it.
func (s Sessions) Close(ctx context.Context, id string) error {
	return s.Of(id).Delete(ctx)
}

// Session is a session of the server. Its methods have the names and the results of those of *session.Session, so that one interface fits
// both; the errors wrap session.ErrNotFound, session.ErrEnded and session.ErrBusy alike. They may be called concurrently.
type Session struct {
	c  *Client
	id string

	mu   sync.Mutex
	info session.Info
}

// ID is the session's id.
func (s *Session) ID() string { return s.id }

// Info describes the session as the server has last described it, with Create, Get or Refresh.
func (s *Session) Info() session.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Refresh asks the server for the session's Info.
func (s *Session) Refresh(ctx context.Context) (info session.Info, err error) {
	if err = s.c.get(ctx, s.path(""), &info); err != nil {
		return info, ofSession(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info = info
	return info, nil
}

func (s *Session) path(rest string) string {
	return wire.PathSessions + "/" + url.PathEscape(s.id) + rest
}

// Interrupt interrupts the cell that runs; without one it does nothing. The state survives.
func (s *Session) Interrupt() error { return s.ask(context.Background(), "/interrupt", nil, nil) }

// Restart ends the interpreter and starts another one in the same sandbox: files stay, state does not.
func (s *Session) Restart(ctx context.Context) error { return s.ask(ctx, "/restart", nil, nil) }

// Reset does the same in a fresh sandbox: nothing stays but the session's settings.
func (s *Session) Reset(ctx context.Context) error { return s.ask(ctx, "/reset", nil, nil) }

// Close ends the session and removes everything of it; a server that can not be reached ends it after its idle time. Delete reports that.
func (s *Session) Close() { _ = s.Delete(context.Background()) }

// Delete is Close with an error.
func (s *Session) Delete(ctx context.Context) error {
	resp, err := s.c.do(ctx, &Request{Method: "DELETE", Path: s.path(""), IdleTimeout: answerTimeout})
	if err != nil {
		return ofSession(err)
	}
	return drain(resp)
}

// Fork makes a second session; see session.Session.Fork.
func (s *Session) Fork(ctx context.Context, o session.ForkOptions) (*Session, error) {
	return s.c.created(s.c.post(ctx, s.path("/fork"), wire.Fork{Name: o.Name, Replay: o.Replay}, wire.TypeJSON, ""))
}

// AddPackages installs packages between two cells. The error is an *executor.InstallFailure if they could not be installed.
func (s *Session) AddPackages(ctx context.Context, packages []string) (*executor.Deps, error) {
	var text json.RawMessage
	if err := s.ask(ctx, "/packages", wire.Packages{Packages: packages}, &text); err != nil {
		return nil, err
	}
	var answer struct {
		wire.Added
		Verdict sandbox.Verdict `json:"verdict"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("answer: decode: %w", err)
	}
	if answer.Verdict != "" {
		return nil, failedInstall(text)
	}
	return answer.Deps, nil
}

// SetNetwork changes the network of the session between two cells.
func (s *Session) SetNetwork(ctx context.Context, p network.Policy) error {
	return s.send(ctx, "PUT", "/network", wire.Network{Network: p}, nil)
}

// failedInstall reads the result of an installation.
func failedInstall(text []byte) error {
	r, err := wire.DecodeResult(text)
	if err != nil {
		return err
	}
	return &executor.InstallFailure{Result: r}
}

// Check reports whether code is a complete cell.
func (s *Session) Check(ctx context.Context, code string) (r protocol.Checked, err error) {
	return r, s.ask(ctx, "/check", wire.Code{Code: code}, &r)
}

// Complete lists how the word before the cursor, a number of bytes, may go on.
func (s *Session) Complete(ctx context.Context, code string, cursor int) (r protocol.Completed, err error) {
	return r, s.ask(ctx, "/complete", wire.Completion{Code: code, Cursor: &cursor}, &r)
}

// Inspect describes the value of a name or an expression.
func (s *Session) Inspect(ctx context.Context, code string) (r protocol.Inspected, err error) {
	return r, s.ask(ctx, "/inspect", wire.Code{Code: code}, &r)
}

// Variables lists the user's variables.
func (s *Session) Variables(ctx context.Context) (r protocol.Variables, err error) {
	return r, ofSession(s.c.get(ctx, s.path("/variables"), &r))
}

// History returns the cells that were executed since the last start, as far as they are kept.
func (s *Session) History(ctx context.Context) ([]session.Past, error) {
	var h wire.History
	err := ofSession(s.c.get(ctx, s.path("/history"), &h))
	return h.Cells, err
}

// Answer answers the question of the running cell with a line, or ends its input. Execute does that by itself, with Cell.Input.
func (s *Session) Answer(ctx context.Context, line string, ok bool) error {
	return s.ask(ctx, "/input", wire.Line{Line: line, End: !ok}, nil)
}

// ask posts a document, and reads the answer into a value unless that is nil.
func (s *Session) ask(ctx context.Context, path string, doc, into any) error {
	return s.send(ctx, "POST", path, doc, into)
}

func (s *Session) send(ctx context.Context, method, path string, doc, into any) error {
	if doc == nil {
		doc = struct{}{}
	}
	resp, err := s.c.send(ctx, method, s.path(path), doc, wire.TypeJSON, "")
	switch {
	case err != nil:
		return ofSession(err)
	case into == nil:
		return drain(resp)
	}
	return decode(resp, into)
}

// Files lists the files of a directory, of /workspace if it is empty, with those below it.
func (s *Session) Files(ctx context.Context, dir string) (list []session.Entry, more []sandbox.Untaken, err error) {
	path := s.path("/files")
	if dir != "" {
		path += "?path=" + url.QueryEscape(dir)
	}
	var all wire.SessionFiles
	err = ofSession(s.c.get(ctx, path, &all))
	return all.Files, all.NotTaken, err
}

// filePath is the path of a file: one that begins with a slash is absolute in the sandbox.
func (s *Session) filePath(name string) string { return s.path("/files/") + url.PathEscape(name) }

// Put makes files in the session's sandbox. Relative paths lie in /workspace.
func (s *Session) Put(ctx context.Context, files []sandbox.File) error {
	for _, f := range files {
		if err := s.put(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) put(ctx context.Context, f sandbox.File) error {
	if f.Link != "" {
		return &UnsendableError{"file", fmt.Sprintf("%.200q is a symbolic link", f.Path)}
	}
	r := &Request{
		Method: "PUT", Path: s.filePath(f.Path), Body: bytes.NewReader(f.Data), Length: int64(len(f.Data)), IdleTimeout: answerTimeout,
		Header: Header{"Content-Type": wire.TypeBinary},
	}
	if f.Mode != 0 {
		r.Path += "?mode=" + strconv.FormatUint(uint64(f.Mode.Perm()), 8)
	}
	if f.Data == nil && f.Open != nil {
		in, err := f.Open()
		if err != nil {
			return err
		}
		defer in.Close()
		r.Body, r.Length = in, -1
	}
	resp, err := s.c.do(ctx, r)
	if err != nil {
		return ofSession(err)
	}
	return drain(resp)
}

// Take reads files of the session's sandbox. Relative patterns lie in /workspace. It transfers a file at a time: of a program that writes
// meanwhile, it sees each file as it is then.
func (s *Session) Take(ctx context.Context, sel sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	var list []session.Entry
	var more []sandbox.Untaken
	for _, p := range sel.Patterns {
		found, rest, err := s.Files(ctx, p)
		if err != nil {
			return nil, err
		}
		list, more = append(list, found...), append(more, rest...)
	}
	var total sandbox.Size
	for i, f := range list {
		reason := ""
		switch total += f.Size; {
		case sel.MaxFiles > 0 && i >= sel.MaxFiles:
			reason = fmt.Sprintf("there are more than %d files", sel.MaxFiles)
		case sel.MaxBytes > 0 && total > sel.MaxBytes:
			reason, total = fmt.Sprintf("the files are larger than %s", sel.MaxBytes), total-f.Size
		}
		if reason != "" {
			more = append(more, sandbox.Untaken{Path: f.Path, Reason: reason})
			continue
		}
		if err := s.take(ctx, f, each); err != nil {
			return more, err
		}
	}
	return more, nil
}

// Open opens a file of the session's sandbox. Relative paths lie in /workspace. The caller closes it.
func (s *Session) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	body, err := s.c.download(ctx, s.filePath(name))
	return body, ofSession(err)
}

func (s *Session) take(ctx context.Context, f session.Entry, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) error {
	body, err := s.Open(ctx, f.Path)
	if err != nil {
		return err
	}
	defer body.Close()
	return each(sandbox.File{Path: f.Path, Mode: f.Mode}, f.Size, body)
}

// sessionError is a problem that is also an error of package session.
type sessionError struct {
	*Problem
	kind error
}

func (e *sessionError) Unwrap() []error { return []error{e.Problem, e.kind} }

// ofSession adds the error of package session to a problem.
func ofSession(err error) error {
	var p *Problem
	if !errors.As(err, &p) {
		return err
	}
	switch p.Code {
	case wire.CodeNotFound:
		return &sessionError{p, session.ErrNotFound}
	case wire.CodeEnded:
		return &sessionError{p, session.ErrEnded}
	case wire.CodeTooMany:
		return &sessionError{p, session.ErrBusy}
	}
	return err
}
