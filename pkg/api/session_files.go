package api

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// sessionFiles handles GET /v1/sessions/{id}/files.
func (s *Server) sessionFiles(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	query, err := readQuery(r, "path")
	if err != nil {
		return err
	}
	if err := own.refuseWorkspace(query.Get("path")); err != nil {
		return err
	}
	list, more, err := own.Files(r.Context(), query.Get("path"))
	if err != nil {
		return err
	}
	for i := range more {
		if own.refuseWorkspace(more[i].Path) != nil { // its reason has the host's path
			more[i].Reason = ofWorkspace
		}
	}
	if list == nil {
		list = []session.Entry{}
	}
	return answerJSON(w, http.StatusOK, wire.SessionFiles{Files: list, NotTaken: more})
}

// ofWorkspace is why the files of a workspace are not transferred: it is no part of the sandbox's own disk.
const ofWorkspace = "it is in a workspace of the server, which only cells read and write"

// refuseWorkspace refuses a path in the workspace of a session that has one.
func (own *servedSession) refuseWorkspace(name string) error {
	if own.workspace.release == nil || !within(inside(name), sandbox.WorkspaceDir) {
		return nil
	}
	return wire.NewProblem(wire.CodeConflict, "file %.200q: %s", name, ofWorkspace)
}

// errNotThatFile ends the transfer of a directory.
var errNotThatFile = errors.New("it is a directory")

// getSessionFile handles GET /v1/sessions/{id}/files/{path…}.
func (s *Server) getSessionFile(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	name := r.PathValue("path")
	if err := own.refuseWorkspace(name); err != nil {
		return err
	}
	control := http.NewResponseController(w)
	sent := false
	more, err := own.Take(r.Context(), sandbox.Selection{Patterns: []string{literal(name)}, MaxFiles: 2, MaxBytes: 1 << 50},
		func(f sandbox.File, size sandbox.Size, content io.Reader) error {
			if f.Path != inside(name) {
				return errNotThatFile
			}
			serveHead(w, path.Base(f.Path), int64(size))
			sent = true
			_, err := io.Copy(writerFunc(func(b []byte) (int, error) {
				_ = control.SetWriteDeadline(time.Now().Add(stream.StallTimeout))
				return w.Write(b)
			}), content)
			_ = control.SetWriteDeadline(time.Time{})
			return err
		})
	switch {
	case sent:
		if err != nil {
			panic(http.ErrAbortHandler) // the client must not see a partial file as complete
		}
		return nil
	case errors.Is(err, errNotThatFile), err == nil && len(more) > 0 && more[0].Path != inside(name):
		return wire.NewProblem(wire.CodeConflict, "file %.200q: it is a directory; list its files", name)
	case err != nil:
		return err
	case len(more) > 0:
		return wire.NewProblem(wire.CodeConflict, "file %.200q: %s", name, more[0].Reason)
	}
	p := wire.NewProblem(wire.CodeNotFound, "file %.200q: the session has no such file", name)
	p.Hint = "GET " + wire.PathSessions + "/{id}/files, which lists them"
	return p
}

// inside returns the path of a file in the sandbox.
func inside(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(sandbox.WorkspaceDir, name)
}

// literal is a pattern that matches exactly that name.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

// putSessionFile handles PUT /v1/sessions/{id}/files/{path…}.
func (s *Server) putSessionFile(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	query, err := readQuery(r, "mode")
	if err != nil {
		return err
	}
	f := sandbox.File{Path: r.PathValue("path")}
	if err := own.refuseWorkspace(f.Path); err != nil {
		return err
	}
	if text := query.Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || fs.FileMode(mode)&^fs.ModePerm != 0 {
			return wire.WrongField(wire.CodeInvalid, "mode", "%.40q is not octal permission bits, such as 0755", text)
		}
		f.Mode = fs.FileMode(mode)
	}
	body, done, err := s.uploadBody(w, r)
	if err != nil {
		return err
	}
	most := int64(s.opts.Keep.Upload)
	f.Open = func() (io.ReadCloser, error) { return http.MaxBytesReader(w, io.NopCloser(body), most), nil }
	if err := own.Put(r.Context(), []sandbox.File{f}); err != nil {
		return bodyError(err)
	}
	done()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// uploadBody returns the body of an upload, within the bounds of one file.
func (s *Server) uploadBody(w http.ResponseWriter, r *http.Request) (body io.Reader, done func(), err error) {
	most := s.opts.Keep.Upload
	if r.ContentLength > int64(most) {
		return nil, nil, uploadTooLarge("file: %d bytes are above %s, the most that the operator allows", r.ContentLength, most)
	}
	control := http.NewResponseController(w)
	// Allow the largest file at 64 KiB per second.
	_ = control.SetReadDeadline(time.Now().Add(s.opts.Policy.BodyTimeout + time.Duration(most/(64*sandbox.KiB))*time.Second))
	return r.Body, func() { _ = control.SetReadDeadline(time.Time{}) }, nil
}
