package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestRustSession(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("rust"))
	s.shows("#[derive(Debug)]\nstruct T { a: i32, b: String }\nfn twice(n: i32) -> i32 { 2 * n }", "")
	s.shows("let x = 20;\nprintln!(\"a\");\ntwice(x) + 2", "a\n42")
	t.Run("values", func(t *testing.T) {
		s := tester{t, s.Session}
		s.shows(`T { a: 1, b: "b".into() }`, `T { a: 1, b: "b" }`)
		s.shows("struct N;\nN", "a main::N, which has no Debug")
		s.shows("println!(\"1\")", "1") // the value () is not shown
		s.shows("trait Show { fn show(&self); }\nimpl<T> Show for T { fn show(&self) {} }\n1", "1")
		s.shows("let v = vec![1, 3, 2];\nv.iter().max() // borrowed", "Some(3)")
		s.shows("let s = String::from(\"a\");\n*s.as_str()", `"a"`) // not even its size is known
		s.shows("match 2 {\n    2 => \"two\",\n    _ => \"other\",\n}", `"two"`)
	})
	t.Run("declarations", func(t *testing.T) {
		s := tester{t, s.Session}
		s.shows("use std::collections::{HashMap, hash_map::{self, Entry as E}};\nuse std::fmt::*;\nmacro_rules! m { ($e:expr) => { $e + 1 } }",
			"")
		s.shows("use std::collections::HashMap;\nlet mut h: HashMap<i32, i32> = HashMap::new();\nh.insert(1, m!(1));\nh", "{1: 2}")
		s.shows("if let E::Vacant(e) = HashMap::<i32, i32>::new().entry(1) { 1 } else { 2 }", "1")
		s.shows("impl T {\n    /// Documented.\n    fn f(&self) -> i32 { self.a }\n    fn g(&self) -> i32 { self.f() }\n}", "")
		s.shows("/// More.\nimpl T {\n    fn f(&self) -> i32 { self.a + 1 }\n}", "")
		s.shows("T { a: 1, b: String::new() }.g()", "2")
		s.shows("/// Another.\nstruct T(i32);", "")
		s.hints(s.fails("T(1).g()", sandbox.VerdictCompileError, 1, "no method named `g`"), "removed the impl blocks")
		s.shows("fn twice(n: &str) -> String { n.repeat(2) }", "")
		s.shows("fn main() {\n    println!(\"{}\", twice(\"ab\"));\n}", "abab")
		s.shows("static mut COUNT: i32 = 1;\nunsafe { COUNT += 1; }", "")
		s.shows("let n = unsafe { COUNT };\nn", "1") // it begins anew
		s.shows("std::fs::write(\"kept\", \"text\").unwrap()", "")
		s.shows("std::fs::read_to_string(\"kept\").unwrap()", `"text"`)
	})
	t.Run("errors", func(t *testing.T) {
		testenv.NeedAll(t, "TestRustSession/values")
		s := tester{t, s.Session}
		r := s.fails("let y = 1;\nprintln!(\"{} {x}\", y)", sandbox.VerdictCompileError, 2,
			"x is a variable of cell 2, and values of variables do not persist")
		if text := string(r.Stderr.Bytes()); !strings.HasPrefix(text, "cell ") || !strings.Contains(text,
			":2:15: x is") || strings.Contains(text, "E0425") {
			t.Error(text)
		}
		r = s.fails("fn g() -> i32 {\n    \"a\"\n}", sandbox.VerdictCompileError, 2, "mismatched types")
		if text := string(r.Stderr.Bytes()); !strings.Contains(text, "--> cell ") || !strings.Contains(text, ":2:5\n") {
			t.Error(text)
		}
		s.fails("g()", sandbox.VerdictCompileError, 1, "cannot find function `g`") // what has not compiled is not kept
		s.fails("f(", sandbox.VerdictCompileError, 1, "is not closed")
		s.shows("fn once(n: i32) -> i32 { n }\nfn again() -> i32 { once(1) }", "")
		s.hints(s.fails("fn once() -> i32 { 1 }", sandbox.VerdictCompileError, 0, "argument"), "does not fit to what cell")
		r = s.fails("let v: Vec<i32> = vec![];\n\nlet n = v.len();\nv[n]", sandbox.VerdictNonzeroExit, 4, "index out of bounds")
		if r.Error.Name != "panic" {
			t.Error(r.Error)
		}
		if r := s.do("std::process::exit(3)"); r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 3 || r.Error != nil {
			t.Errorf("%s %d %+v", r.Verdict, r.Exit.Code, r.Error)
		}
		s.shows("std::io::read_to_string(std::io::stdin()).unwrap()", `""`) // there is no input
	})
	t.Run("limits", func(t *testing.T) {
		testenv.NeedAll(t, "TestRustSession/values")
		s := tester{t, s.Session}
		s.interrupts("println!(\"1\");\nloop {}")
		s.ends(Cell{Code: "loop {}", Limits: sandbox.Limits{Wall: time.Second}}, sandbox.VerdictTimeLimit)
		s.ends(Cell{Code: "let mut all = vec![];\nloop {\n    all.push(vec![1u8; 16 << 20]);\n}"}, sandbox.VerdictMemoryLimit)
		s.shows("1 + 1", "2")
	})
	t.Run("questions", func(t *testing.T) {
		ctx := context.Background()
		for code, want := range map[string]string{"let x = 1;": "complete", "fn f() {": "incomplete", ")": "invalid"} {
			if c, err := s.Check(ctx, code); err != nil || c.Status != want {
				t.Errorf("%q: %+v, %v", code, c, err)
			}
		}
		v, err := s.Variables(ctx)
		if err != nil || len(v.Variables) == 0 {
			t.Error(v, err)
		}
		if err := s.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		tester{t, s.Session}.fails("twice(1)", sandbox.VerdictCompileError, 1, "cannot find function")
	})
}

func BenchmarkRustCell(b *testing.B) { benchmarkCell(b, "rust", "fn f%d() -> i32 { %[1]d }\nf%[1]d()") }

// benchmarkCell runs cells that all differ and declare a function.
func benchmarkCell(b *testing.B, language, code string) {
	ctx := context.Background()
	s, err := newManager(b, Options{}).Create(ctx, in(language))
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if r, err := s.Execute(ctx, Cell{Code: fmt.Sprintf(code, n)}); err != nil || r.Verdict != sandbox.VerdictOK {
			b.Fatal(r, err)
		}
	}
}
