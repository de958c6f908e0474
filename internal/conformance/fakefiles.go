package conformance

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fakePlace is the fake's scratch: a map, in which a directory is a common prefix of file names.
type fakePlace struct{ i *fakeInstance }

var _ files.Place = fakePlace{}

func (i *fakeInstance) scratch() *files.Scratch {
	return &files.Scratch{Place: fakePlace{i}, Backend: "fake"}
}

func (i *fakeInstance) Put(ctx context.Context, list []sandbox.File) error {
	return i.scratch().Put(ctx, list)
}

func (i *fakeInstance) Take(ctx context.Context, s sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	return i.scratch().Take(ctx, s, each)
}

// name is the map's key of a path of the scratch.
func (fakePlace) name(p string) string {
	for _, part := range files.Parts {
		if rest, ok := strings.CutPrefix(p, part.Name); ok && (rest == "" || rest[0] == '/') {
			return part.At + rest
		}
	}
	return p
}

// children calls want with each file below a directory, by the rest of its path.
func (f fakePlace) children(dir string, want func(rest string) bool) {
	f.i.files.Range(func(key, _ any) bool {
		rest, ok := strings.CutPrefix(key.(string), dir+"/")
		return !ok || want(rest)
	})
}

func (f fakePlace) isDir(name string) (is bool) {
	f.children(name, func(string) bool { is = true; return false })
	return is
}

// fakeFile appears when it is closed.
type fakeFile struct {
	bytes.Buffer
	f    fakePlace
	name string
}

func (w *fakeFile) Close() error {
	w.f.i.files.Store(w.name, w.String())
	return nil
}

func (f fakePlace) Create(p string, mode fs.FileMode) (io.WriteCloser, error) {
	name := f.name(p)
	if f.isDir(name) {
		return nil, syscall.EISDIR
	}
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if _, ok := f.i.files.Load(dir); ok {
			return nil, syscall.ENOTDIR
		}
	}
	f.i.modes.Store(name, mode)
	return &fakeFile{f: f, name: name}, nil
}

func (f fakePlace) Link(string, string) error { return syscall.EOPNOTSUPP }

func (f fakePlace) Remove(p string) error {
	f.i.files.Delete(f.name(p))
	return nil
}

func (f fakePlace) Open(p string) (*files.Content, error) {
	name := f.name(p)
	text, ok := f.i.files.Load(name)
	if !ok {
		if f.isDir(name) {
			return &files.Content{ReadCloser: io.NopCloser(strings.NewReader("")), Mode: fs.ModeDir | 0o755}, nil
		}
		return nil, syscall.ENOENT
	}
	mode, ok := f.i.modes.Load(name)
	if !ok {
		mode = fs.FileMode(0o644)
	}
	return &files.Content{ReadCloser: io.NopCloser(strings.NewReader(text.(string))), Mode: mode.(fs.FileMode),
		Size: int64(len(text.(string)))}, nil
}

func (f fakePlace) List(p string, want func(files.Entry) bool) error {
	seen := map[string]bool{}
	f.children(f.name(p), func(rest string) bool {
		name, _, deeper := strings.Cut(rest, "/")
		if seen[name] {
			return true
		}
		seen[name] = true
		e := files.Entry{Name: name}
		if deeper {
			e.Type = fs.ModeDir
		}
		return want(e)
	})
	return nil
}
