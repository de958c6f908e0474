package cli

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a.txt", "a.txt", true}, {"*.txt", "a.txt", true}, {"*.txt", "d/a.txt", false}, {"**/*.txt", "d/e/a.txt", true},
		{"**/*.txt", "a.txt", true},
		{"d", "d/e/a.txt", true}, {"d/*", "d/e/a.txt", true}, {"d/*.txt", "d/a.png", false}, {"**", "a", true},
		{"**", "a/b", true}, {"d/**", "d", false},
		{"/workspace/a", "a", true}, {"/tmp/*.log", "/tmp/x.log", true}, {"*.log", "/tmp/x.log", false},
		{"/tmp/**/b", "/tmp/a/a/b", true}, {"?", "ab", false},
	} {
		if got := (copyOut{pattern: c.pattern}).covers(c.name); got != c.want {
			t.Errorf("%s covers %s: %v", c.pattern, c.name, got)
		}
	}
}

// FuzzReadCopyOut: a pattern is refused, or matches only below the writable directories of the sandbox. A plain name covers itself.
func FuzzReadCopyOut(f *testing.F) {
	for _, s := range []string{"*.png", "a:b", "**/x:dir", "/etc/*", "../x", "[", "/tmp/a/../b", ":", "a//b", "./a", ".", "/tmp", `\*`,
		"**/**/**/**/*"} {
		f.Add(s, "a/b/c")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		b, err := readCopyOut(text)
		if err != nil {
			return
		}
		if len(name) < 200 && strings.Count(b.pattern, "**") < 4 {
			b.covers(name)
		}
		inside := b.pattern
		if !path.IsAbs(inside) {
			inside = path.Join(sandbox.WorkspaceDir, inside)
		}
		clean := path.Clean(inside)
		allowed := func(dir string) bool { return strings.HasPrefix(clean+"/", dir) }
		if !slices.ContainsFunc([]string{"/workspace/", "/tmp/", "/home/sandbox/"}, allowed) {
			t.Errorf("%q means %q", text, clean)
		}
		if !strings.ContainsAny(b.pattern, `*?[\`) && !b.covers(b.pattern) {
			t.Errorf("%q does not cover itself", b.pattern)
		}
	})
}

// FuzzCopyFilesOut: no name of an output file makes the command write outside of the directory, or write a hidden file.
func FuzzCopyFilesOut(f *testing.F) {
	for _, s := range []string{"a", "../a", "/tmp/../../a", "a/../../b", ".git/config", "a\x00b", "", ".", "a/./b", "door/x", "d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		top := t.TempDir()
		dir := filepath.Join(top, "in")
		for _, err := range []error{
			os.MkdirAll(filepath.Join(dir, "d"), 0o755), os.Mkdir(filepath.Join(top, "victim"), 0o755),
			os.Symlink("../victim", filepath.Join(dir, "door")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		o := &runOptions{copyOuts: []copyOut{{pattern: "**", dir: dir}, {pattern: "/tmp/**", dir: dir}}}
		o.copyFilesOut([]executor.OutputFile{{Path: name, Data: []byte("x")}}, false)
		err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, p)
			if err == nil && e.Type().IsRegular() && (strings.HasPrefix(rel, "..") || strings.HasPrefix(rel, ".") || strings.Contains(rel, "/.")) {
				t.Errorf("%q wrote %s", name, rel)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
