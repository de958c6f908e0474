package cli

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
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
		{"a.txt", "a.txt", true}, {"*.txt", "a.txt", true}, {"*.txt", "d/a.txt", false}, {"**/*.txt", "d/e/a.txt", true}, {"**/*.txt", "a.txt", true},
		{"d", "d/e/a.txt", true}, {"d/*", "d/e/a.txt", true}, {"d/*.txt", "d/a.png", false}, {"**", "a", true}, {"**", "a/b", true}, {"d/**", "d", false},
		{"/workspace/a", "a", true}, {"/tmp/*.log", "/tmp/x.log", true}, {"*.log", "/tmp/x.log", false}, {"/tmp/**/b", "/tmp/a/a/b", true}, {"?", "ab", false},
	} {
		if got := (copyOut{pattern: c.pattern}).covers(c.name); got != c.want {
			t.Errorf("%s covers %s: %v", c.pattern, c.name, got)
		}
	}
}

// FuzzReadCopyOut: a pattern is refused, or names something below a directory of the sandbox's own, and covers itself where it is a name.
func FuzzReadCopyOut(f *testing.F) {
	for _, s := range []string{"*.png", "a:b", "**/x:dir", "/etc/*", "../x", "[", "/tmp/a/../b", ":", "a//b", "./a", `\*`, "**/**/**/**/*"} {
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
		if clean := path.Clean(inside); !strings.HasPrefix(clean, "/workspace/") && !strings.HasPrefix(clean, "/tmp/") && !strings.HasPrefix(clean, "/home/sandbox/") {
			t.Errorf("%q means %q", text, clean)
		}
		if !strings.ContainsAny(b.pattern, `*?[\`) && !b.covers(b.pattern) {
			t.Errorf("%q does not cover itself", b.pattern)
		}
	})
}

// Whatever a sandbox calls its files, nothing is written outside of the directory, and nothing hidden in it.
func FuzzCopyFilesOut(f *testing.F) {
	for _, s := range []string{"a", "../a", "/tmp/../../a", "a/../../b", ".git/config", "a\x00b", "", ".", "a/./b", "door/x", "d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		top := t.TempDir()
		dir := filepath.Join(top, "in")
		for _, err := range []error{os.MkdirAll(filepath.Join(dir, "d"), 0o755), os.Mkdir(filepath.Join(top, "victim"), 0o755), os.Symlink("../victim", filepath.Join(dir, "door"))} {
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

func TestSuggestMemory(t *testing.T) {
	s := &outcome{machine: sandbox.Machine{Memory: 4 * sandbox.GiB}}
	for limit, want := range map[sandbox.Size]string{
		64 * sandbox.MiB: " 128m", 100 * sandbox.MiB: " 128m", 512 * sandbox.MiB: " 1g", 3 * sandbox.GiB: " 4g", 4 * sandbox.GiB: "",
	} {
		if got := s.suggestMemory(limit); got != want {
			t.Errorf("%v: %q, want %q", limit, got, want)
		}
	}
}

func TestQuoteShell(t *testing.T) {
	if got := quoteShell([]string{"a", "b c", "", "it's", "--x=$y"}); got != `a 'b c' '' 'it'\''s' '--x=$y'` {
		t.Error(got)
	}
}
