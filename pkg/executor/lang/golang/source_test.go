package golang

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"golang.org/x/tools/txtar"
)

const goHello = "package main\n\nfunc main() { println(1) }\n"

// Positions in a wrapped snippet are those of the snippet: each word of it that survives stands where it stood.
func TestSnippetsKeepTheirPositions(t *testing.T) {
	src := "// about\nimport \"os\"\nx, y := 1, 2; z := x\n\ntype T struct {\n\tvalue int\n}\n" +
		"\tfunc (t T) get() int { return t.value + shared }\nvar shared, other = 3, 4\nvar mine = x\nif x > y {\n" +
		"  fmt.Println(z, T{}.get(), os.Args, mine)\n}\n"
	out := wrapSnippet("main.go", []byte(src))
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "wrapped.go", out, parser.ParseComments)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	lines := strings.Split(src, "\n")
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		at := set.Position(id.Pos())
		if id.Name == "main" { // of our own making
			return true
		}
		if at.Filename != "main.go" {
			t.Errorf("%s is at %s", id.Name, at)
			return true
		}
		seen++
		if at.Line > len(lines) || at.Column-1 > len(lines[at.Line-1]) || !strings.HasPrefix(lines[at.Line-1][at.Column-1:], id.Name) {
			t.Errorf("%s is not at %s", id.Name, at)
		}
		return true
	})
	if seen < 25 {
		t.Errorf("only %d words were looked at", seen)
	}
	var global []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			global = append(global, d.Name.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, n := range s.Names {
						global = append(global, n.Name)
					}
				case *ast.TypeSpec:
					global = append(global, s.Name.Name)
				case *ast.ImportSpec:
					global = append(global, s.Path.Value)
				}
			}
		}
	}
	if wanted := []string{`"fmt"`, `"os"`, "T", "get", "shared", "other", "main"}; !slices.Equal(global, wanted) {
		t.Errorf("at the top are %q, not %q, of:\n%s", global, wanted, out)
	}
}

func TestImportsAreFound(t *testing.T) {
	for src, want := range map[string][]string{
		"fmt.Println(rand.Intn(3))":                       {"fmt", "math/rand"},
		"fmt.Println(rand.IntN(3))":                       {"fmt", "math/rand/v2"},
		"rand.Read(nil)":                                  {"math/rand"},
		"_ = rand.Reader":                                 {"crypto/rand"},
		"template.New(``)":                                {"text/template"},
		"_ = template.HTML(``)":                           {"html/template"},
		"import \"os\"\n_ = os.Args; _ = io.EOF":          {"io"},
		"import \"math/rand/v2\"\nrand.Intn(1)":           nil,
		"type fmt struct{ Println int }\n_ = fmt{}.Print": nil,
		"strings := []string{}; _ = strings.Len":          nil,
		"var url url.URL; _ = url.Host":                   {"net/url"},
		"nothing.Known()":                                 nil,
		"fmt.Println(\"open":                              {"fmt"},
	} {
		all := importsOf(wrapSnippet("main.go", []byte(src)))
		own := importsOf([]byte("package x\n" + src))
		var found []string
		for _, p := range all {
			if !slices.Contains(own, p) {
				found = append(found, p)
			}
		}
		if !slices.Equal(found, want) {
			t.Errorf("%q: %q instead of %q", src, found, want)
		}
	}
}

