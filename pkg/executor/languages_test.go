package executor

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// named makes empty files.
func named(names ...string) []File {
	files := make([]File, len(names))
	for i, n := range names {
		files[i] = File{Path: n, Data: []byte{}}
	}
	return files
}

func TestDetect(t *testing.T) {
	e := New(nil, Options{})
	for _, c := range []struct {
		name            string
		files           []File
		asked           string
		language, entry string
	}{
		{"extension", named("x.py"), "", "python", "x.py"},
		{"extension in capitals", named("X.PY"), "", "python", "X.PY"},
		{"extension beats shebang", tree("x.js", "#!/usr/bin/python3\n"), "", "javascript", "x.js"},
		{"shebang", tree("x", "#!/usr/bin/python3\n"), "", "python", "x"},
		{"shebang with a version", tree("x", "#!/usr/bin/python3.11\n"), "", "python", "x"},
		{"shebang by env", tree("x", "#!/usr/bin/env node\n"), "", "javascript", "x"},
		{"shebang by env -S", tree("x", "#!/usr/bin/env -S python3 -u\nprint()"), "", "python", "x"},
		{"shebang by env with variables", tree("x", "#!/usr/bin/env -S A=1 python3 -u\n"), "", "python", "x"},
		{"shebang with a space", tree("x", "#! /bin/sh -e\n"), "", "shell", "x"},
		{"shebang with CRLF", tree("x", "#!/bin/bash\r\necho"), "", "shell", "x"},
		{"shebang without a line end", tree("x", "#!/bin/zsh"), "", "shell", "x"},
		{"shebang of an entry", tree("x", "#!/bin/sh\n", "main.py", ""), "x", "shell", "x"},
		{"package.json", named("package.json", "server.js", "schema.sql"), "", "javascript", "server.js"},
		{"package.json with a main", tree("package.json", `{"main":"./lib/go"}`, "lib/go.js", "", "index.js", ""), "", "javascript", "lib/go.js"},
		{"package.json with a main that is not there", tree("package.json", `{"main":"gone.js"}`, "index.js", ""), "", "javascript", "index.js"},
		{"package.json that is none", tree("package.json", `{`, "index.js", ""), "", "javascript", "index.js"},
		{"package.json with a main outside", tree("package.json", `{"main":"../../etc/passwd"}`, "index.js", ""), "", "javascript", "index.js"},
		{"package.json of tools", named("package.json", "main.py"), "", "python", "main.py"},
		{"package.json of TypeScript", named("package.json", "src/index.ts"), "", "typescript", "src/index.ts"},
		{"tsconfig.json", named("tsconfig.json", "package.json", "index.ts", "jest.config.js"), "", "typescript", "index.ts"},
		{"tsconfig.json of JavaScript", named("tsconfig.json", "package.json", "index.js"), "", "javascript", "index.js"},
		{"main", named("main.py", "helper.sh"), "", "python", "main.py"},
		{"only one of its kind", named("tool.py", "README.md", "data.csv"), "", "python", "tool.py"},
		{"only below", named("pkg/__main__.py", "pkg/__init__.py"), "", "python", "pkg"},
		{"package as entry", named("pkg/__main__.py", "run.sh"), "pkg", "python", "pkg"},
		{"entry that is not clean", named("a/x.py", "b.py"), "./a//x.py", "python", "a/x.py"},
		{"installed files say nothing", named("node_modules/x/index.js", "src/tool.py"), "src/tool.py", "python", "src/tool.py"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := e.detect(c.files, c.asked, LanguageOptions{})
			if err != nil {
				t.Fatal(err)
			}
			entry, err := findEntry(l, c.files, c.asked, &LanguageOptions{})
			if err != nil || l.Name != c.language || entry != c.entry {
				t.Errorf("%s, %q (%v) instead of %s, %q", l.Name, entry, err, c.language, c.entry)
			}
		})
	}
}

// Only a language that has the requested options is chosen by the files of a directory.
func TestDetectWithOptions(t *testing.T) {
	e := New(nil, Options{})
	for _, c := range []struct {
		name             string
		files            []File
		language, tested string // without options, and with --test
	}{
		{"declarations of TypeScript beside JavaScript", named("package.json", "tsconfig.json", "index.js", "types/index.d.ts"),
			"typescript", "javascript"},
		{"a script of a shell beside Python", named("setup.py", "xml.py", "push.sh", "tests/test_xml.py"), "", "python"},
		{"a shell's main beside Go", named("main.sh", "go.mod", "x.go"), "go", "go"},
		{"no language has it", named("a.sh"), "shell", "shell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for test, want := range map[bool]string{false: c.language, true: c.tested} {
				l, err := e.detect(c.files, "", LanguageOptions{Test: test})
				if want == "" && err == nil || want != "" && (err != nil || l.Name != want) {
					t.Errorf("test %v: %v, %v instead of %q", test, l, err, want)
				}
			}
		})
	}
}

