package rust

import (
	"errors"
	"fmt"
	"slices"
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

// program composes a cell, keeps it, and returns the files of its program: the root without what all have, and the cells, of which each run
// of spaces is one.
func (c *cellRun) program(code string) string {
	c.Helper()
	c.cell++
	made, err := c.Compose(c.cell, code)
	if err != nil {
		c.Fatalf("%q: %v", code, err)
	}
	made.Keep()
	root := strings.TrimPrefix(string(made.Files[0].Data), "#![allow(unused)]\n#![warn(unused_must_use)]\n")
	all := strings.ReplaceAll(root, valueMacro, "VALUE\n")
	for _, f := range made.Files[1:] {
		all = strings.ReplaceAll(all, fmt.Sprintf("include!(%q);\n", f.Path), strings.Join(strings.Fields(string(f.Data)), " ")+"\n")
	}
	return strings.TrimSuffix(all, "\n")
}

func TestParts(t *testing.T) {
	for src, want := range map[string]string{
		"let x = 1; x": "s s", "fn f() { 1; } f()": "i s", "struct S; S": "i s", "struct S { a: i32 } struct T(u8); 1": "i i s",
		"if a { 1 } else { 2 } b": "s s", "match a { _ => 1 }.b()": "s", "match a { _ => {} } b": "s s", "let x = match a { _ => 1 }; x": "s s",
		"for i in 0..3 { a } b": "s s", "S { a: 1 }": "s", "'a: loop { break 'a } b": "s s", "unsafe { a } b": "s s", "unsafe fn f() {} b": "i s",
		"async fn f() {} async { 1 }": "i s", "const A: [u8; 1] = { [1] }; A": "i s", "const fn f() {} const { 1 }": "i s", "{ a } { b }": "s s",
		"#[derive(Debug)] struct S; #[a] let x = 1;": "i s", "#![feature(x)] use a::{b, c}; b": "n i s", "pub(crate) fn f() {} f()": "i s",
		"extern crate a; extern \"C\" { fn g(); } extern \"C\" fn h() {}": "i i i", "macro_rules! m { () => {} } m!{} m!()": "i s s",
		"macro_rules! m ( () => {}; ); 1": "i s", "impl<T> A for B<T> where T: C { fn f() {} } 1": "i s", "union U { a: u8 } union + 1": "i s",
		"fn f<'a>(x: &'a str) -> char { '{' } 1": "i s", "let s = r#\"}\"#; s": "s s", "/* { /* */ */ 1": "s", "type A = [u8; { 2 }]; 1": "i s",
		"trait T { fn f(); } mod m { use a; } mod n;": "i i i", "static mut A: i32 = 1; static || 1": "i s", "fn f() -> A<{ 1 }> { 1 } 2": "i s",
		"thread_local! { static A: u8 = 1; } vec!{1}.len()": "i s", "let Some(x) = y else { return }; x": "s s",
		"x = if a { b } else { c }; x": "s s",
		"auto + 1":                     "s", "pub unsafe auto trait A {} 1": "i s", "let r#fn = 1; r#fn": "s s", "while a { b } ..1": "s s",
		"": "", ";;": "",
	} {
		all, open := lex(src)
		if _, why := brackets(all); open || why != "" {
			t.Errorf("%q: open %v, %s", src, open, why)
		}
		var got []string
		for _, p := range parts(all) {
			switch {
			case p.inner:
				got = append(got, "n")
			case p.item:
				got = append(got, "i")
			default:
				got = append(got, "s")
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %s", src, got, want)
		}
	}
}

func onePart(t *testing.T, src string) *part {
	t.Helper()
	all, _ := lex(src)
	list := parts(all)
	if len(list) != 1 {
		t.Fatalf("%q: %d parts", src, len(list))
	}
	return &list[0]
}

func TestNames(t *testing.T) {
	for src, want := range map[string]string{
		"fn f() {}": "value f", "pub(crate) const unsafe extern \"C\" fn f() {}": "value f", "struct S<T>(T);": "type S",
		"enum E { A }":           "type E",
		"static mut X: i32 = 1;": "value X", "const _: () = ();": "value _", "mod m {}": "type m", "macro_rules! m { () => {} }": "macro m",
		"extern crate a as b;": "type b", "thread_local! { static A: u8 = 1; static B: u8 = 2; }": "value A value B",
		"#[a] #[b(c)] type T = u8;":              "type T",
		"lazy_static! { static ref A: u8 = 1; }": "value A", "unsafe auto trait T {}": "type T", "extern \"C\" {}": "",
		"union U { a: u8 }": "type U",
	} {
		var got []string
		for _, n := range namesOf(onePart(t, src)) {
			got = append(got, n.space, n.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %s", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"use a;": "a=a", "use a::b::C as D;": "D=a::b::C as D",
		"pub use ::a::{b, c::{self, d as e, f::*}, G};": "b=::a::b c=::a::c e=::a::c::d as e *=::a::c::f::* G=::a::G",
		"use self::a::*;": "*=self::a::*", "use a::{self as b, c as _};": "b=a as b _=a::c as _", "use {a::b, c};": "b=a::b c=c",
		"use a::{};": "",
	} {
		var got []string
		for _, l := range leavesOf(onePart(t, src)) {
			got = append(got, l.name+"="+l.path)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %s", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"impl S {}": "S", "impl<T: Fn(u8) -> u8> A<T> for b::S<T> where T: C {}": "S for", "impl<'a> From<&'a str> for &'a mut S {}": "S for",
		"unsafe impl !Send for S {}": "S for", "impl A for Box<dyn Fn() -> B> {}": "Box for", "impl<const N: usize> S<{ N }> {}": "S",
		"impl for<'a> A<'a> for S {}": "S for",
	} {
		h := implOf(onePart(t, src))
		got := h.of
		if h.trait {
			got += " for"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"let x = y;": "x", "let mut x: a::B<c> = y;": "x", "let (a, ref mut b, _) = y;": "a b", "let Some(x) = y else { return };": "x",
		"let P { x, y: z, .. } = p;": "x z", "let [a, .., b] = c;": "a b", "let x;": "x", "let a::B(x) = y;": "x",
		"let n @ 1..=5 = x else { return };": "n",
		"x = y;":                             "",
	} {
		if got := strings.Join(boundBy(onePart(t, src)), " "); got != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

func TestCellProgram(t *testing.T) {
	for _, test := range []struct {
		name  string
		cells []string
		want  string // the last program
	}{
		{"items stay, statements do not", []string{"struct S; let x = 1; fn f() {}\nf()", "const C: u8 = 2;"},
			"struct S; fn f() {}\nconst C: u8 = 2;\nfn main() {}"},
		{"statements", []string{"let x = 1;\nf(x);"}, "fn main() {let x = 1; f(x); }"},
		{"a value", []string{"let x = 1;\nx + 1 // more"}, "VALUE\nfn main() {let x = 1;cell_value!( x + 1 // more )}"},
		{"no value", []string{"for i in 0..1 { 1 }"}, "fn main() {for i in 0..1 { 1 } }"},
		{"an item at the end", []string{"1;\nfn f() {}"}, "fn main() {1;} fn f() {}"},
		{"redeclaration", []string{"fn f() {} struct f; fn g() {}", "const f: u8 = 1;"}, "struct f; fn g() {}\nconst f: u8 = 1;\nfn main() {}"},
		{"a type of another kind", []string{"struct S;", "enum S { A }"}, "enum S { A }\nfn main() {}"},
		{"impl blocks go with their type", []string{"struct S; trait A {}", "impl S { fn f() {} }\nimpl A for S {}\nimpl A for T {}",
			"struct S(u8);"},
			"trait A {}\nimpl A for T {}\nstruct S(u8);\nfn main() {}"},
		{"an impl of a trait again", []string{"impl A for S { fn f() {} }", "impl  A for S { fn g() {} }"},
			"impl A for S { fn g() {} }\nfn main() {}"},
		{"a function of an impl again", []string{"impl S {\n/// says\nfn f() {} fn g() {} }", "impl S { fn f() {} }"},
			"impl S { fn g() {} }\nimpl S { fn f() {} }\nfn main() {}"},
		{"comments before items", []string{"// a\n/// b\n/// c\n#[d]\nfn f() {} // e", "1;"}, "/// b /// c #[d] fn f() {}\nfn main() {1; }"},
		{"comments of what was replaced", []string{"/// b\nfn f() {} fn g() {}", "fn f() {}"}, "fn g() {}\nfn f() {}\nfn main() {}"},
		{"uses", []string{"use a::{b, C as D};", "use x::b; 1;"}, "use a::C as D;\nuse x::b;fn main() { 1; }"},
		{"globs", []string{"#[x] use a::*; use b::*;", ""}, "#[x] use a::*;\nuse b::*;\n\nfn main() {}"},
		{"a type instead of a use", []string{"use a::S;", "struct S;"}, "struct S;\nfn main() {}"},
		{"a function and a module", []string{"use std::fmt; use std::mem::swap;", "impl fmt::A for S {}", "fn fmt() {} fn swap() {}"},
			"use std::fmt;\nimpl fmt::A for S {}\nfn fmt() {} fn swap() {}\nfn main() {}"},
		{"attributes of the crate", []string{"#![feature(a)]\n1", "#![feature(a)] #![feature(b)]", ""},
			"#![feature(a)]\n#![feature(b)]\n\nfn main() {}"},
		{"a main", []string{"fn main() { f() } fn f() {}", "f();"}, "fn f() {}\nfn main() {f(); }"},
		{"nothing", []string{"// only this"}, "// only this\nfn main() {}"},
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

// The lines of a cell keep their numbers, and, where only one line is theirs, their columns.
func TestCellLines(t *testing.T) {
	made, err := NewComposer().Compose(1, "struct S;\n\nlet x = 1;\nlet y = 2;\n\nx + y // sum")
	if err != nil {
		t.Fatal(err)
	}
	want := "struct S;fn main() {\n\nlet x = 1;\nlet y = 2;cell_value!(\n\nx + y // sum\n)}"
	if got := string(made.Files[1].Data); got != want || made.Files[1].Path != "cell 1" {
		t.Errorf("%s: %s", made.Files[1].Path, got)
	}
}

func TestCellRefused(t *testing.T) {
	for code, want := range map[string]string{
		"f(\n": "cell 1:2:1: the ( is not closed", "1\n }": "cell 1:2:2: unexpected }", "(]": "cell 1:1:2: unexpected ]",
		"\"a": "cell 1:1:3: the last string",
		"/*":  "cell 1:1:3: the last string or comment", "é; fn main() {}": "cell 1:1:1: statements beside fn main",
		strings.Repeat(" ", maxProgram+1): "cell 1: it has 1048577 bytes",
	} {
		_, err := NewComposer().Compose(1, code)
		var e *language.CellError
		if !errors.As(err, &e) || !errors.Is(err, sandbox.ErrInvalid) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", code, err, want)
		}
	}
	c := newCells(t)
	for i := range 3 {
		c.program(fmt.Sprintf("const C%d: &str = \"%s\";", i, strings.Repeat("x", maxProgram/4)))
	}
	if _, err := c.Compose(9, "const C: &str = \""+strings.Repeat("x", maxProgram/4)+"\";"); err == nil || !strings.Contains(err.Error(),
		"restart") {
		t.Error(err)
	}
}

func TestCellVariable(t *testing.T) {
	c := newCells(t)
	c.program("let (x, f) = (1, |a: u8| a);")
	c.program("let g = 1; fn h() {}")
	c.program("fn g() {}")
	made, err := c.Compose(4, "let é = 1; x")
	if err != nil {
		t.Fatal(err)
	}
	said := func(what, at string) string {
		return "error[E0425]: cannot find " + what + " in this scope\n --> " + at + "\n  |\n"
	}
	for text, want := range map[string]string{
		said("value `x`", "cell 4:1:35"):                                     "cell 4:1:12: x is a variable of cell 1",
		said("value `y`", "cell 4:1:1"):                                      "",
		said("value `g`", "cell 4:1:1"):                                      "",
		said("value `x`", "cell 3:1:1"):                                      "",
		said("value `y`", "cell 4:2:1") + said("function `f`", "cell 4:3:2"): "cell 4:3:2: f is a variable of cell 1",
	} {
		again, err := made.Revise(text)
		if again != nil || (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestCellExplain(t *testing.T) {
	c := newCells(t)
	c.program("struct S; impl S { fn f() {} }")
	c.program("struct S;")
	made, err := c.Compose(3, "\nS::f()")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		phase, said string
		want        language.Failure
	}{
		{"compile", "error[E0599]: no function named `f` found for struct `S` in the current scope\n --> cell 3:2:4\n",
			language.Failure{Name: "compile error",
				Message: "no function named `f` found for struct `S` in the current scope", Line: 2,
				Hint: "cell 2 has declared S again, which removed the impl blocks of earlier cells; write them again"}},
		{"compile", "warning: a\n --> cell 3:1:1\n\nerror: expected `;`\n   --> cell 1:7:4\n", language.Failure{Name: "compile error",
			Message: "cell 1:7: expected `;`",
			Hint:    "what cell 1 has declared does not fit to what cell 3 declares; declare it again in this cell, too"}},
		{"compile", "error: linking failed\n", language.Failure{Name: "compile error"}},
		{"run", "\nthread 'main' (6) panicked at cell 3:2:5:\nboom\nnote: run\n", language.Failure{Name: "panic", Message: "boom", Line: 2}},
		{"run", "thread 'main' panicked at 'old', cell 3:4:5\nnote: run\n", language.Failure{Name: "panic", Message: "old", Line: 4}},
		{"run", "thread 'main' panicked at cell 1:2:5:\nboom\n", language.Failure{Name: "panic", Message: "boom"}},
		{"run", "Error: \"x\"\n", language.Failure{}},
	} {
		if got := made.Explain(test.phase, test.said); got != test.want {
			t.Errorf("%q: %+v, want %+v", test.said, got, test.want)
		}
	}
}

func TestCellNotKept(t *testing.T) {
	c := newCells(t)
	c.program("struct S; impl S { fn f() {} } use a::b;")
	if _, err := c.Compose(9, "struct S; impl S { fn f() {} } use x::b; let y = 1;"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.program("1;"), "use a::b;\nstruct S; impl S { fn f() {} }\nfn main() {1; }"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c.Reset()
	if got, want := c.program("1;"), "fn main() {1; }"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCellCheck(t *testing.T) {
	for code, want := range map[string]string{
		"": "complete", "let x = 1;": "complete", "let x = 1": "incomplete", "x": "complete", "f(": "incomplete", "fn f()": "incomplete",
		"fn f() {}":        "complete",
		"#[derive(Debug)]": "incomplete", "#[derive(Debug)]\nstruct S;": "complete", "struct S": "incomplete", "x +": "incomplete",
		"if a {} else": "incomplete",
		"if a {}":      "complete", "\"a\nb": "incomplete", "\"a\nb\"": "complete", "/* a": "incomplete", "// a": "complete", ")": "invalid",
		"(]": "invalid", "1..": "complete",
		"x.": "incomplete", "x\n  .f()": "complete", "r#\"a\"": "incomplete", "use a::b": "incomplete", "impl A for B {}": "complete",
		"#![feature(x)]": "complete",
	} {
		if got := NewComposer().Check(code); got != want {
			t.Errorf("%q: %s, want %s", code, got, want)
		}
	}
}

func TestCellDeclared(t *testing.T) {
	c := newCells(t)
	c.program("use a::{b, c::*};\n/// D.\n#[x]\nfn f(a: u8,\n  b: u8) -> u8 { 1 }\nstruct S { a: u8 }\nimpl A for S {}\n" +
		"macro_rules! m { () => {} }\nlet x = 1;\nfn main2() {}")
	var got []string
	for _, d := range c.Declared() {
		got = append(got, d.Name+"|"+d.Kind+"|"+d.Text)
	}
	want := []string{"a::c::*|use|a::c::*", "b|use|a::b", "f|fn|fn f(a: u8, b: u8) -> u8", "S|struct|struct S", "S|impl|impl A for S",
		"m|macro_rules|macro_rules! m",
		"main2|fn|fn main2()"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}

// Every program has matching brackets, and keeps the lines of its cells.
func FuzzCompose(f *testing.F) {
	for _, s := range []string{
		"let x = 1; x", "fn f() {}", "impl S { fn f() {} /// a\n fn g() {} }", "use a::{b, c as d, e::*};", "#![a] #[b] struct S<'a>(&'a u8);",
		"'a", "'\\''", "b'x'",
		"r#\"", "r#fn", "/* /* */", "// a", "macro_rules! m { () => {} }", "m!{}", "thread_local! { static A: u8 = 1; }", "extern \"C\" {}",
		"let P { a, b: c } = d;",
		"match a { _ => {} }.b", "impl<T> A for B<{ 1 }> where T: C {}", "pub(in a) fn", "unsafe extern", "#", "#!", "#[", "\ufeff1", "use",
		"impl", "macro_rules!", "<", "fn main() {}",
		"/// a", "/** a */ 1", "\r\n1\r\n", "const", "static", "union U", "default impl A for B {}",
	} {
		f.Add(s, "x")
		f.Add("struct S; impl S { fn f() {} } use a::x; let y = 1;", s)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		c := NewComposer()
		for i, code := range []string{first, second, "struct S;", "1"} {
			c.Check(code)
			made, err := c.Compose(uint64(i+1), code)
			if err != nil {
				continue
			}
			for _, file := range made.Files {
				all, open := lex(string(file.Data))
				if at, why := brackets(all); open || why != "" {
					t.Fatalf("%q: %s: open %v, %d %s\n%s", code, file.Path, open, at, why, file.Data)
				}
			}
			own := made.Files[len(made.Files)-1].Data
			if !strings.HasPrefix(string(own), "fn main() {") && strings.Count(string(own), "\n") < strings.Count(code, "\n") {
				t.Fatalf("%q: %s", code, own)
			}
			if again, _ := made.Revise(second); again != nil {
				t.Fatal(again)
			}
			made.Explain("compile", second)
			made.Explain("run", second)
			made.Keep()
			c.Declared()
		}
	})
}
