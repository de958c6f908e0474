package session

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fails runs a cell and fails unless it ends with a verdict and the error at a line, whose message has a part.
func (t tester) fails(code string, verdict sandbox.Verdict, line int, message string) *Result {
	t.Helper()
	r := t.do(code)
	switch {
	case r.Verdict != verdict:
		t.Errorf("%.80q: %s, want %s; stderr %.500q", code, r.Verdict, verdict, r.Stderr.Bytes())
	case r.Error == nil || r.Error.Line != line || !strings.Contains(r.Error.Message, message):
		t.Errorf("%.80q: %+v, want line %d and %q; stderr %.500q", code, r.Error, line, message, r.Stderr.Bytes())
	case r.State != StateIdle:
		t.Errorf("%.80q: %s", code, r.State)
	}
	return r
}

// hints fails unless the result has a hint with a text.
func (t tester) hints(r *Result, text string) {
	t.Helper()
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, language.HintNote) || !strings.Contains(notes, text) {
		t.Errorf("%q, want %q", r.Notes, text)
	}
}

// interrupts runs a cell that never ends, interrupts it once it has printed, and fails unless that ends it.
func (t tester) interrupts(code string) {
	t.Helper()
	printed := make(chan bool, 1)
	go func() {
		<-printed
		if err := t.Interrupt(); err != nil {
			t.Error(err)
		}
	}()
	var began time.Time
	r := t.cell(Cell{Code: code, OnEvent: func(e sandbox.Event) {
		if e.Kind == sandbox.EventStdout {
			began = time.Now()
			select {
			case printed <- true:
			default:
			}
		}
	}})
	t.Logf("%v from the interrupt to the result", time.Since(began))
	if r.Verdict != sandbox.VerdictCancelled || !r.Interrupted || r.State != StateIdle {
		t.Errorf("%.80q: %s, interrupted %v, %s; stderr %.500q", code, r.Verdict, r.Interrupted, r.State, r.Stderr.Bytes())
	}
}

// ends runs a cell and fails unless it ends with a verdict, and the session goes on.
func (t tester) ends(c Cell, verdict sandbox.Verdict) {
	t.Helper()
	if r := t.cell(c); r.Verdict != verdict || r.State != StateIdle {
		t.Errorf("%.80q: %s, %s, want %s; stderr %.500q", c.Code, r.Verdict, r.State, verdict, r.Stderr.Bytes())
	}
}

