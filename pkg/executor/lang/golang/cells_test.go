package golang

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// cellRun is a composer and the number of its last cell.
type cellRun struct {
	*testing.T
	language.Composer
	cell uint64
}

func newCells(t *testing.T) *cellRun { return &cellRun{t, NewComposer(), 0} }

// program composes a cell, keeps it, and returns its program without line directives.
func (c *cellRun) program(code string) string {
	c.Helper()
	c.cell++
	made, err := c.Compose(c.cell, code)
	if err != nil {
		c.Fatalf("%q: %v", code, err)
	}
	text := made.Files[0].Data
	if _, err := parser.ParseFile(token.NewFileSet(), "", text, parser.AllErrors); err != nil {
		c.Errorf("%q: %v in\n%s", code, err, text)
	}
	made.Keep()
	return withoutDirectives(string(text))
}

func withoutDirectives(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "//line ") && strings.TrimSpace(line) != "" {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	text, _, _ = strings.Cut(strings.Join(lines, "\n"), "\nfunc sandboxRunShowCall")
	return text
}

func (c *cellRun) refused(code string) *language.CellError {
	c.Helper()
	c.cell++
	_, err := c.Compose(c.cell, code)
	var e *language.CellError
	if !errors.As(err, &e) || !errors.Is(err, sandbox.ErrInvalid) {
		c.Fatalf("%q: %v", code, err)
	}
	return e
}

func TestCellProgram(t *testing.T) {
	for _, test := range []struct {
		name  string
		cells []string
		want  string // the last program
	}{
		{"declarations stay, statements do not", []string{"type T int\nfunc f() {}\nf()\nx := 1", "const c = 2"},
			"package main\ntype T int\nfunc f() {}\nconst c = 2\nfunc main() {\n}"},
		{"variables at the top stay", []string{"var a = 1\na++", "var b = a"}, "package main\nvar a = 1\nvar b = a\nfunc main() {\n}"},
		{"variables that need statements do not", []string{"n := 3\nvar s = make([]int, n)\nvar t = s", ""}, "package main\nfunc main() {\n}"},
		{"unused variables", []string{"a, _ := 1, 2\nvar b = a"}, "package main\nfunc main() {\na, _ := 1, 2\n_ = a\nvar b = a\n_ = b\n}"},
		{"a value", []string{"1 + 2"},
			"package main\nimport (sandboxRunFmt \"fmt\"; sandboxRunReflect \"reflect\")\nfunc main() {\nsandboxRunShow(\n1 + 2)\n}"},
		{"a call", []string{"f(1)"},
			"package main\nimport (sandboxRunFmt \"fmt\"; sandboxRunReflect \"reflect\")\nfunc main() {\nsandboxRunShowCall(\nf(1))\n}"},
		{"a call for its effect", []string{"fmt.Println(1)"}, "package main\nimport \"fmt\"\nfunc main() {\nfmt.Println(1)\n}"},
		{"a declaration at the end", []string{"1 == 1; type T int"}, "package main\n type T int\nfunc main() {\n1 == 1;\n}"},
		{"imports when they are used", []string{"import str \"strings\"\nimport \"os\"", "_ = str.ToUpper"},
			"package main\nimport str \"strings\"\nfunc main() {\n_ = str.ToUpper\n}"},
		{"an import of this cell must exist", []string{"import \"os\""}, "package main\nimport _ \"os\"\nfunc main() {\n}"},
		{"the later import of a name", []string{"import \"text/template\"", "import \"html/template\"", "var _ template.HTML"},
			"package main\nimport  \"html/template\"\nvar _ template.HTML\nfunc main() {\n}"},
		{"blank imports stay", []string{"import _ \"image/png\"", ""}, "package main\nimport _ \"image/png\"\nfunc main() {\n}"},
		{"dot imports do not", []string{"import . \"math\"\n_ = Pi", ""}, "package main\nfunc main() {\n}"},
		{"a declaration instead of an import", []string{"import \"path\"\nvar _ = path.Base", "type path struct{ Base int }",
			"var _ = path{}.Base\nvar p path\np.Base++"},
			"package main\ntype path struct{ Base int }\nvar _ = path{}.Base\nvar p path\nfunc main() {\np.Base++\n}"},
		{"redeclaration", []string{"func f() {}\nfunc g() {}", "const f = 1"}, "package main\nfunc g() {}\nconst f = 1\nfunc main() {\n}"},
		{"redeclaration of a part", []string{"const (\n\tA = iota\n\tBB\n\tC\n)", "var BB = 1"},
			"package main\nconst (\n\tA = iota\n\t_ \n\tC\n)\nvar BB = 1\nfunc main() {\n}"},
		{"a method again", []string{"type T int\nfunc (T) A() {}\nfunc (*T) B() {}", "func (t T) A() int { return 1 }"},
			"package main\ntype T int\nfunc (*T) B() {}\nfunc (t T) A() int { return 1 }\nfunc main() {\n}"},
		{"a type again", []string{"type T[P any] int\nfunc (T[P]) A() {}\nfunc (*U) A() {}\ntype U int", "type T string"},
			"package main\nfunc (*U) A() {}\ntype U int\ntype T string\nfunc main() {\n}"},
		{"a whole program", []string{"package main\nimport \"fmt\"\nfunc main() { fmt.Println(1) }\nfunc f() {}"},
			"package main\nimport  \"fmt\"\nfunc main() { fmt.Println(1) }\nfunc f() {}"},
		{"after a whole program", []string{"package main\nfunc main() {}\nfunc init() {}\nfunc f() {}", "f()"},
			"package main\nimport (sandboxRunFmt \"fmt\"; sandboxRunReflect \"reflect\")\nfunc f() {}\nfunc main() {\nsandboxRunShowCall(\nf())\n}"},
		{"nothing", []string{"// only this"}, "package main\nfunc main() {\n}"},
		{"after a reset of a name", []string{"x := 1", "var x = 2", "_ = x"}, "package main\nvar x = 2\nfunc main() {\n_ = x\n}"},
		{"a field of the name of a variable", []string{"x := 1", "type P struct{ x int }\n_ = P{x: 1}.x"},
			"package main\ntype P struct{ x int }\nfunc main() {\n_ = P{x: 1}.x\n}"},
		{"a parameter of the name of a variable", []string{"x := 1", "func f(x int) int { return x }"},
			"package main\nfunc f(x int) int { return x }\nfunc main() {\n}"},
		{"a builtin of the name of a variable", []string{"max := 1", "_ = max(1, 2)"}, "package main\nfunc main() {\n_ = max(1, 2)\n}"},
		{"a package of the name of a variable", []string{"path := 1", "import \"path\"\n_ = path.Base", "_ = path.Base"},
			"package main\nimport  \"path\"\nfunc main() {\n_ = path.Base\n}"},
	} {
		c := newCells(t)
		got := ""
		for _, code := range test.cells {
			got = c.program(code)
		}
		if got != test.want {
			t.Errorf("%s:\n%s\nwant:\n%s", test.name, got, test.want)
		}
	}
}

