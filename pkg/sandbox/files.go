package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// File is a regular file that is copied into or out of a sandbox, or a symbolic link that is made in it.
type File struct {
	// Path is absolute, and lies in one of the scratch's directories: /workspace, /tmp or $HOME. Put makes its parent
	// directories.
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"` // permission bits; 0 is 0644
	Data []byte      `json:"-"`
	// Open, where Data is nil, gives the content; an *os.File is copied within the kernel. Put closes it.
	Open func() (io.ReadCloser, error) `json:"-"`
	// Link is the target of a symbolic link, which Put makes in place of a file and does not follow; empty: a file. Take takes no links.
	Link string `json:"link,omitempty"`
}

// Selection selects the files to copy out of a sandbox.
type Selection struct {
	// Patterns are absolute, as for path.Match, with ** for any number of directories. A pattern that names a directory
	// selects its whole content. A pattern without a match is no error. Patterns lie in the scratch's directories, or
	// name one.
	Patterns []string `json:"patterns"`
	// MaxFiles and MaxBytes bound the whole selection; 0 is 1000 files and 64 MiB.
	MaxFiles int  `json:"max_files,omitempty"`
	MaxBytes Size `json:"max_bytes,omitempty"`
}

// The defaults of Selection.MaxFiles and MaxBytes, and the bounds of patterns.
const (
	DefaultMaxFiles = 1000
	DefaultMaxBytes = 64 * MiB
)

// Untaken is a file that matched a Selection but was not copied, or not in its present state, with the reason: not a
// regular file, beyond a bound, changed while it was read.
type Untaken struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Filer is implemented by an Instance whose scratch supports Put and Take. They follow nothing that the program planted
// there: no link, no mount, no FIFO (D5, F7, F8). Volumes are not part of the scratch.
type Filer interface {
	// Put makes files that belong to the sandbox's user. It replaces files of the same name.
	Put(ctx context.Context, files []File) error
	// Take hands every selected file to each, directory by directory in order of their paths; each reads r before it
	// returns. r has as many bytes as size says, or fewer if a program shortens the file meanwhile. An error of each
	// ends Take.
	Take(ctx context.Context, s Selection, each func(f File, size Size, r io.Reader) error) ([]Untaken, error)
}

// Put makes files in a sandbox's scratch before or between its runs.
func (m *Manager) Put(ctx context.Context, id string, files []File) error {
	c, f, err := m.filer(id, "put files")
	if err != nil {
		return err
	}
	for i := range files {
		if err := validateScratchPath("file", files[i].Path); err != nil {
			return err
		}
		if v := c.volumeAt(files[i].Path); v != nil {
			return Invalid("file", "%q lies in the volume at %s; put it into %s", files[i].Path, v.Target, v.Source)
		}
		if files[i].Mode&^fs.ModePerm != 0 {
			return Invalid("file", "%q: mode %v has more than permission bits", files[i].Path, files[i].Mode)
		}
		if len(files[i].Link) > MaxLink || strings.ContainsRune(files[i].Link, 0) {
			return Invalid("file", "%q: the target of the link has a NUL byte or more than %d bytes", files[i].Path, MaxLink)
		}
	}
	return f.Put(ctx, files)
}

// Take reads files out of a sandbox's scratch.
func (m *Manager) Take(ctx context.Context, id string, s Selection, each func(f File, size Size, r io.Reader) error) ([]Untaken, error) {
	c, f, err := m.filer(id, "take files")
	if err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	var elsewhere []Untaken
	var patterns []string
	for _, p := range s.Patterns {
		if v := c.volumeAt(p); v != nil {
			elsewhere = append(elsewhere, Untaken{p, "it lies in the volume at " + v.Target + ", whose files the host has in " + v.Source})
		} else {
			patterns = append(patterns, p)
		}
	}
	s.Patterns = patterns
	s.MaxFiles, s.MaxBytes = cmp.Or(max(s.MaxFiles, 0), DefaultMaxFiles), cmp.Or(s.MaxBytes, DefaultMaxBytes)
	untaken, err := f.Take(ctx, s, each)
	return append(elsewhere, untaken...), err
}

const maxPatterns = 100

// MaxLink is the length of the longest target of a link, as the kernel's.
const MaxLink = 4095

// Validate returns the error with which Take would refuse the selection, before a program runs.
func (s Selection) Validate() error {
	if len(s.Patterns) > maxPatterns {
		return Invalid("out", "%d patterns; the most is %d", len(s.Patterns), maxPatterns)
	}
	for _, p := range s.Patterns {
		if err := ValidatePattern(p); err != nil {
			return err
		}
	}
	return nil
}

// ValidatePattern returns the error of an invalid pattern of a Selection.
func ValidatePattern(p string) error {
	if !slices.Contains(ScratchDirs(), p) {
		if err := validateScratchPath("out", p); err != nil {
			return err
		}
	}
	for part := range strings.SplitSeq(p, "/") {
		if _, err := path.Match(part, ""); err != nil {
			return Invalid("out", "%q: %w", p, err)
		}
	}
	return nil
}

// volumeAt returns the volume that contains a path, or nil.
func (c *container) volumeAt(p string) *Volume {
	for i, v := range c.spec.Volumes {
		if lies(p, v.Target) {
			return &c.spec.Volumes[i]
		}
	}
	return nil
}

func (m *Manager) filer(id, op string) (*container, Filer, error) {
	c, err := m.find(id)
	if err != nil {
		return nil, nil, err
	}
	f, ok := c.instance.(Filer)
	if !ok {
		return nil, nil, &Error{Backend: m.backend.Name(), Op: op, Kind: ErrUnsupported}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateDeleted {
		return nil, nil, &Error{Op: op, Kind: ErrState, Err: errors.New("the sandbox is deleted")}
	}
	return c, f, nil
}

// HostDirs are the host paths that a root without further settings shows, read-only, where they exist: links where they
// are links.
func HostDirs() []string {
	return []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ssl/certs"}
}

// ScratchDirs are the writable directories of every sandbox.
func ScratchDirs() []string { return []string{WorkspaceDir, TmpDir, HomeDir} }

func validateScratchPath(field, p string) error {
	if err := validateInside(field, p); err != nil {
		return err
	}
	if slices.ContainsFunc(ScratchDirs(), func(d string) bool { return strings.HasPrefix(p, d+"/") }) {
		return nil
	}
	return Invalid(field, "path %q lies in none of %s", p, strings.Join(ScratchDirs(), ", "))
}
