package kitpath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv(Variable, "")
	if _, err := Find(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "make install") {
		t.Errorf("nothing there: %v", err)
	}
	tool := filepath.Join(dir, "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tool, filepath.Join(dir, Name)); err != nil {
		t.Skip("needs symlinks:", err)
	}
	check := func(what, want string) {
		t.Helper()
		got, err := Find()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		a, errA := os.Stat(got)
		b, errB := os.Stat(want)
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		if st, err := os.Lstat(got); err != nil || st.Mode()&os.ModeSymlink != 0 && filepath.Separator == '/' {
			t.Errorf("%s: %s is a symlink", what, got)
		}
	}
	check("on PATH", tool)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	Linked = true
	defer func() { Linked = false }()
	check("linked", self)
	t.Setenv(Variable, tool)
	check("named", tool)
	t.Setenv(Variable, filepath.Join(dir, "none"))
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), Variable) {
		t.Errorf("named and not there: %v", err)
	}
}
