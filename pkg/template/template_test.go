package template

import (
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var update = flag.Bool("update", false, "write the golden files of rendered templates")

func TestMain(m *testing.M) {
	flag.Parse()
	// Every check starts an interpreter: fewer, with many strings each. -rapid.checks says otherwise.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("20"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func render(t *testing.T, text string, vars map[string]any) (string, error) {
	t.Helper()
	tmpl, err := Parse("x", "python", "x.py", text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := tmpl.Render(vars)
	if err != nil {
		return "", err
	}
	return string(r.Files[0].Data), nil
}

func head(variables string) string { return "---\nvariables: {" + variables + "}\n---\n" }

func TestRender(t *testing.T) {
	vars := map[string]any{"s": "a\"b\n", "n": 3, "l": []any{"x", "y"}, "m": map[string]any{"k": map[string]any{"z": true}}}
	for _, c := range []struct{ body, want string }{
		{"plain", "plain"},
		{"{{quote .s}}", `"a\"b\n"`},
		{"{{.n}} {{add .n 1}} {{len .l}}", "3 4 2"},
		{"{{range $i, $x := .l}}{{if $i}}, {{end}}{{$x}}{{else}}none{{end}}", "x, y"},
		{"{{range .l}}{{.}}{{if eq . \"x\"}}{{continue}}{{end}}!{{end}}", "xy!"},
		{"{{range 5}}{{if gt . 2}}{{break}}{{end}}{{.}}{{end}}", "012"},
		{"{{range $k, $v := .m}}{{$k}}{{$v.z}}{{end}}", "ktrue"},
		{"{{with .m.k}}{{.z}}{{$.n}}{{end}}", "true3"},
		{"{{$x := 1}}{{range .l}}{{$x = add $x $x}}{{end}}{{$x}}", "4"},
		{"{{json .m}} {{json .l}} {{json \"<é>\"}}", `{"k":{"z":true}} ["x","y"] "<é>"`},
		{"{{indent 2 \"a\\n\\nb\\n\"}}", "  a\n\n  b\n"},
		{"{{lines \"a\\r\\nb\\n\" | join \"+\"}}", "a+b"},
		{"{{upper \"é\"}}{{lower \"É\"}}{{trim \" x \"}}{{replace \"a\" \"b\" \"aa\"}}", "Ééxbb"},
		{"{{define \"t\"}}<{{.}}>{{end}}{{template \"t\" .n}}{{template \"t\" \"x\"}}", "<3><x>"},
		{"{{and 1 0}}{{or \"\" \"x\"}}{{not .s}}{{and false (index .l 99)}}", "0xfalsefalse"},
		{"{{index .m \"k\" \"z\"}}{{index .l 1}}{{contains \"b\" \"abc\"}}", "trueytrue"},
		{"{{join \"|\" (chunks 4 \"ééé\")}}", "éé|é"},
		{"{{ident \"a.b\"}} {{eq 1 2 1}} {{ne 1 1.0}} {{lt 1 2}} {{ge \"b\" \"a\"}}", "a.b true false true true"},
		{"a {{- /* c */ -}} b", "ab"},
	} {
		got, err := render(t, head("s: , n: , l: , m: ")+c.body, vars)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.body, got, err, c.want)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	bomb := "{{range 100000}}{{range 100000}}{{end}}{{end}}"
	for _, c := range []struct{ body, want string }{
		{"\n{{.m.nope}}", `line 5: <.m.nope>: map has no entry for key "nope"`},
		{"{{.m}}", "can not be printed"},
		{"{{.s.x}}", "can't evaluate field x"},
		{"{{quote .m}}", "quote: "},
		{"{{indent 500 .s}}", "between 0 and 200"},
		{"{{index .l 2}}", "item 2 of a list of 2"},
		{"{{ident \"a;b\"}}", "no name"},
		{"{{eq .s .n}}", "can not be compared"},
		{"{{quote}}", "it is used as: quote TEXT"},
		{"{{.n 1}}", "not a method but has arguments"},
		{"{{range .s}}{{end}}", "range can't iterate over s"},
		{"{{template \"none\"}}", `"none" not defined`},
		{"{{define \"a\"}}{{template \"a\"}}{{end}}{{template \"a\"}}", "more than 100 deep"},
		{bomb, "on and on"},
		{"{{range 1000000}}xxxxxxxxxx{{end}}", "larger than 4 MiB"},
		{"{{$x := .s}}{{range 60}}{{$x = join \"\" (list $x $x)}}{{end}}", "larger than 4 MiB"},
		{"{{$x := \"aaaaaaaaaaaaaaaaaaaa\"}}{{range 10}}{{$x = replace \"a\" $x $x}}{{end}}", "larger than 4 MiB"},
		{"{{join \"\" .n}}", "where a list is needed"},
		{"-- ../x --\nfoo\n", "relative"}, {"-- /x --\nfoo\n", "relative"}, {"-- a --\nx\n-- a --\ny\n", "twice"},
	} {
		_, err := render(t, head("s: , n: , l: , m: ")+c.body,
			map[string]any{"s": "s", "n": 3, "l": []any{"x", "y"}, "m": map[string]any{"k": 1}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v; want %q", c.body, err, c.want)
		}
	}
}

// secret has a method and a field that a template must not reach.
type secret struct{ Key string }

func (secret) Leak() string { return "leaked" }

func TestRenderTakesDataOnly(t *testing.T) {
	for _, v := range []any{secret{"x"}, &secret{"x"}, func() string { return "x" }, []any{secret{}}, map[string]any{"a": make(chan int)}} {
		if out, err := render(t, head("v: ")+"{{len .v}}", map[string]any{"v": v}); err == nil || !strings.Contains(err.Error(), "is no data") {
			t.Errorf("%T was taken: %q, %v", v, out, err)
		}
	}
	for _, name := range []string{"call", "printf", "html", "env", "readFile", "now"} {
		if _, err := Parse("x", "go", "x.go", "{{"+name+" 1}}"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVariables(t *testing.T) {
	text := "---\nvariables:\n  name: {description: whose}\n  count: {default: 7}\n  note: {required: false}\n  colour:\n---\n" +
		"{{.name}} {{.count}} {{.note}}{{.colour}}"
	if got, err := render(t, text, map[string]any{"name": "x", "colour": "red"}); err != nil || got != "x 7 red" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := render(t, text, map[string]any{"nam": "x", "other": 1})
	want := "template x: missing variables: name, colour; unknown variables: nam (name?), other; try: sandbox-run template show x --lang " +
		"python"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"---\nname: x\n", "no end"}, {"---\nnam: x\n---\nb", "line 2: unknown key nam (name?)"}, {"---\n- x\n---\nb", "a list"},
		{"---\nname: 1\n---\nb", "line 2: name: it can not be a number"}, {"---\nname: y\n---\nb", "is called x"},
		{"---\nvariables: [a]\n---\nb", "mapping of names"},
		{"---\nvariables: {a-b: }\n---\nb", "can not name"}, {"---\nvariables: {a: {defult: 1}}\n---\nb", "defult (default?)"},
		{"---\nvariables: {a: {required: 1}}\n---\nb", "can not be a number"},
		{"---\nvariables: {a: {required: true, default: 1}}\n---\nb", "never hold"},
		{"---\nentry: ../x\n---\nb", "relative"}, {"---\n---\n", "empty"}, {"{{", "x:1"}, {"---\n\n---\n\n{{nope}}", `x:5: function "nope"`},
		{head("abc: ") + "{{.abd}} {{$.q}} {{range .abc}}{{.inner}}{{end}}", "does not declare: abd (abc?), q"},
		{"text\n-- a --\nx\n", "before the first file"}, {"a\xff", "not UTF-8"}, {strings.Repeat("{{if 1}}", 300), "200 deep"},
		{"{{" + strings.Repeat("(", 300) + "1", "200 deep"}, {strings.Repeat("x", maxTemplate+1), "bytes are more"},
	} {
		_, err := Parse("x", "go", "x.go", c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%.60q: %v; want %q", c.text, err, c.want)
		}
	}
}

// TestCodeIsNotRead: what variables hold is never a placeholder, nor the beginning of a file.
func TestCodeIsNotRead(t *testing.T) {
	const nasty = "{{.other}}\n-- evil.py --\n{{range}}\n---\n"
	tmpl, err := Parse("x", "python", "x.py", head("code: ")+"-- a.py --\n{{.code}}\n-- b.py --\nend\n")
	if err != nil {
		t.Fatal(err)
	}
	r, err := tmpl.Render(map[string]any{"code": nasty})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Files) != 2 || string(r.Files[0].Data) != nasty+"\n" || r.Files[1].Path != "b.py" || r.Entry != "a.py" {
		t.Errorf("%+v", r)
	}
}

func TestStore(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(first, "mine.py", "---\ndescription: first\n---\nx")
	write(second, "mine.py", "---\ndescription: second\n---\nx")
	write(second, "harness.go", "---\ndescription: own\n---\nx")
	write(second, "odd.c", "x")
	write(second, "bad.py", "{{")
	write(second, ".hidden.py", "x")
	if err := os.Mkdir(filepath.Join(second, "dir.py"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := Open(first, second, filepath.Join(first, "missing"))
	got := map[string]Info{}
	for _, info := range s.List() {
		got[info.Name+"."+info.Language] = info
	}
	if i := got["mine.python"]; i.Description != "first" || i.Shadows != filepath.Join(second, "mine.py") {
		t.Errorf("%+v", i)
	}
	if i := got["harness.go"]; i.Description != "own" || i.Shadows != BuiltIn {
		t.Errorf("%+v", i)
	}
	if i := got["harness.rust"]; i.Source != BuiltIn || i.Shadows != "" || i.Problem != "" {
		t.Errorf("%+v", i)
	}
	if i := got["bad.python"]; i.Problem == "" {
		t.Errorf("%+v", i)
	}
	if i := got["odd.c"]; i.Source == "" {
		t.Errorf("%+v", got)
	}
	if len(got) != 15+3 {
		t.Errorf("%d templates: %v", len(got), got)
	}
	for _, c := range []struct{ name, language, want string }{
		{"mine", "", ""}, {"mine", "py", ""}, {"mine", "go", "only for: python"}, {"harness", "", "one for each of: go, java"},
		{"harnes", "go", "try: harness"},
		{"zzz", "", "no such template"}, {"bad", "", "bad.py"},
	} {
		_, err := s.Get(c.name, c.language)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Get(%q, %q): %v; want %q", c.name, c.language, err, c.want)
		}
	}
}

func TestStarters(t *testing.T) {
	dir := t.TempDir()
	for _, language := range languageNames() {
		path, err := Create(dir, "greet", language)
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Open(dir).Get("greet", language)
		if err != nil {
			t.Fatal(err)
		}
		r, err := tmpl.Render(map[string]any{"who": "W\"o'rld"})
		if err != nil || len(r.Files) != 1 || !strings.Contains(string(r.Files[0].Data), "Hello") {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
		if _, err := Create(dir, "greet", language); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s was written over: %v", path, err)
		}
	}
}

func TestCases(t *testing.T) {
	for _, c := range []struct{ kind, language, text, want string }{
		{"call", "python", "", "null where a list"}, {"call", "python", "[]", "no cases"}, {"call", "python", "[1]", "case 1 is a number"},
		{"call", "python", "- {args: [1]}", "want is missing"}, {"call", "python", "- {arg: [1], want: 1}", "arg (args?)"},
		{"call", "python", "- {args: 1, want: 1}", "must be a list"}, {"call", "python", "- {want: 1, timeout: soon}", "no duration"},
		{"call", "python", "- {want: 1, timeout: 0}", "between"}, {"call", "python", "- {want: 1, tolerance: -1}", "0 or more"},
		{"call", "javascript", "- {name: big, want: 9007199254740993}", "case 1 (big): want: 9007199254740993 is beyond"},
		{"stdio", "python", "- {want: 5}", "needs quotes"}, {"stdio", "python", "- {want: '5', exit_code: 300}", "0 to 255"},
		{"stdio", "python", "{case: []}", "case (cases?)"}, {"query", "sql", "- {want: 1}", "list of rows"},
		{"query", "sql", "- {want: [[1], [1, 2]]}", "row 2 has 2 columns"},
		{"query", "sql", "- {want: [[1]], tables: {t: {columns: [a], rows: [[1, 2]]}}}", "2 values for 1"},
		{"other", "python", "[]", "none of"}, {"call", "python", "a: [", "missing"},
	} {
		_, err := readCases(c.kind, c.language, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
}

func TestWidth(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "漢字": 4, "😀": 2, "ｱ": 1, "한": 2} {
		if got := width(s); got != want {
			t.Errorf("width(%q) = %d, want %d", s, got, want)
		}
	}
}

// TestHarnessSource checks that the harness of Go is formatted source code; the other tools of its language only see it in harness_test.go.
func TestHarnessSource(t *testing.T) {
	source, err := builtin.ReadFile("builtin/part/harness.go.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	if formatted, err := format.Source(source); err != nil || strings.TrimSpace(string(formatted)) != strings.TrimSpace(string(source)) {
		t.Errorf("not formatted: %v\n%s", err, formatted)
	}
}

// TestGolden holds every built-in template as it is rendered; -update writes them.
func TestGolden(t *testing.T) {
	cases := map[string]string{
		"harness": "- {name: one, args: [1, \"a\\\"b\"], want: [2.50, null, {k: é}]}\n- {args: [], want: true, timeout: 2s, tolerance: 1e-6}\n",
		"stdio":   "- {name: 漢字, stdin: \"1\\n\", want: \"it's\\n\", args: [-x]}\n- {want: \"\", exit_code: 3, ignore_trailing_space: true}\n",
		"sql": "- {name: one, tables: {t: {columns: [a, b], rows: [[1, \"it's\"], [2, ~]]}}, want: [[1, x]]}\n" +
			"- {tables: {t: []}, want: [], ordered: false}\n",
	}
	code := map[string]string{"java": "package p.q; public class A { static int solve() { return 1; } }",
		"go": "package x\nfunc solve() int { return 1 }", "sql": "SELECT a, b FROM t; -- all\n"}
	for _, info := range Open().List() {
		t.Run(info.Name+"."+info.Language, func(t *testing.T) {
			tmpl, err := Open().Get(info.Name, info.Language)
			if err != nil {
				t.Fatal(err)
			}
			vars := map[string]any{"code": "code: solve\n", "cases": cases[info.Name]}
			if c := code[info.Language]; c != "" {
				vars["code"] = c
			}
			if info.Language == "sql" {
				vars["cases"] = strings.Replace(cases["sql"], "{t: []}", "{t: {columns: [a, b], rows: []}}", 1)
			} else if info.Language == "shell" && info.Name == "harness" {
				vars["cases"] = cases["stdio"]
			}
			r, err := tmpl.Render(vars)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "entry %s, language %s\n", r.Entry, r.Language)
			for _, f := range r.Files {
				fmt.Fprintf(&b, "-- %s --\n%s", f.Path, f.Data)
			}
			golden := filepath.Join("testdata", "golden", info.Name+"."+info.Language+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("not as in %s (go test -update writes it):\n%s", golden, b.String())
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, info := range Open().List() {
		if tmpl, err := Open().Get(info.Name, info.Language); err == nil && info.Name == "stdio" {
			f.Add(tmpl.Text[:min(len(tmpl.Text), 1500)], "code")
		}
	}
	f.Add(head("a: ")+"{{range .a}}{{quote .}}{{end}}", "[1]")
	f.Add("---\nvariables: {a: {default: [x]}}\n---\n-- {{index .a 0}} --\n{{json .a | quote}}", "x")
	f.Fuzz(func(t *testing.T, text, value string) {
		tmpl, err := Parse("x", "python", "x.py", text)
		if err != nil {
			return
		}
		vars := map[string]any{}
		for _, v := range tmpl.Variables {
			if v.Required {
				vars[v.Name] = value
			}
		}
		r, err := tmpl.Render(vars)
		if err != nil {
			return
		}
		size := 0
		for _, file := range r.Files {
			size += len(file.Data)
			if !filepath.IsLocal(file.Path) {
				t.Errorf("file %q is outside", file.Path)
			}
		}
		if size > MaxOutput {
			t.Errorf("%d bytes came out", size)
		}
	})
}

func FuzzCases(f *testing.F) {
	f.Add("- {name: x, args: [1], want: 2}", "call", "python")
	f.Add(`{"defaults": {"timeout": 1}, "cases": [{"want": "x"}]}`, "stdio", "javascript")
	f.Add("- {tables: {t: [{a: 1}]}, want: [[1]]}", "query", "sql")
	f.Fuzz(func(_ *testing.T, text, kind, language string) {
		_, _ = readCases(kind, language, text)
		for _, l := range languageNames() {
			_, _ = snippet(l, text)
		}
	})
}