func TestArchivesAreTold(t *testing.T) {
	for _, c := range []struct {
		name, src string
		files     []string
	}{
		{"plain", goHello, nil},
		{"snippet", "fmt.Println(1)\n", nil},
		{"archive", "-- a.go --\npackage main\n-- b/c.txt --\nx\n", []string{"a.go", "b/c.txt"}},
		{"with a program before it", goHello + "-- go.mod --\nmodule m\n", []string{"main.go", "go.mod"}},
		{"with a snippet before it", "fmt.Println(1)\n-- go.mod --\nmodule m\n", []string{"main.go", "go.mod"}},
		{"with words before it", "How it works: see below.\n-- a.go --\npackage main\n", []string{"a.go"}},
		{"with a comment before it", "// see below\n-- a.go --\npackage main\n", []string{"a.go"}},
		{"in a string", "package main\n\nconst s = `\n-- a.go --\n`\n\nfunc main() {}\n", nil},
		{"in a snippet's string", "s := `\n-- a.go --\n`\nprint(s)\n", nil},
		{"in a comment", "package main\n\n/*\n-- a.go --\n*/\n\nfunc main() {}\n", nil},
	} {
		var names []string
		for _, f := range unpackGo([]byte(c.src)) {
			names = append(names, f.Path)
		}
		if !slices.Equal(names, c.files) {
			t.Errorf("%s: %q instead of %q", c.name, names, c.files)
		}
	}
}

func TestModulesAreRead(t *testing.T) {
	text := `module m // here
go 1.26
require a.com/x v1.0.0 // indirect
require (
	"b.com/Y/v2" v2.1.0
	c.com/z v0.0.0-20200101000000-abcdefabcdef
	d.com/local v1.0.0
)
exclude e.com/no v1.0.0
replace (
	d.com/local => ./local
	c.com/z v0.0.0-20200101000000-abcdefabcdef => f.com/fork v1.2.3
)
`
	listed := func(all []goModule) (text string) {
		for _, m := range all {
			text += fmt.Sprint(m.id(), map[bool]string{true: " indirect"}[m.indirect], "; ")
		}
		return text
	}
	got := listed(readGoMod(text))
	if want := "a.com/x@v1.0.0 indirect; b.com/Y/v2@v2.1.0; f.com/fork@v1.2.3; "; got != want {
		t.Errorf("%s instead of %s", got, want)
	}
	got = listed(readGoSum("a.com/x v1.0.0 h1:x=\na.com/x v1.0.0/go.mod h1:y=\n\nbroken\n"))
	if want := "a.com/x@v1.0.0; a.com/x@v1.0.0; "; got != want {
		t.Errorf("%s instead of %s", got, want)
	}
	for _, m := range []goModule{{path: "../../etc", version: "v1"}, {path: "/etc", version: "v1"}, {path: "a", version: "../v1"},
		{path: "a", version: "v/1"}, {path: "", version: "v1"}, {path: "a b", version: "v1"}, {path: "a", version: ""},
		{path: "a//b", version: "v1"}} {
		if m.valid() {
			t.Errorf("%+v is taken for a module", m)
		}
	}
	if m := (goModule{path: "github.com/BurntSushi/toml", version: "v1.0.0+incompatible"}); !m.valid() ||
		escapeModule(m.path) != "github.com/!burnt!sushi/toml" {
		t.Errorf("%+v, %s", m, escapeModule(m.path))
	}
}

func TestLanguageVersion(t *testing.T) {
	for version, want := range map[string]string{"1.26.8": "1.26", "go1.27rc1": "1.27", "1.26": "1.26"} {
		if got := languageVersion(version); got != want {
			t.Errorf("%s: %s", version, got)
		}
	}
}

// A snippet of statements that are well-formed in a function is well-formed wrapped, and nothing of it is lost.
func FuzzSnippet(f *testing.F) {
	for _, s := range []string{
		"x := 1\nfmt.Println(x)", "func f() {}\nf()", "func (t T) f() {}\ntype T int", "func() int { return 1 }()",
		"var a, b = 1, 2 ; func g() { _ = a }", "var (\n a = 1\n b int\n)",
		"const c = iota; import \"os\"", "for i := range 3 {\n}\n", "/* a */ x := `\n-- a --\n`", "if {", "}}}", "import (", "\x00", "func",
		"func(", "var", "//line x.go:1\ny := 1", "//go:embed a\nvar a string",
		"L:\nfor { break L }", "type T[P any] struct{}; func F[P any](p P) {}", "x := 'a", "\"", "a;b;c", "func main() {}\nx := 1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		if hasPackageClause([]byte(src)) {
			return
		}
		out := wrapSnippet("main.go", []byte(src))
		all := pieces([]byte(src))
		for _, p := range all {
			if !bytes.Contains(out, []byte(p.text)) {
				t.Fatalf("%q is lost in:\n%s", p.text, out)
			}
		}
		// Statements only: whatever a function accepts, the wrapped file is.
		if slices.ContainsFunc(all, func(p piece) bool { return p.kind != statement }) {
			return
		}
		if _, err := format.Source([]byte("package main\nfunc main() {\n" + src + "\n}\n")); err == nil && !strings.Contains(src, "//line") &&
			!strings.Contains(src, "/*line") {
			if _, err := format.Source(out); err != nil {
				t.Fatalf("%v in:\n%s", err, out)
			}
		}
	})
}