func TestNotDetected(t *testing.T) {
	e := New(nil, Options{})
	for _, c := range []struct {
		name  string
		files []File
		asked string
		says  []string
	}{
		{"nothing known", named("README.md"), "", []string{"nothing says", "python", "--lang"}},
		{"ambiguous", named("a.py", "b.sh"), "", []string{"python", "shell", "--entry"}},
		{"a shebang of no language", tree("x", "#!/usr/bin/cobol\n"), "", []string{"nothing says"}},
		{"an empty shebang", tree("x", "#!\n"), "", []string{"nothing says"}},
		{"env alone", tree("x", "#!/usr/bin/env\n"), "", []string{"nothing says"}},
		{"installed files alone", named("node_modules/x/index.js", ".git/hooks/x.sh"), "", []string{"nothing says"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := e.detect(c.files, c.asked, LanguageOptions{})
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Fatalf("%v, %v", l, err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v does not say %q", err, s)
				}
			}
		})
	}
}

func TestNoEntry(t *testing.T) {
	for _, c := range []struct {
		name  string
		l     *Language
		files []File
		asked string
		says  []string
	}{
		{"several", &python.Language, named("a.py", "b.py"), "", []string{"a.py, b.py", "--entry a.py"}},
		{"very many", &python.Language, named("a.py", "b.py", "c.py", "d.py", "e.py", "f.py", "g.py"), "", []string{"and 2 others"}},
		{"none", &python.Language, named("a.txt", "b.txt"), "", []string{"__main__.py, main.py", "--entry"}},
		{"not there", &python.Language, named("a.py"), "b.py", []string{`no file "b.py"`}},
		{"a directory without a main", &python.Language, named("a/x.py", "b.py"), "a", []string{`"a" has none of __main__.py`}},
		{"outside", &python.Language, named("a.py"), "../a.py", []string{`no file "../a.py"`}},
		{"two packages", &python.Language, named("a/__main__.py", "b/__main__.py"), "", []string{"--entry"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := findEntry(c.l, c.files, c.asked, &LanguageOptions{})
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Fatal(err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v does not say %q", err, s)
				}
			}
		})
	}
}

func TestLookUp(t *testing.T) {
	e := New(nil, Options{})
	for name, want := range map[string]string{"py": "python", " Python ": "python", "JS": "javascript", "ts": "typescript", "bash": "shell"} {
		if l, err := e.lookUp(name); err != nil || l.Name != want {
			t.Errorf("%q: %v, %v", name, l, err)
		}
	}
	for name, hint := range map[string]string{"pyhton": "--lang python", "javascrip": "--lang javascript", "cobol": ""} {
		_, err := e.lookUp(name)
		if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), "typescript") {
			t.Errorf("%q: %v", name, err)
		}
	}
	seen := map[string]string{}
	for _, l := range e.Languages() {
		for _, n := range append([]string{l.Name}, l.Aliases...) {
			if seen[n] != "" || n != strings.ToLower(n) {
				t.Errorf("%s: %s is %s already, or not in lower case", l.Name, n, seen[n])
			}
			seen[n] = l.Name
		}
		for _, x := range l.Extensions {
			if seen[x] != "" && x != ".sql" { // which both databases read
				t.Errorf("%s: %s is %s already", l.Name, x, seen[x])
			}
			seen[x] = l.Name
		}
		if l.Title == "" || l.Source == "" || l.Plan == nil {
			t.Errorf("%s is incomplete", l.Name)
		}
	}
}

// A shebang is looked for in as much of a file as the kernel reads, and no more.
func TestShebangReadsLittle(t *testing.T) {
	var read int
	f := File{Path: "x", Open: func() (io.ReadCloser, error) { return io.NopCloser(counter{&read}), nil }}
	if s := f.Interpreter(); s != "" || read > 4096 {
		t.Errorf("%q after %d bytes", s, read)
	}
	failing := File{Path: "x", Open: func() (io.ReadCloser, error) { return nil, errors.New("gone") }}
	if s := failing.Interpreter(); s != "" {
		t.Error(s)
	}
}

// counter is an endless file.
type counter struct{ n *int }

func (c counter) Read(b []byte) (int, error) {
	*c.n += len(b)
	return len(b), nil
}

func FuzzDetect(f *testing.F) {
	f.Add("main.py\x01x.sh", "#!/usr/bin/env -S python3 -u\n", "")
	f.Add("package.json\x01index.js", `{"main":"a"}`, "index.js")
	f.Add("tsconfig.json\x01src/index.ts", "", "src")
	f.Add("a/__main__.py\x01b.py", "#!", "a")
	e := New(nil, Options{})
	f.Fuzz(func(t *testing.T, names, content, entry string) {
		var files []File
		for _, n := range strings.Split(names, "\x01") {
			files = append(files, File{Path: n, Data: []byte(content)})
		}
		req := Request{Files: files, Entry: entry}
		j, err := e.newJob(&req)
		if err != nil {
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("%v is not called invalid", err)
			}
			return
		}
		if !slices.Contains(e.languages, j.Language) {
			t.Errorf("%v is no language", j.Language)
		}
		// What starts it is a file of the program, or a directory of one.
		if language.Find(files, j.Entry) == nil && j.Entry != "." && !language.HasDirectory(files, j.Entry) {
			t.Errorf("entry %q is not in %q", j.Entry, names)
		}
	})
}