func TestCellRefused(t *testing.T) {
	for _, test := range []struct{ before, code, want string }{
		{"x := 1", "y := 2\n_ = y + x", "cell 2:2:9: x is a variable of cell 1"},
		{"x := 1", "func f() int {\n\treturn x\n}", "cell 2:2:9: x is a variable of cell 1"},
		{"x := 1", "x = 2", "cell 2:1:1: x is a variable of cell 1"},
		{"var x = 1\n{\n}\nx := 2", "x", "cell 2:1:1: x is a variable of cell 1"},
		{"n := 1\nvar s = n", "s", "cell 2:1:1: s is a variable of cell 1"},
		{"", "f(\n", "cell 2:2:1: syntax error: the ( of line 1 is not closed"},
		{"", "}", "cell 2:1:1: syntax error: unexpected }"},
		{"", "}; func f() {", "cell 2:1:1: syntax error: unexpected }"},
		{"", "a\nfunc f() { b c }", "cell 2:2:14: syntax error: "},
		{"", "1 2", "cell 2:1:3: syntax error: "},
		{"", "s := \"a\nb\"", "cell 2:1:6: syntax error: string literal not terminated"},
		{"", "package other", "cell 2:1:1: a cell is a part of package main"},
		{"", "f()\nfunc main() {}", "cell 2:1:1: statements beside func main"},
		{"", strings.Repeat("\n", maxGoLook+1), "cell 2: it has 1048577 bytes"},
	} {
		c := newCells(t)
		c.program(test.before)
		if got := c.refused(test.code).Error(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%.80q: %s, want %s", test.code, got, test.want)
		}
	}
}

