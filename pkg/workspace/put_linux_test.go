package workspace

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestPut(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{})
	dir := w.Volume().Source
	source := filepath.Join(t.TempDir(), "source")
	must(t, os.WriteFile(source, []byte("from a file"), 0o600))
	must(t, w.Put(t.Context(), []sandbox.File{
		{Path: "/workspace/a/b/text", Data: []byte("one")},
		{Path: "/workspace/run", Data: []byte("#!"), Mode: 0o755},
		{Path: "/workspace/copy", Open: func() (io.ReadCloser, error) { return os.Open(source) }},
		{Path: "/workspace/empty", Data: []byte{}},
		{Path: "/workspace/a/b/text", Data: []byte("two")}, // replaced
	}))
	for name, want := range map[string]struct {
		text string
		mode os.FileMode
	}{"a/b/text": {"two", 0o644}, "run": {"#!", 0o755}, "copy": {"from a file", 0o644}, "empty": {"", 0o644}} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if string(text) != want.text || info.Mode().Perm() != want.mode {
			t.Errorf("%s: %q, %v", name, text, info.Mode())
		}
	}
	for _, path := range []string{
		"", "relative", "/workspace", "/workspace/", "/tmp/x", "/workspace/../x", "/workspace/a/../b", "/workspace//x", "/workspace/x\x00",
		"/workspacex/y",
	} {
		if err := w.Put(t.Context(), []sandbox.File{{Path: path}}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/x", Mode: os.ModeSetuid | 0o755}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("set-uid: %v", err)
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/a"}}); !errors.Is(err, sandbox.ErrInvalid) ||
		!strings.Contains(err.Error(), "is a directory") {
		t.Errorf("over a directory: %v", err)
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/run/below"}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("below a file: %v", err)
	}
}

// F8: what an earlier run has planted is not followed.
func TestPutF8(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	must(t, os.WriteFile(precious, []byte("precious"), 0o600))
	w := opened(t, newStore(t), "w", Options{})
	plant(t, w.Volume().Source, outside)
	for _, name := range []string{"file", "fifo", "loop", "up"} { // replaced
		must(t, w.Put(t.Context(), []sandbox.File{{Path: "/workspace/" + name, Data: []byte("put")}}))
		info, err := os.Lstat(filepath.Join(w.Volume().Source, name))
		must(t, err)
		if !info.Mode().IsRegular() {
			t.Errorf("%s: %v", name, info.Mode())
		}
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/out/precious", Data: []byte("put")}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("through a link: %v", err)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestPutKeepsTheCap(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{Cap: sandbox.MiB, Inodes: 32})
	endless := func() (io.ReadCloser, error) { return os.Open("/dev/zero") }
	for name, f := range map[string]sandbox.File{
		"data":   {Path: "/workspace/data", Data: make([]byte, 2<<20)},
		"reader": {Path: "/workspace/reader", Open: endless},
	} {
		if err := w.Put(t.Context(), []sandbox.File{f}); !errors.Is(err, sandbox.ErrRefused) ||
			!strings.Contains(err.Error(), "--workspace-cap") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(w.Volume().Source, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is half there: %v", name, err)
		}
	}
	must(t, w.Put(t.Context(), []sandbox.File{{Path: "/workspace/fits", Data: make([]byte, 512<<10)}}))
	for range 5 { // replaced, not added
		must(t, w.Put(t.Context(), []sandbox.File{{Path: "/workspace/fits", Data: make([]byte, 700<<10)}}))
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/fits", Open: endless}}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("%v", err)
	}
	entries, err := os.ReadDir(w.Volume().Source)
	must(t, err)
	if info, err := os.Stat(filepath.Join(w.Volume().Source, "fits")); err != nil || info.Size() != 700<<10 || len(entries) != 1 {
		t.Errorf("what was to be replaced is not there any more, or something is left: %v, %v", err, entries)
	}
	failing := errors.New("no such source")
	if err := w.Put(t.Context(),
		[]sandbox.File{{Path: "/workspace/x", Open: func() (io.ReadCloser, error) { return nil, failing }}}); !errors.Is(err, failing) {
		t.Error(err)
	}
	if err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/" + strings.Repeat("d/", 40) + "f"}}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("too many: %v", err)
	}
	must(t, w.Close())
	if err := w.Put(t.Context(), nil); !errors.Is(err, sandbox.ErrState) {
		t.Error(err)
	}
}