// However an archive is written, its files have names that stay in their place, or are refused.
func FuzzArchive(f *testing.F) {
	for _, s := range []string{"-- a.go --\npackage main\n", "-- ../a --\n", "-- /etc/passwd --\nx", goHello + "-- b --\n",
		"-- a --\n-- a/b --\n", "x -- y --\n", "--  --\n", "-- a\x00b --\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		files := unpackGo([]byte(src))
		if files == nil {
			return
		}
		marked := 0
		for _, x := range txtar.Parse([]byte(src)).Files {
			if slices.ContainsFunc(files, func(f language.File) bool { return f.Path == x.Name && bytes.Equal(f.Data, x.Data) }) {
				marked++
			}
		}
		if marked == 0 {
			t.Fatalf("nothing of %q is in %v", src, files)
		}
		j := &language.Job{Files: []language.File{{Path: "main.go", Data: []byte(src)}}, Entry: "main.go", Language: &Language}
		if err := readSingleGo(j); err != nil {
			return
		}
		for _, f := range j.Files {
			if p := filepath.Join("/workspace", f.Path); !strings.HasPrefix(p, "/workspace/") {
				t.Fatalf("%s leaves its place", strconv.Quote(f.Path))
			}
		}
	})
}

// Older go commands do not know every flag.
func TestGoFlags(t *testing.T) {
	for version, pgo := range map[string]bool{"1.19.8": false, "1.20": false, "1.21": true, "1.26.1": true, "1.27rc1": true, "2.0": true,
		"": true} {
		if got := slices.Contains(goFlags(version), "-pgo=off"); got != pgo {
			t.Errorf("%s: %v", version, got)
		}
	}
}

// Nothing but comments is said to be that, instead of what the compiler makes of an empty main.
func TestGoCommentsAlone(t *testing.T) {
	for src, alone := range map[string]bool{
		"// later": true, "/* a\nb */\n\n// c\n": true, "\n": true,
		"// a\nfmt.Println()": false, "package main // a": false, "}": false,
	} {
		j := &language.Job{Files: []language.File{{Path: "main.go", Data: []byte(src)}}}
		_, err := readGo(j)
		said := err != nil && strings.Contains(err.Error(), "there is nothing in main.go but comments")
		if said != alone || said && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", src, err)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	for _, c := range []struct {
		of           func(*sandbox.Result) bool
		signal, code int
		stderr       string
		is           bool
	}{
		{isOutOfMemory, 0, 2, "fatal error: runtime: out of memory\n", true},
		{isOutOfMemory, 0, 2, "runtime: out of memory: cannot allocate 70368744177664-byte block (3964928 in use)\nfatal error: out of memory\n",
			true},
		{isOutOfMemory, 0, 1, "fatal error: out of memory\n", false},
		{isOutOfMemory, 0, 2, "panic: out of memory\n", false},
	} {
		r := &sandbox.Result{Exit: sandbox.Exit{Signal: c.signal, Code: c.code}, Stderr: sandbox.Output{Head: []byte(c.stderr)}}
		if c.of(r) != c.is {
			t.Errorf("%+v %s: %v", r.Exit, c.stderr, !c.is)
		}
	}
}