func TestGoSession(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("go"))
	s.shows("type T struct{ A int; B string }\nfunc twice(n int) int { return 2 * n }", "")
	s.shows("x := 20\nfmt.Println(\"a\")\ntwice(x) + 2", "a\n42")
	t.Run("values", func(t *testing.T) {
		s := tester{t, s.Session}
		s.shows(`T{1, "b"}`, `main.T{A:1, B:"b"}`)
		s.shows(`"a\n"`, `"a\n"`)
		s.shows("3 * time.Second", "3s")
		s.shows("strconv.Atoi(`x`)", `0 strconv.Atoi: parsing "x": invalid syntax`)
		s.shows("os.Chdir(`/`)", "")
		s.shows("func quiet() { fmt.Println(1) }\nquiet()", "1")
		s.shows("var wait sync.WaitGroup\nwait.Wait()", "") // the compiler tells that it has no result
		s.shows("import \"os\"\nunused := 1", "")
	})
	t.Run("declarations", func(t *testing.T) {
		s := tester{t, s.Session}
		s.shows("var n = twice(3)\nconst c = 1", "")
		s.shows("n++\nn", "7")
		s.shows("n", "6") // its initialiser has run again
		s.shows("func (t T) Sum() int { return t.A + len(t.B) }", "")
		s.shows("T{1, \"b\"}.Sum()", "2")
		s.shows("func twice(n int) string { return fmt.Sprint(n, n) }\nvar n = 1", "")
		s.shows("twice(1)", `"1 1"`)
		s.shows("type T struct{ A, C int }", "")
		s.hints(s.fails("T{}.Sum()", sandbox.VerdictCompileError, 1, "Sum"), "declare T.Sum again")
		s.shows("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(T{C: 1}) }", "{0 1}")
		s.shows("os.WriteFile(\"kept\", []byte(\"text\"), 0o600)", "")
		s.shows("b, _ := os.ReadFile(\"kept\")\nstring(b)", `"text"`)
	})
	t.Run("errors", func(t *testing.T) {
		s := tester{t, s.Session}
		r := s.fails("y := 1\n\nfmt.Println(y, x)", sandbox.VerdictCompileError, 3,
			"x is a variable of cell 2, and values of variables do not persist")
		if text := string(r.Stderr.Bytes()); !strings.HasPrefix(text, "cell ") || !strings.Contains(text, ":3:16: x is") {
			t.Error(text)
		}
		r = s.fails("func g() int {\n\treturn \"a\"\n}", sandbox.VerdictCompileError, 2, "cannot use")
		if text := string(r.Stderr.Bytes()); !strings.Contains(text, ":2:9: cannot use") {
			t.Error(text)
		}
		s.fails("g()", sandbox.VerdictCompileError, 1, "undefined: g") // what has not compiled is not kept
		s.fails("f(", sandbox.VerdictCompileError, 1, "is not closed")
		s.hints(s.fails("z := 1\nfunc h() int { return z }\nh()", sandbox.VerdictCompileError, 2, "undefined: z"), "declare it with var")
		s.shows("func once(n int) int { return n }\nfunc again() int { return once(3) }", "")
		s.hints(s.fails("func once() int { return 1 }", sandbox.VerdictCompileError, 0, "too many arguments in call to once"),
			"does not fit to what cell")
		r = s.fails("var a []int\n\na[len(a)]++", sandbox.VerdictNonzeroExit, 3, "index out of range")
		if text := string(r.Stderr.Bytes()); r.Error.Name != "panic" || !strings.Contains(text, ":3 +0x") {
			t.Error(r.Error, text)
		}
		if r := s.do("os.Exit(3)"); r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 3 || r.Error != nil {
			t.Errorf("%s %d %+v", r.Verdict, r.Exit.Code, r.Error)
		}
		s.shows("b, _ := io.ReadAll(os.Stdin)\nlen(b)", "0") // there is no input
	})
	t.Run("limits", func(t *testing.T) {
		testenv.NeedAll(t, "TestGoSession/values")
		s := tester{t, s.Session}
		s.interrupts("fmt.Println(1)\nfor {\n}")
		s.ends(Cell{Code: "for {\n}", Limits: sandbox.Limits{Wall: time.Second}}, sandbox.VerdictTimeLimit)
		s.ends(Cell{Code: "var all [][]byte\n" +
			"for {\n\tb := make([]byte, 16<<20)\n\tfor i := range b {\n\t\tb[i] = 1\n\t}\n\tall = append(all, b)\n}"},
			sandbox.VerdictMemoryLimit)
		s.shows("1 + 1", "2")
	})
	t.Run("questions", func(t *testing.T) {
		ctx := context.Background()
		for code, want := range map[string]string{"x := 1": "complete", "func f() {": "incomplete", ")": "invalid"} {
			if c, err := s.Check(ctx, code); err != nil || c.Status != want {
				t.Errorf("%q: %+v, %v", code, c, err)
			}
		}
		v, err := s.Variables(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, one := range v.Variables {
			names = append(names, one.Name)
		}
		if !slices.Contains(names, "twice") || !slices.Contains(names, "T") || slices.Contains(names, "g") {
			t.Error(names)
		}
		if err := s.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		tester{t, s.Session}.fails("c", sandbox.VerdictCompileError, 1, "undefined: c")
	})
}

// Events of a program that was compiled again come once, and in order.
func TestGoEvents(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("go"))
	for _, code := range []string{"func f() { println(1); fmt.Println(2) }\nvar g = f\ng()", "undefined()"} {
		var last uint64
		text := ""
		r := s.cell(Cell{Code: code, OnEvent: func(e sandbox.Event) {
			if e.Seq != last+1 {
				t.Errorf("%d after %d", e.Seq, last)
			}
			if last = e.Seq; e.Kind == sandbox.EventStderr {
				text += string(e.Data)
			}
		}})
		if want := string(r.Stderr.Bytes()); text != want || want == "" {
			t.Errorf("%s: %q, want %q", code, text, want)
		}
	}
}

func BenchmarkGoCell(b *testing.B) {
	benchmarkCell(b, "go", "func f%d() int { return %[1]d }\nf%[1]d()")
}