// What a session has declared is bounded.
func TestCellsBounded(t *testing.T) {
	c := newCells(t)
	for i := range 3 {
		c.program(fmt.Sprintf("const c%d = `%s`", i, strings.Repeat("x", maxGoLook/4)))
	}
	if e := c.refused(fmt.Sprintf("const c = `%s`", strings.Repeat("x", maxGoLook/4))); !strings.Contains(e.Text, "restart the session") {
		t.Error(e)
	}
}

func TestCellNotKept(t *testing.T) {
	c := newCells(t)
	made, err := c.Compose(1, "x := 1\nfunc f() {}")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.program("_ = x"); strings.Contains(got, "func f") {
		t.Error(got)
	}
	made.Keep()
	if got := c.refused("_ = x"); !strings.Contains(got.Text, "of cell 1") {
		t.Error(got)
	}
	c.Reset()
	if got := c.program("_ = x"); strings.Contains(got, "func f") {
		t.Error(got)
	}
}

func TestCellRevise(t *testing.T) {
	c := NewComposer()
	made, err := c.Compose(7, "f()")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := made.Revise("# command-line-arguments\n./cell 7:1:1: undefined: f\n"); err != nil || again != nil {
		t.Error(again, err)
	}
	again, err := made.Revise("# command-line-arguments\n./cell 7:1:1: f() (no value) used as value\n")
	if err != nil || again == nil {
		t.Fatal(again, err)
	}
	if text := string(again.Files[0].Data); strings.Contains(text, "sandboxRun") || !strings.Contains(text, "f()") {
		t.Error(text)
	}
	if again, err := again.Revise("./cell 7:1:1: f() (no value) used as value\n"); err != nil || again != nil {
		t.Error("the same again", again, err)
	}

	// The compiler tells the name of a package.
	made, err = c.Compose(8, "import \"gopkg.in/yaml.v3\"")
	if err != nil {
		t.Fatal(err)
	}
	again, err = made.Revise("./cell 8:1:8: \"gopkg.in/yaml.v3\" imported as yaml and not used\n")
	if err != nil || again == nil {
		t.Fatal(again, err)
	}
	if text := string(again.Files[0].Data); !strings.Contains(text, `import _ "gopkg.in/yaml.v3"`) {
		t.Error(text)
	}
	again.Keep()
	for code, want := range map[string]bool{"_ = yaml.Marshal": true, "_ = 1": false} {
		if made, err = c.Compose(9, code); err != nil || strings.Contains(string(made.Files[0].Data), `"gopkg.in/yaml.v3"`) != want {
			t.Errorf("%s: %v\n%s", code, err, made.Files[0].Data)
		}
	}
}

func TestCellExplain(t *testing.T) {
	for _, test := range []struct {
		cells                      []string
		phase, said, message, hint string
		line                       int
	}{
		{[]string{"f()"}, "compile", "# command-line-arguments\n./cell 1:1:1: undefined: f\n", "undefined: f", "", 1},
		{[]string{"x := 1\nfunc f() { x++ }"}, "compile", "cell 1:2:12: undefined: x\n", "undefined: x", "x is a variable of this cell's", 2},
		{[]string{"func f() {}\nfunc g() { f() }", "func f(int) {}"}, "compile", "cell 1:2:14: not enough arguments\n",
			"cell 1:2: not enough arguments",
			"what cell 1 has declared does not fit to what cell 2 declares", 0},
		{[]string{"type T int\nfunc (T) M() {}", "type T string\nT(``).M()"}, "compile",
			"cell 2:2:7: T(``).M undefined (type T has no field or method M)\n",
			"T(``).M undefined (type T has no field or method M)", "cell 2 has declared T again, which removed its earlier methods", 2},
		{[]string{"type T int\nfunc (T) M() {}", "type T string", "T(``).M()"}, "compile",
			"cell 3:1:7: T(``).M undefined (type T has no field or method M)\n", "T(``).M undefined (type T has no field or method M)",
			"cell 2 has declared T again", 1},
		{[]string{"func f() { panic(1) }", "\nf()"}, "run",
			"before\npanic: boom [recovered]\n\tpanic: other\n\ngoroutine 1 [running]:\nmain.f(...)\n\tcell 1:1 +0x3\n" +
				"main.main()\n\t/workspace/cell 2:2 +0x25\n", "boom", "", 2},
		{[]string{"os.Exit(3)"}, "run", "no panic: here\n", "", "", 0},
	} {
		c := newCells(t)
		last := len(test.cells) - 1
		for _, code := range test.cells[:last] {
			c.program(code)
		}
		made, err := c.Compose(uint64(last+1), test.cells[last])
		if err != nil {
			t.Fatal(err)
		}
		f := made.Explain(test.phase, test.said)
		if f.Message != test.message || f.Line != test.line || !strings.HasPrefix(f.Hint, test.hint) || (f.Hint == "") != (test.hint == "") {
			t.Errorf("%q: %+v", test.said, f)
		}
	}
}

