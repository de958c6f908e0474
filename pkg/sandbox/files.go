package sandbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
)

// File is a regular file that goes into a sandbox, or comes out of it.
type File struct {
	// Path is absolute, and lies in one of the scratch's directories: /workspace, /tmp or $HOME. Put makes the
	// directories on the way.
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"` // permission bits; 0 is 0644
	Data []byte      `json:"-"`
	// Open, where Data is nil, gives the content; an *os.File is copied within the kernel. Put closes it.
	Open func() (io.ReadCloser, error) `json:"-"`
}

// Selection says which files are taken out of a sandbox.
type Selection struct {
	// Patterns are absolute, as for path.Match, with ** for any number of directories. One that names a directory
	// means all that is in it. A pattern without a match is no error.
	Patterns []string `json:"patterns"`
	// MaxFiles and MaxBytes bound what is taken in all; 0 is 1000 files and 64 MiB.
	MaxFiles int  `json:"max_files,omitempty"`
	MaxBytes Size `json:"max_bytes,omitempty"`
}

// The most that is taken unless somebody asks for more.
const (
	DefaultMaxFiles = 1000
	DefaultMaxBytes = 64 * MiB
)

// Untaken is what matched a Selection and was not taken, with the reason: not a regular file, or beyond a bound.
type Untaken struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Filer is what an Instance is too when files can be put into its scratch and taken out of it. Nothing that the
// sandbox has planted there is followed: no link, no mount, no FIFO (D5, F7, F8). Volumes are not part of the scratch.
type Filer interface {
	// Put makes files that belong to the sandbox's user, replacing those of the same name.
	Put(ctx context.Context, files []File) error
	// Take hands every file that is selected to each, in order of their paths; r is read before the next one.
	Take(ctx context.Context, s Selection, each func(f File, size Size, r io.Reader) error) ([]Untaken, error)
}

// Put makes files in a sandbox's scratch before or between its runs.
func (m *Manager) Put(ctx context.Context, id string, files []File) error {
	f, err := m.filer(id, "put files")
	if err != nil {
		return err
	}
	for i := range files {
		if err := validateScratchPath("file", files[i].Path); err != nil {
			return err
		}
		if files[i].Mode&^fs.ModePerm != 0 {
			return Invalid("file", "%q: mode %v has more than permission bits", files[i].Path, files[i].Mode)
		}
	}
	return f.Put(ctx, files)
}

// Take reads files out of a sandbox's scratch.
func (m *Manager) Take(ctx context.Context, id string, s Selection, each func(f File, size Size, r io.Reader) error) ([]Untaken, error) {
	f, err := m.filer(id, "take files")
	if err != nil {
		return nil, err
	}
	for _, p := range s.Patterns {
		if err := validateScratchPath("out", p); err != nil {
			return nil, err
		}
		if _, err := path.Match(p, ""); err != nil {
			return nil, Invalid("out", "%q: %w", p, err)
		}
	}
	if s.MaxFiles <= 0 {
		s.MaxFiles = DefaultMaxFiles
	}
	if s.MaxBytes == 0 {
		s.MaxBytes = DefaultMaxBytes
	}
	return f.Take(ctx, s, each)
}

func (m *Manager) filer(id, op string) (Filer, error) {
	c, err := m.find(id)
	if err != nil {
		return nil, err
	}
	f, ok := c.instance.(Filer)
	if !ok {
		return nil, &Error{Backend: m.backend.Name(), Op: op, Kind: ErrUnsupported}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateDeleted {
		return nil, &Error{Op: op, Kind: ErrState, Err: errors.New("the sandbox is deleted")}
	}
	return f, nil
}

// ScratchDirs are the writable places of every sandbox.
func ScratchDirs() []string { return []string{WorkspaceDir, TmpDir, HomeDir} }

func validateScratchPath(field, p string) error {
	if err := validateInside(field, p); err != nil {
		return err
	}
	for _, d := range ScratchDirs() {
		if strings.HasPrefix(p, d+"/") {
			return nil
		}
	}
	return Invalid(field, "path %q lies in none of %s", p, strings.Join(ScratchDirs(), ", "))
}
