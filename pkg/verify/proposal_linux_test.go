package verify

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// writeTree writes files below a directory.
func writeTree(t *testing.T, dir string, tree map[string]string) {
	t.Helper()
	for name, text := range tree {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// readTree reads all regular files below a directory, as a request's.
func readTree(t *testing.T, dir string) (files []executor.File) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case !d.Type().IsRegular() || d.Name() == ".git":
			return nil
		}
		text, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		files = append(files, executor.File{Path: filepath.ToSlash(rel), Data: text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const calcTest = "import unittest\nfrom calc import twice\n\nclass Calc(unittest.TestCase):\n    def test_two(self):\n        self.assertEqual(twice(2), 4)\n"

func TestProposal(t *testing.T) {
	e := newEngine(t)
	python := map[string]string{"calc.py": "def twice(x): return 2 * x\n", "test_calc.py": calcTest}
	golang := map[string]string{"go.mod": "module a\n\ngo 1.26\n", "a.go": "package a\n\nfunc Two() int { return 2 }\n",
		"b/b.go": "package b\n\nimport \"a\"\n\nfunc Four() int { return a.Two() * 2 }\n"}
	for name, c := range map[string]struct {
		tree       map[string]string
		file, text string
		want       string // in the first failure; "": it is written
	}{
		"right":        {python, "calc.py", "def twice(x):\n    return x + x\n", ""},
		"new":          {python, "new.py", "x = 1\n", ""},
		"syntax":       {python, "calc.py", "def twice(x) return\n", "SyntaxError"},
		"test":         {python, "calc.py", "def twice(x): return x\n", "2 != 4"},
		"hostile":      {python, "calc.py", "import os\nos._exit(0)\n", "verdict ok"},
		"text":         {python, "README.md", "# new\n", ""},
		"go":           {golang, "a.go", "package a\n\nfunc Two() int { return 1 + 1 }\n", ""},
		"go type":      {golang, "a.go", "package a\n\nfunc Two() int { return \"\" }\n", "cannot use"},
		"javascript":   {map[string]string{"a.js": "1\n"}, "a.js", "let = = 1\n", "SyntaxError"},
		"shell":        {map[string]string{"a.sh": "true\n"}, "a.sh", "if\n", "syntax error"},
		"no directory": {map[string]string{"x/a.sh": "true\n"}, "x/a.sh", "echo\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, c.tree)
			if err := os.Mkdir(filepath.Join(dir, ".git"), 0o755); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(dir, c.file)
			was, _ := os.ReadFile(at)
			p, err := OpenProposal(at, []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if p.Project != dir {
				t.Errorf("the project is %s", p.Project)
			}
			r, err := p.Write(t.Context(), e, Change{Request: executor.Request{Files: readTree(t, dir)}})
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, k := range r.Checks {
				if k.Failure != nil {
					said += k.Failure.Message + "\n"
				}
			}
			now, _ := os.ReadFile(at)
			switch {
			case c.want == "" && (!r.Success() || string(now) != c.text || len(r.Updated) != 1):
				t.Errorf("not written: %s", said)
			case c.want != "" && (r.Success() || string(now) != string(was) || !strings.Contains(said, c.want)):
				t.Errorf("%q is there; said %s", now, said)
			}
		})
	}
	t.Run("changed meanwhile", func(t *testing.T) {
		dir := t.TempDir()
		writeTree(t, dir, python)
		at := filepath.Join(dir, "calc.py")
		p, err := OpenProposal(at, []byte("def twice(x): return x + x\n"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		change := func(*Check) { writeTree(t, dir, map[string]string{"calc.py": "theirs\n"}) }
		_, err = p.Write(t.Context(), e, Change{Request: executor.Request{Files: readTree(t, dir)}, OnCheck: change})
		if now, _ := os.ReadFile(at); !errors.Is(err, sandbox.ErrState) || string(now) != "theirs\n" {
			t.Errorf("%v, %q", err, now)
		}
	})
}