func TestCellCheck(t *testing.T) {
	for code, want := range map[string]string{
		"": "complete", "x := 1": "complete", "func f() {": "incomplete", "func f() {\n}": "complete", "f(1,\n": "incomplete",
		"x :=":  "incomplete",
		"a +\n": "incomplete", "s := `a\n": "incomplete", "/* a": "incomplete", "// a": "complete", "s := \"a\n": "invalid", ")": "invalid",
		"1 2": "invalid", "import": "incomplete", "type T struct": "incomplete", "if x": "incomplete", "if x {\n} else": "incomplete",
		"func (t T) m() int": "complete", "package main\nfunc main() {}": "complete", "var x int =": "incomplete", "for {}": "complete",
	} {
		if got := NewComposer().Check(code); got != want {
			t.Errorf("%q: %s, want %s", code, got, want)
		}
	}
}

func TestCellDeclared(t *testing.T) {
	c := newCells(t)
	c.program("import \"os\"\nfunc f(a int,\n\tb string) error { return nil }\ntype T struct {\n\tA int\n}\nfunc (t *T) M() {}\n" +
		"const (\n\tX = iota\n\tY\n)\nvar v, w int\ny := 1\nfunc init() {}")
	var got []string
	for _, d := range c.Declared() {
		got = append(got, d.Name+"|"+d.Kind+"|"+d.Text)
	}
	want := "os|import|os\nf|func|func f(a int, b string) error\nT|type|type T struct { A int }\nT.M|func|func (t *T) M()\n" +
		"X|const|const X = iota\n" +
		"Y|const|const Y\nv|var|var v, w int\nw|var|var v, w int"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// The program of every cell that parses parses, and so do those after it.
func FuzzCompose(f *testing.F) {
	for _, s := range []string{
		"x := 1", "func f() {}", "type T int\nfunc (T) m() {}", "const (\n\ta = iota\n\tb\n)", "import . \"fmt\"\nPrintln()", "f(x)", "`", "'a",
		"/*", "}{",
		"var a, b = 1, 2", "L:\n\tfor {\n\t\tbreak L\n\t}", "//line a:1\nx := 1", "x;;", "package main\nfunc main() {}", "func (", "a, b := 1,",
		"\ufeffx",
		"switch x := y.(type) {\ncase int:\n}", "x // a", "\r\nx\r\n", "type (\n\tA int\n\tB = A\n)", "go f()", "x /* a */ ;", "func f()", "0x",
		"a.\nb",
	} {
		f.Add(s, "x")
		f.Add("x, A, a, T, f := 1", s)
		f.Add("var x, A, a, T, f int", s)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		c := NewComposer()
		for i, code := range []string{first, second, "type T int", "1"} {
			c.Check(code)
			made, err := c.Compose(uint64(i+1), code)
			if err != nil {
				continue
			}
			text := made.Files[0].Data
			if _, err := parser.ParseFile(token.NewFileSet(), "", text, parser.AllErrors); err != nil {
				t.Fatalf("%q: %v\n%s", code, err, text)
			}
			if again, err := made.Revise(fmt.Sprintf("cell %d:1:1: f() (no value) used as value\n", i+1)); err == nil && again != nil {
				made = again
			}
			made.Explain("compile", second)
			made.Keep()
			c.Declared()
		}
	})
}
