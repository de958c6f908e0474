package toolchain

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestClosure(t *testing.T) {
	ls, err := Real("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := Closure([]string{"/bin/ls"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(paths, ls) || !slices.IsSorted(paths) {
		t.Errorf("%s is not in %q", ls, paths)
	}
	libc := false
	for _, p := range paths {
		libc = libc || strings.Contains(p, "libc.so") || strings.Contains(p, "ld-musl")
		st, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		real, err := Real(p)
		isLink := st.Mode()&fs.ModeSymlink != 0
		if err != nil || !isLink && real != p || !isLink && !st.Mode().IsRegular() {
			t.Errorf("%s is neither a link nor a plain file without links: %s, %v", p, real, err)
		}
		// Where a link leads is there too.
		if isLink && !slices.ContainsFunc(paths, func(o string) bool { return o == real || strings.HasPrefix(o, real+"/") }) {
			t.Errorf("%s leads to %s, which is not shown", p, real)
		}
	}
	if !libc {
		t.Errorf("no C library in %q", paths)
	}
}

func TestClosureOfScripts(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	sh, err := Real("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	plain := script("plain", "#!/bin/sh -e\n")
	paths, err := Closure([]string{script("outer", "#!"+plain+"\n")})
	if err != nil || !slices.Contains(paths, sh) || !slices.Contains(paths, plain) {
		t.Errorf("%q, %v", paths, err)
	}
	for name, p := range map[string]string{
		"itself":           script("itself", "#!"+filepath.Join(dir, "itself")+"\n"),
		"no interpreter":   script("nointerpreter", "#!/no/such/shell\n"),
		"text":             script("text", "just text\n"),
		"not there":        filepath.Join(dir, "none"),
		"a directory":      dir,
		"a relative path":  "ls",
		"nothing":          script("nothing", ""),
		"a mark and empty": script("mark", "#!\n"),
	} {
		if paths, err := Closure([]string{p}); err == nil {
			t.Errorf("%s: %q", name, paths)
		}
	}
	if _, err := Closure([]string{filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
