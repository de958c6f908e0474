//go:build unix

package verify

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.txt")
	open := func(t *testing.T, mode os.FileMode) *HostFile {
		t.Helper()
		_ = os.Remove(name)
		if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(name, 100, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f
	}
	check := func(t *testing.T, want string, mode os.FileMode) {
		t.Helper()
		text, err := os.ReadFile(name)
		st, err2 := os.Lstat(name)
		if err != nil || err2 != nil || string(text) != want || st.Mode().Perm() != mode {
			t.Errorf("%q %v %v %v", text, st, err, err2)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("left: %v %v", left, err)
		}
	}
	t.Run("mode", func(t *testing.T) {
		if err := open(t, 0o751).Replace([]byte("new")); err != nil {
			t.Fatal(err)
		}
		check(t, "new", 0o751)
	})
	t.Run("owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root")
		}
		f := open(t, 0o640)
		f.Close()
		if err := os.Chown(name, 1234, 2345); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(name, 100, false)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Replace([]byte("new")); err != nil {
			t.Fatal(err)
		}
		check(t, "new", 0o640)
		st, err := os.Stat(name)
		if sys := st.Sys().(*syscall.Stat_t); err != nil || sys.Uid != 1234 || sys.Gid != 2345 {
			t.Error(sys, err)
		}
	})
	for what, change := range map[string]func() error{
		"content": func() error { return os.WriteFile(name, []byte("other"), 0o600) },
		"longer":  func() error { return os.WriteFile(name, []byte("old and more"), 0o600) },
		"other file": func() error {
			return errors.Join(os.WriteFile(name+".x", []byte("old"), 0o600), os.Rename(name+".x", name))
		},
		"removed": func() error { return os.Remove(name) },
		"mode":    func() error { return os.Chmod(name, 0o644) },
		"link":    func() error { return errors.Join(os.Remove(name), os.Symlink("/etc/passwd", name)) },
		"pipe":    func() error { return errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)) },
	} {
		t.Run(what+" changed", func(t *testing.T) {
			f := open(t, 0o600)
			if err := change(); err != nil {
				t.Fatal(err)
			}
			err := f.Replace([]byte("new"))
			if !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "has changed meanwhile") {
				t.Errorf("%v", err)
			}
			if text, _ := os.ReadFile(name + ".none"); text != nil {
				t.Error(text)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 1 {
				t.Errorf("left: %v %v", left, err)
			}
		})
	}
	t.Run("two at once", func(t *testing.T) {
		a, b := open(t, 0o600), (*HostFile)(nil)
		b, err := OpenFile(name, 100, false)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		var wait sync.WaitGroup
		errs := make([]error, 2)
		wait.Go(func() { errs[0] = a.Replace([]byte("one")) })
		wait.Go(func() { errs[1] = b.Replace([]byte("two")) })
		wait.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("%v", errs)
		}
		want := "one"
		if errs[0] != nil {
			want = "two"
		}
		check(t, want, 0o600)
	})
	t.Run("created meanwhile", func(t *testing.T) {
		_ = os.Remove(name)
		f, err := OpenFile(name, 100, true)
		if err != nil || f.Content != nil {
			t.Fatal(f, err)
		}
		defer f.Close()
		if err := os.WriteFile(name, []byte("theirs"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Replace([]byte("ours")); !errors.Is(err, sandbox.ErrState) {
			t.Error(err)
		}
		check(t, "theirs", 0o600)
	})
}

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "link")), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.WriteFile(filepath.Join(dir, "large"), make([]byte, 101), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"link": "symbolic link", "pipe": "regular file", "large": "more than 100 bytes", ".": "regular file",
		"none": "no such file", "none/a": "no such file"} {
		if _, err := OpenFile(dir+"/"+name, 100, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
