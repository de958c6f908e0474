package executor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// cellSession is a session of a compiled language.
type cellSession struct {
	*testing.T
	*Session
	cell uint64
}

func openCells(t *testing.T, e *Executor, req Request) *cellSession {
	t.Helper()
	s, err := e.OpenSession(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return &cellSession{t, s, 0}
}

// run runs a cell as a session does.
func (s *cellSession) run(code string) *Result {
	s.Helper()
	s.cell++
	composed, err := s.Composer().Compose(s.cell, code)
	for err == nil {
		var r *Result
		if r, err = s.Session.Run(s.Context(), composed, Request{}); err != nil {
			break
		}
		var again *language.Composition
		if r.Verdict == sandbox.VerdictCompileError {
			again, err = composed.Revise(string(r.Stderr.Bytes()))
		}
		if again == nil && err == nil {
			composed.Keep()
			return r
		}
		composed = again
	}
	s.Fatalf("%q: %v", code, err)
	return nil
}

// TestCellCrates: cells use the crates of their session.
func TestCellCrates(t *testing.T) {
	e, registry := rustPackages(t, greetCrates...)
	s := openCells(t, e, Request{Language: "rust", Options: LanguageOptions{Deps: []string{"greet[loud]@>=1", "<2"}}})
	asked := len(registry.Requests())
	for _, c := range []struct{ code, said string }{
		{"use greet::hello;", ""}, {"fn twice() -> String { format!(\"{} {}\", hello(), hello()) }", ""},
		{"twice()", "\"hello world! hello world!\"\n"},
	} {
		if r := s.run(c.code); r.Verdict != sandbox.VerdictOK || string(r.Stdout.Bytes()) != c.said {
			t.Errorf("%q: %s, %q, %s", c.code, r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
		}
	}
	r := s.run("\n1 + \"a\"")
	if text := string(r.Stderr.Bytes()); r.Verdict != sandbox.VerdictCompileError || !strings.Contains(text, "--> cell 4:2:3") {
		t.Errorf("%s: %s", r.Verdict, text)
	}
	if now := registry.Requests(); len(now) != asked {
		t.Errorf("a cell has installed packages: %q", now[asked:])
	}
}

// TestCellPackages: cells import the packages of their session, and no others.
func TestCellPackages(t *testing.T) {
	e, registry := goPackages(t, greetModules...)
	s := openCells(t, e, Request{Language: "go", Options: LanguageOptions{Deps: []string{"example.com/greet"}}})
	asked := len(registry.Requests())
	for _, c := range []struct{ code, said string }{
		{"import \"example.com/greet\"", ""}, {"greet.Hello(\"A\")", "\"hello a\"\n"},
		{"const word = \"B\"", ""}, {"greet.Hello(word)", "\"hello b\"\n"},
	} {
		if r := s.run(c.code); r.Verdict != sandbox.VerdictOK || string(r.Stdout.Bytes()) != c.said {
			t.Errorf("%q: %s, %q, %s", c.code, r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
		}
	}
	r := s.run("import \"example.com/greet/loud\"\nloud.Hello()")
	if r.Verdict != sandbox.VerdictCompileError || !strings.Contains(string(r.Stderr.Bytes()), "example.com/Words") {
		t.Errorf("%s: %s", r.Verdict, r.Stderr.Bytes())
	}
	if now := registry.Requests(); len(now) != asked {
		t.Errorf("a cell has installed packages: %q", now[asked:])
	}
}

// TestCellsNotCached: what a cell has compiled in a sandbox that other cells have used is never kept for other runs.
func TestCellsNotCached(t *testing.T) {
	base := realEngine(t)
	o := base.opts
	o.Cache = &Cache{Dir: filepath.Join(t.TempDir(), "compiled")}
	e := New(base.manager, o)
	entries := func() int {
		list, err := filepath.Glob(filepath.Join(o.Cache.Dir, "??", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if err := os.Mkdir(o.Cache.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := openCells(t, e, Request{Language: "go"}).run("1"); r.Verdict != sandbox.VerdictOK || entries() != 0 {
		t.Errorf("%s, %d entries: %s", r.Verdict, entries(), r.Stderr.Bytes())
	}
	expectOn(t, e, Request{Language: "go", Code: "println(1)"}, want{}) // control
	if entries() == 0 {
		t.Error("nothing is cached at all")
	}
}
