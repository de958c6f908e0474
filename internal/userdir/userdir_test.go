package userdir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needUnix(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("needs Linux or macOS: there are no private directories elsewhere")
	}
}

func TestBaseDirectories(t *testing.T) {
	t.Setenv("HOME", "/h")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_DATA_HOME", "/d")
	state, err := State()
	if err != nil || state != filepath.FromSlash("/h/.local/state/sandbox-run") {
		t.Errorf("%q, %v", state, err)
	}
	if data, err := Data(); err != nil || data != filepath.FromSlash("/d/sandbox-run") {
		t.Errorf("%q, %v", data, err)
	}
	t.Setenv("XDG_DATA_HOME", "not/absolute")
	if data, err := Data(); err != nil || data != filepath.FromSlash("/h/.local/share/sandbox-run") {
		t.Errorf("%q, %v", data, err)
	}
	t.Setenv("HOME", "")
	if _, err := State(); err == nil || !strings.Contains(err.Error(), "XDG_STATE_HOME") {
		t.Error(err)
	}
}

func TestDir(t *testing.T) {
	needUnix(t)
	path := filepath.Join(t.TempDir(), "a", "b")
	if _, err := OpenDir(path, Read); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a missing directory: %v", err)
	}
	d, err := OpenDir(path, Write)
	must(t, err)
	defer d.Close()
	for _, made := range []string{path, filepath.Dir(path)} {
		if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", made, info, err)
		}
	}
	f, err := d.Open("file", Write)
	must(t, err)
	defer f.Close()
	if !d.Is("file", f) || d.Is("other", f) {
		t.Error("Is does not find the file by its name")
	}
	must(t, d.Rename("file", "renamed"))
	if !d.Is("renamed", f) || d.Is("file", f) {
		t.Error("Is does not follow a rename")
	}
	for range 2 { // a second listing starts from the first entry
		if names, err := d.Names(); err != nil || !slices.Equal(names, []string{"renamed"}) {
			t.Errorf("%q, %v", names, err)
		}
	}
	must(t, d.Remove("renamed"))
	must(t, d.Remove("renamed")) // removing twice is allowed
	if _, err := d.Open("renamed", Read); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, d.Sync())
}

func TestAppendGoesToTheEnd(t *testing.T) {
	needUnix(t)
	d, err := OpenDir(filepath.Join(t.TempDir(), "d"), Write)
	must(t, err)
	defer d.Close()
	for _, text := range []string{"one", "two"} {
		f, err := d.Open("file", Append)
		must(t, err)
		_, err = f.WriteString(text)
		must(t, err)
		must(t, f.Close())
	}
	if text, err := os.ReadFile(filepath.Join(d.Path(), "file")); string(text) != "onetwo" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestLock(t *testing.T) {
	needUnix(t)
	d, err := OpenDir(filepath.Join(t.TempDir(), "d"), Write)
	must(t, err)
	defer d.Close()
	open := func() *os.File {
		f, err := d.Open("lock", Write)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	reader, other, writer := open(), open(), open()
	must(t, Lock(reader, true, 0))
	must(t, Lock(other, true, 0)) // shared with another reader
	if err := Lock(writer, false, 10*time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("a writer beside readers: %v", err)
	}
	must(t, reader.Close())
	go func() {
		time.Sleep(20 * time.Millisecond)
		other.Close()
	}()
	must(t, Lock(writer, false, 10*time.Second)) // waits for the readers
	if err := Lock(open(), true, 0); !errors.Is(err, ErrBusy) {
		t.Errorf("a reader beside a writer: %v", err)
	}
}

// Replace leaves the old file in place when the content fails, and nothing beside it.
func TestReplace(t *testing.T) {
	needUnix(t)
	path := filepath.Join(t.TempDir(), "own")
	d, err := OpenDir(path, Write)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.WriteFile(filepath.Join(path, "f"+Temporary), []byte("a longer text that a crash left"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, content := range []string{"first", "second", ""} {
		err := d.Replace("f", content == "second", func(w io.Writer) error {
			if _, err := io.WriteString(w, content); err != nil || content != "" {
				return err
			}
			return broken
		})
		want := content
		if content == "" {
			want = "second"
		}
		text, readErr := os.ReadFile(filepath.Join(path, "f"))
		if (content == "") != errors.Is(err, broken) || readErr != nil || string(text) != want {
			t.Errorf("%q: %q, %v, %v", content, text, err, readErr)
		}
	}
	if names, err := d.Names(); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}
