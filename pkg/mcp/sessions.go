package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// SessionCreate is the input of session_create.
type SessionCreate struct {
	Language string            `json:"language" jsonschema:"python, javascript, typescript, go, rust, java, shell, sql, …"`
	Name     string            `json:"name,omitempty" jsonschema:"a name that can be used in place of the handle"`
	Files    []InputFile       `json:"files,omitempty" jsonschema:"files in /workspace"`
	Packages []string          `json:"packages,omitempty" jsonschema:"packages to install first, if the operator allows it"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"environment variables"`
	Memory   string            `json:"memory,omitempty" jsonschema:"such as 1g; default 512m"`
	Timeout  float64           `json:"timeout,omitempty" jsonschema:"seconds that each call of session_run may take; default 30"`
	Network  string            `json:"network,omitempty" jsonschema:"default none"`
	Hosts    []string          `json:"allow_hosts,omitempty" jsonschema:"hosts that the code may reach, such as api.example.com:443"`
}

// SessionInfo is a session.
type SessionInfo struct {
	Session  string    `json:"session" jsonschema:"handle of the session"`
	Language string    `json:"language"`
	Version  string    `json:"version,omitempty"`
	State    string    `json:"state"`
	Expires  time.Time `json:"expires" jsonschema:"when it ends without another call"`
	Packages []string  `json:"packages,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	URI      string    `json:"uri"`
}

func (v *SessionInfo) text() string {
	text := fmt.Sprintf("session=%s: %s %s, %s, expires %s\n", v.Session, v.Language, v.Version, v.State, v.Expires.Format(time.RFC3339))
	if len(v.Packages) > 0 {
		text += "installed: " + strings.Join(v.Packages, ", ") + "\n"
	}
	for _, n := range v.Notes {
		text += "note: " + printable(n) + "\n"
	}
	return text
}

func sessionView(i session.Info) *SessionInfo {
	v := &SessionInfo{
		Session: i.ID, Language: i.Language, Version: i.Version, State: string(i.State), Expires: i.Expires, Notes: i.Notes, URI: sessionURI(i.ID),
	}
	if i.Deps != nil {
		for _, p := range i.Deps.Packages {
			v.Packages = append(v.Packages, p.Name+" "+p.Version)
		}
	}
	return v
}

func (s *Server) sessionCreate(ctx context.Context, req *mcp.CallToolRequest, in SessionCreate) (*SessionInfo, error) {
	run := wire.Run{}
	settings := Settings{Env: in.Env, Packages: in.Packages, Timeout: in.Timeout, Memory: in.Memory, Network: in.Network, Hosts: in.Hosts}
	if err := settings.apply(&run); err != nil {
		return nil, err
	}
	run.Language, run.Files = in.Language, filesOf(in.Files)
	made, err := during(ctx, req, "starting", func() (*client.Session, error) {
		return s.client(ctx).Sessions().Create(ctx, &wire.Session{Run: run, Name: in.Name})
	})
	if err != nil {
		return nil, err
	}
	return sessionView(made.Info()), nil
}

// during reports progress while a request is under way.
func during[T any](ctx context.Context, req *mcp.CallToolRequest, what string, do func() (T, error)) (T, error) {
	p := newProgress(ctx, req)
	if p.token == nil {
		return do()
	}
	over, reported := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reported)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			p.report(what)
			select {
			case <-over:
				return
			case <-ticker.C:
			}
		}
	}()
	v, err := do()
	close(over)
	<-reported
	return v, err
}

// session returns a session by its handle or name. It is not looked up before it is used.
func (s *Server) session(ctx context.Context, handle string) *client.Session {
	return s.client(ctx).Sessions().Of(handle)
}

// SessionRun is the input of session_run.
type SessionRun struct {
	Session   string  `json:"session" jsonschema:"handle or name of the session"`
	Code      string  `json:"code"`
	Timeout   float64 `json:"timeout,omitempty" jsonschema:"seconds; default: that of the session"`
	Verbosity string  `json:"verbosity,omitempty" jsonschema:"how much of the output comes back; default normal"`
}

func (s *Server) sessionRun(ctx context.Context, req *mcp.CallToolRequest, in SessionRun) (*Result, error) {
	cell := session.Cell{Code: in.Code}
	var err error
	if cell.Limits.Wall, err = seconds("timeout", in.Timeout); err != nil {
		return nil, err
	}
	own := s.session(ctx, in.Session)
	r, err := during(ctx, req, "running; session="+in.Session, func() (*session.Result, error) { return own.Execute(ctx, cell) })
	if err != nil {
		return nil, err
	}
	return cellView(r, levels[in.Verbosity], in.Session), nil
}

// cellView returns the result of a cell as it is shown.
func cellView(r *session.Result, l level, handle string) *Result {
	v := viewOf(&r.Result, l, handle+"/"+strconv.FormatUint(r.Cell, 10))
	v.Value = printable(r.Value())
	if len(v.Value) > l.output {
		v.Value = strings.ToValidUTF8(v.Value[:l.output], "") + "…"
	}
	for _, d := range r.Displays {
		for _, kind := range imageTypes {
			var data []byte // base64 in JSON
			if raw := d.Data[kind]; raw != nil && len(raw) <= 2*maxImage && json.Unmarshal(raw, &data) == nil && l.file > 0 {
				v.images = append(v.images, &mcp.ImageContent{Data: data, MIMEType: kind})
				break
			}
		}
	}
	if r.Interrupted {
		v.Notes = append(v.Notes, "the code was interrupted; the state of the session is kept")
	}
	if r.State == session.StateEnded {
		v.Notes = append(v.Notes, "the interpreter has ended: "+r.Cause+"; make another session")
	}
	return v
}

// Session is the input of tools about a session.
type Session struct {
	Session string `json:"session" jsonschema:"handle or name of the session"`
}

func (s *Server) sessionInterrupt(ctx context.Context, _ *mcp.CallToolRequest, in Session) (*Done, error) {
	return &Done{"interrupted; the state is kept"}, s.session(ctx, in.Session).Interrupt()
}

func (s *Server) sessionClose(ctx context.Context, _ *mcp.CallToolRequest, in Session) (*Done, error) {
	return &Done{"closed"}, s.session(ctx, in.Session).Delete(ctx)
}

// SessionFork is the input of session_fork.
type SessionFork struct {
	Session string `json:"session" jsonschema:"handle or name of the session"`
	Name    string `json:"name,omitempty" jsonschema:"name of the new session"`
	Replay  bool   `json:"replay,omitempty" jsonschema:"in a language without forks, run the code again, with all its side effects"`
}

func (s *Server) sessionFork(ctx context.Context, _ *mcp.CallToolRequest, in SessionFork) (*SessionInfo, error) {
	made, err := s.session(ctx, in.Session).Fork(ctx, session.ForkOptions{Name: in.Name, Replay: in.Replay})
	if err != nil {
		return nil, err
	}
	return sessionView(made.Info()), nil
}

// InstallPackages is the input of install_packages.
type InstallPackages struct {
	Session  string   `json:"session" jsonschema:"handle or name of the session"`
	Packages []string `json:"packages" jsonschema:"such as requests or numpy==2.1.0"`
}

// Installed is what was installed.
type Installed struct {
	Packages []string `json:"packages"`
}

func (v *Installed) text() string { return "installed: " + strings.Join(v.Packages, ", ") }

func (s *Server) installPackages(ctx context.Context, req *mcp.CallToolRequest, in InstallPackages) (*Installed, error) {
	own := s.session(ctx, in.Session)
	v := &Installed{Packages: []string{}}
	_, err := during(ctx, req, "installing", func() (any, error) {
		deps, err := own.AddPackages(ctx, in.Packages)
		if err == nil && deps != nil {
			for _, p := range deps.Packages {
				v.Packages = append(v.Packages, p.Name+" "+p.Version)
			}
		}
		return nil, err
	})
	return v, err
}

// FilesList is the input of files_list.
type FilesList struct {
	Session string `json:"session" jsonschema:"handle or name of the session"`
	Path    string `json:"path,omitempty" jsonschema:"a directory, or a pattern such as *.csv; default /workspace"`
}

// FileList is a list of files.
type FileList struct {
	Files   []ListedFile `json:"files"`
	Omitted int          `json:"omitted,omitempty" jsonschema:"files that are left out; list a smaller directory"`
}

// ListedFile is a file in a list.
type ListedFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Not   string `json:"not_readable,omitempty" jsonschema:"why it can not be read"`
}

func (v *FileList) text() string {
	if len(v.Files) == 0 {
		return "no files"
	}
	var b strings.Builder
	for _, f := range v.Files {
		if f.Not != "" {
			fmt.Fprintf(&b, "%s: %s\n", f.Path, f.Not)
			continue
		}
		fmt.Fprintf(&b, "%s %d\n", f.Path, f.Bytes)
	}
	if v.Omitted > 0 {
		fmt.Fprintf(&b, "%d more\n", v.Omitted)
	}
	return b.String()
}

// mostListed bounds the files of a list.
const mostListed = 500

func (s *Server) filesList(ctx context.Context, _ *mcp.CallToolRequest, in FilesList) (*FileList, error) {
	list, more, err := s.session(ctx, in.Session).Files(ctx, in.Path)
	if err != nil {
		return nil, err
	}
	v := &FileList{Files: []ListedFile{}}
	for _, f := range list {
		v.Files = append(v.Files, ListedFile{Path: printable(f.Path), Bytes: int64(f.Size)})
	}
	for _, f := range more {
		v.Files = append(v.Files, ListedFile{Path: printable(f.Path), Not: printable(f.Reason)})
	}
	if n := len(v.Files); n > mostListed {
		v.Files, v.Omitted = v.Files[:mostListed], n-mostListed
	}
	return v, nil
}

// FilesRead is the input of files_read.
type FilesRead struct {
	Session  string `json:"session" jsonschema:"handle or name of the session"`
	Path     string `json:"path" jsonschema:"relative to /workspace, or absolute"`
	Offset   int64  `json:"offset,omitempty" jsonschema:"first byte"`
	Length   int    `json:"length,omitempty" jsonschema:"most bytes; default 8000, at most 100000"`
	Encoding string `json:"encoding,omitempty" jsonschema:"base64: the exact bytes; default text, with control characters escaped"`
}

// FilePart is a part of a file.
type FilePart struct {
	Path   string `json:"path"`
	Text   string `json:"text" jsonschema:"the part, in the encoding"`
	Offset int64  `json:"offset"`
	Next   int64  `json:"next_offset,omitempty" jsonschema:"where to go on; absent at the end"`
}

func (v *FilePart) text() string {
	if v.Next > 0 {
		return fmt.Sprintf("%s\n[… go on with offset=%d …]", v.Text, v.Next)
	}
	return v.Text
}

// mostSkipped bounds what files_read skips: it reads up to the offset, and a file with holes can have terabytes that no disk has.
const mostSkipped = 1 << 30

func (s *Server) filesRead(ctx context.Context, _ *mcp.CallToolRequest, in FilesRead) (*FilePart, error) {
	if in.Offset < 0 || in.Offset > mostSkipped {
		return nil, sandbox.Invalid("offset", "%d is not between 0 and %d; read such a place with session_run", in.Offset, mostSkipped)
	}
	body, err := s.session(ctx, in.Session).Open(ctx, in.Path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if _, err := io.CopyN(io.Discard, body, in.Offset); err != nil && err != io.EOF { //nolint:errorlint // CopyN returns it unwrapped
		return nil, err
	}
	length := lengthOf(in.Length)
	data, err := io.ReadAll(io.LimitReader(body, int64(length)+1))
	if err != nil {
		return nil, err
	}
	v := &FilePart{Path: printable(in.Path), Offset: in.Offset}
	if len(data) > length {
		data = wholeCharacters(data[:length])
		v.Next = in.Offset + int64(len(data))
	}
	v.Text = printable(string(data))
	if in.Encoding == "base64" {
		v.Text = base64.StdEncoding.EncodeToString(data)
	}
	return v, nil
}

// FilesWrite is the input of files_write.
type FilesWrite struct {
	Session  string `json:"session" jsonschema:"handle or name of the session"`
	Path     string `json:"path" jsonschema:"relative to /workspace, or absolute"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content; default text"`
}

func (s *Server) filesWrite(ctx context.Context, _ *mcp.CallToolRequest, in FilesWrite) (*Done, error) {
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, sandbox.Invalid("content", "%w", err)
		}
	}
	f := sandbox.File{Path: in.Path, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
	if err := s.session(ctx, in.Session).Put(ctx, []sandbox.File{f}); err != nil {
		return nil, err
	}
	return &Done{fmt.Sprintf("%s: %d bytes written", printable(cmp.Or(in.Path, "?")), len(data))}, nil
}
