package session

import (
	"context"
	"io"
	"io/fs"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Put makes files in the session's sandbox, at any time. Relative paths lie in /workspace.
func (s *Session) Put(ctx context.Context, files []sandbox.File) error {
	s.touch()
	b := s.present()
	m, id := b.session.Sandbox()
	inside := make([]sandbox.File, len(files))
	for i, f := range files {
		f.Path = b.session.Inside(f.Path)
		inside[i] = f
	}
	return m.Put(ctx, id, inside)
}

// Take reads files of the session's sandbox, at any time. Relative patterns lie in /workspace.
func (s *Session) Take(ctx context.Context, sel sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	s.touch()
	b := s.present()
	m, id := b.session.Sandbox()
	patterns := make([]string, len(sel.Patterns))
	for i, p := range sel.Patterns {
		patterns[i] = b.session.Inside(p)
	}
	sel.Patterns = patterns
	return m.Take(ctx, id, sel, each)
}

// Entry is a file of a session.
type Entry struct {
	Path string       `json:"path"`
	Size sandbox.Size `json:"size"`
	Mode fs.FileMode  `json:"mode"`
}

// Files lists the files of a directory, of /workspace if it is empty, with those below it.
func (s *Session) Files(ctx context.Context, dir string) (list []Entry, more []sandbox.Untaken, err error) {
	if dir == "" {
		dir = sandbox.WorkspaceDir
	}
	const most = 10_000
	more, err = s.Take(ctx, sandbox.Selection{Patterns: []string{dir}, MaxFiles: most, MaxBytes: 1 << 50},
		func(f sandbox.File, size sandbox.Size, _ io.Reader) error {
			list = append(list, Entry{f.Path, size, f.Mode})
			return nil
		})
	return list, more, err
}
