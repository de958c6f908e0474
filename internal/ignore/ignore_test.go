package ignore

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		text, path string // a path that ends in a slash is a directory
		want       Decision
	}{
		{"*.log", "a/b.log", Matched},
		{"*.log\n!keep.log", "a/keep.log", Negated},
		{"!keep.log\n*.log", "keep.log", Matched},
		{"/build", "build", Matched},
		{"/build", "a/build", None},
		{"doc/x", "doc/x", Matched},
		{"doc/x", "a/doc/x", None},
		{"build/", "build", None},
		{"build/", "a/build/", Matched},
		{"**/tmp", "a/b/tmp", Matched},
		{"**/tmp", "tmp", Matched},
		{"a/**/z", "a/z", Matched},
		{"a/**/z", "a/b/c/z", Matched},
		{"a/**", "a/", None},
		{"a/**", "a/b", Matched},
		{"**", "x", Matched},
		{"# a\n\\#b\n\\!c", "#b", Matched},
		{"\\!c", "!c", Matched},
		{"a  \nb\\ ", "a", Matched},
		{"b\\ ", "b ", Matched},
		{"a\r\n", "a", Matched},
		{"\ufeffa", "a", Matched},
		{"[a-c]x[!0-9]", "bxy", Matched},
		{"[a-c]x[!0-9]", "bx1", None},
		{"[]x]", "]", Matched},
		{"[[:upper:]_]*", "_a", Matched},
		{"[a", "[a", None},
		{"x*y*z", "xaybyz", Matched},
		{"/\n!\n\n", "a", None},
		{"x/[/a]", "x/a", Matched},
		{`a\/b`, "a/b", Matched},
		{`a\\/b`, `a\/b`, Matched},
	} {
		if got := Parse(c.text).Match(strings.TrimSuffix(c.path, "/"), strings.HasSuffix(c.path, "/")); got != c.want {
			t.Errorf("%q, %q: %v instead of %v", c.text, c.path, got, c.want)
		}
	}
}

func TestMayMatchBelow(t *testing.T) {
	for _, c := range []struct {
		pattern, dir string
		want         bool
	}{
		{"build/gen/x.py", "build", true}, {"build/gen/x.py", "build/gen", true}, {"build/gen/x.py", "build/gen/x.py", false},
		{"build/**", "build/a/b", true}, {"*.csv", "build", false}, {"**/x/y", "build", false}, {"b*/x", "build", true}, {"c/x", "build", false},
	} {
		if got := Parse(c.pattern).MayMatchBelow(c.dir); got != c.want {
			t.Errorf("%q below %q: %v", c.pattern, c.dir, got)
		}
	}
}

func TestLevels(t *testing.T) {
	top, err := (*Level)(nil).Below(".", "*.log\n/only")
	if err != nil {
		t.Fatal(err)
	}
	sub, err := top.Below("a/b", "!own.log\n/only")
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]Decision{"a/b/x.log": Matched, "a/b/own.log": Negated, "a/b/only": Matched, "a/b/c/only": None} {
		if got := sub.Match(p, false); got != want {
			t.Errorf("%s: %v instead of %v", p, got, want)
		}
	}
	if _, err := sub.Below("a/b/c", strings.Repeat("x\n", MaxSize/2)); err == nil {
		t.Error("no bound")
	}
}

// TestGit compares decisions with those of git for random patterns and paths.
func TestGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	seed := rand.Int63()
	random := rand.New(rand.NewSource(seed))
	pick := func(words ...string) string { return words[random.Intn(len(words))] }
	word := func(words ...string) string {
		text := ""
		for range 1 + random.Intn(3) {
			text += pick(words...)
		}
		return text
	}
	paths := map[string]bool{}
	for range 400 {
		p := word("a", "b", "-", ".", "]", "[", "x y", "é")
		for range random.Intn(3) {
			p += "/" + word("a", "b", "c", "B")
		}
		if first, _, _ := strings.Cut(p, "/"); strings.Trim(first, ".") != "" {
			paths[p] = true
		}
	}
	repository := newRepository(t, git)
	for range 20 {
		var text strings.Builder
		for range 12 {
			line := pick("", "", "", "!") + pick("", "", "/", "**/")
			for i := range 1 + random.Intn(3) {
				if i > 0 {
					line += "/"
				}
				name := word("a", "b", "c", "?", "*", "[a-b]", "[!a]", "[^-b]", "[]-]", "[[:alpha:]]", `\a`, `\*`, "é", ".", "[", "B", " ")
				line += pick(name, name, name, "**")
			}
			text.WriteString(line + pick("", "", "/", " ", `\ `, "/**") + "\n")
		}
		repository.compare(t, text.String(), paths, seed)
	}
}

// repository is a repository of git with one ignore file.
type repository struct{ git, dir string }

func newRepository(t *testing.T, git string) *repository {
	t.Helper()
	r := &repository{git, t.TempDir()}
	r.run(t, "", "init", "-q")
	return r
}

func (r *repository) run(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.Command(r.git, args...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(in)
	cmd.Env = []string{"HOME=" + r.dir, "GIT_CONFIG_NOSYSTEM=1", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: none is ignored
		t.Fatalf("git %q: %v", args, err)
	}
	return string(out)
}

// compare asks git about each path. git ignores a path below an ignored directory.
func (r *repository) compare(t *testing.T, text string, paths map[string]bool, seed int64) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, ".gitignore"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	patterns := Parse(text)
	var list bytes.Buffer
	for p := range paths {
		list.WriteString(p + "\x00")
	}
	ignored := strings.Split(r.run(t, list.String(), "check-ignore", "--stdin", "-z", "--no-index"), "\x00")
	for p := range paths {
		ours, names := false, strings.Split(p, "/")
		for i := 1; i <= len(names) && !ours; i++ {
			ours = patterns.Match(strings.Join(names[:i], "/"), i < len(names)) == Matched
		}
		if git := slices.Contains(ignored, p); git != ours {
			t.Errorf("seed %d: %q is ignored by git: %v, here: %v, with\n%s", seed, p, git, ours, text)
		}
	}
}

// FuzzMatch: no pattern takes long, and a pattern without special characters matches itself.
func FuzzMatch(f *testing.F) {
	f.Add("*a*a*a*a*b\n**/**/x/**\n[a-\\]", "aaaaaaaaaaaaaaaa/aaaa")
	f.Add("![[:foo:]]\n\\", "a")
	f.Fuzz(func(t *testing.T, text, p string) {
		all := Parse(text)
		all.Match(p, true)
		all.MayMatchBelow(p)
		plain := strings.Trim(p, "/")
		if plain == "" || strings.ContainsAny(p, "*?[\\\n\r!# \ufeff") || strings.Contains(p, "//") {
			return
		}
		if Parse("/"+plain).Match(plain, false) != Matched {
			t.Errorf("%q does not match itself", plain)
		}
	})
}
