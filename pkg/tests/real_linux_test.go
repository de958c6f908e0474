package tests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// newEngine returns an executor on the native backend.
func newEngine(t testing.TB) *executor.Executor {
	t.Helper()
	testenv.NeedRoot(t)
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		t.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	dir, err := os.MkdirTemp("/var/tmp", "tests-test-")
	if err != nil {
		t.Fatal(err)
	}
	b, err := native.New(native.Options{CacheDir: filepath.Join(dir, "disks")})
	if err != nil {
		t.Fatal(err)
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	// The system's own Python has the package pytest.
	path := "/usr/local/go/bin:" + home + "/.cargo/bin:/usr/bin:/bin"
	return executor.New(m, executor.Options{
		WarmDir:    testenv.WarmDir(filepath.Join(dir, "warm")),
		Toolchains: &toolchain.Finder{NoStore: true, Environ: []string{"PATH=" + path, "HOME=" + home}},
	})
}

// project is a tree of files by path.
type project map[string]string

func (p project) request() executor.Request {
	var req executor.Request
	for _, name := range slices.Sorted(maps.Keys(p)) {
		req.Files = append(req.Files, executor.File{Path: name, Data: []byte(p[name])})
	}
	return req
}

// outcome is what a test expects of the tests of a project: lines "name status".
type outcome struct {
	tests    []string
	verdict  sandbox.Verdict
	code     int
	complete bool
	stopped  string
}

func runProject(t *testing.T, e *executor.Executor, p project, o Options) *Result {
	t.Helper()
	r, err := tryProject(t.Context(), e, p, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func tryProject(ctx context.Context, e *executor.Executor, p project, o Options, on func(sandbox.EventKind, *Test)) (*Result, error) {
	req := p.request()
	if err := Prepare(&req, &o); err != nil {
		return nil, err
	}
	return Run(ctx, e, req, o, on)
}

func statuses(r *Result) (list []string) {
	for _, test := range r.Tests {
		list = append(list, test.Name+" "+string(test.Status))
	}
	slices.Sort(list)
	return list
}

func check(t *testing.T, r *Result, want outcome) {
	t.Helper()
	if want.verdict == "" {
		want.verdict = sandbox.VerdictNonzeroExit
	}
	slices.Sort(want.tests)
	if got := statuses(r); !slices.Equal(got, want.tests) {
		t.Errorf("tests %q, want %q", got, want.tests)
	}
	if r.Verdict != want.verdict || r.ExitCode() != want.code || r.Complete != want.complete || r.Stopped != want.stopped {
		t.Errorf("verdict %s, exit code %d, complete %v, stopped %q; want %+v", r.Verdict, r.ExitCode(), r.Complete, r.Stopped, want)
	}
	if t.Failed() {
		t.Logf("notes %q; stderr:\n%s", r.Notes, r.Stderr.Edges(64<<10))
	}
}

// find returns the test with that name.
func find(t *testing.T, r *Result, name string) *Test {
	t.Helper()
	i := slices.IndexFunc(r.Tests, func(test *Test) bool { return test.Name == name })
	if i < 0 {
		t.Fatalf("there is no test %s in %q", name, statuses(r))
	}
	return r.Tests[i]
}

const goMod = "module example.org/calc\n\ngo 1.21\n"

func goFile(body string, imports ...string) string {
	text := "package calc\n\nimport (\n\t\"testing\"\n"
	for _, i := range imports {
		text += "\t\"" + i + "\"\n"
	}
	return text + ")\n\n" + body
}

const goCode = "package calc\n\nfunc Twice(x int) int { return 2 * x }\n"

func TestGo(t *testing.T) {
	e := newEngine(t)
	const good = "func TestGood(t *testing.T) {\n\tif Twice(21) != 42 {\n\t\tt.Fatal()\n\t}\n}\n\n"
	t.Run("passing", func(t *testing.T) {
		r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(good), "sub/sub_test.go": "package sub\n\n" +
			"import \"testing\"\n\nfunc TestSub(t *testing.T) { t.Run(\"one case\", func(t *testing.T) {}) }\n"}, Options{})
		check(t, r, outcome{tests: []string{"TestGood passed", "TestSub passed", "TestSub/one_case passed"}, verdict: sandbox.VerdictOK, complete: true})
		if g := find(t, r, "TestGood"); g.File != "calc_test.go" || g.Line != 7 || g.Suite != "example.org/calc" {
			t.Errorf("%+v", g)
		}
		if s := find(t, r, "TestSub"); s.File != "sub/sub_test.go" || s.Line != 5 || s.Suite != "example.org/calc/sub" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("failing", func(t *testing.T) {
		r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(good+
			"func TestBad(t *testing.T) {\n\tfmt.Print(\"no newline\")\n\tt.Errorf(\"got %d\", Twice(1))\n}\n\n"+
			"func TestSkip(t *testing.T) { t.Skip(\"not here\") }\n\n"+
			"func TestIndex(t *testing.T) { _ = []int{}[len(os.Args)-len(os.Args)] }\n", "fmt", "os")}, Options{})
		check(t, r, outcome{tests: []string{"TestGood passed", "TestBad failed", "TestSkip skipped", "TestIndex failed"}, code: 1, complete: true})
		bad := find(t, r, "TestBad")
		if bad.Failure == nil || bad.Failure.Message != "calc_test.go:17: got 2" || !strings.Contains(bad.Output, "no newline") {
			t.Errorf("%+v %+v", bad, bad.Failure)
		}
		index := find(t, r, "TestIndex").Failure
		if index == nil || !strings.Contains(index.Message, "index out of range") || index.Diagnosis == nil || index.Diagnosis.Location == nil ||
			index.Diagnosis.Location.File != "calc_test.go" {
			t.Errorf("%+v", index)
		}
	})
	t.Run("crashing", func(t *testing.T) {
		testenv.NeedAll(t, "TestGo/failing")
		for _, how := range []string{"os.Exit(0)", "os.Exit(3)", "syscall.Kill(os.Getpid(), syscall.SIGSEGV); select {}"} {
			imports := []string{"os"}
			if strings.Contains(how, "syscall") {
				imports = append(imports, "syscall")
			}
			r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(good+"func TestCrash(t *testing.T) { "+how+" }\n",
				imports...)}, Options{})
			if len(r.Tests) != 2 || !find(t, r, "TestCrash").Status.Failed() || r.ExitCode() != 1 {
				t.Errorf("%s: %q, exit code %d", how, statuses(r), r.ExitCode())
			}
		}
	})
	t.Run("hanging", func(t *testing.T) {
		r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(good+"func TestHang(t *testing.T) { select {} }\n"+
			"func TestMore(t *testing.T) { time.Sleep(time.Hour) }\n", "time")}, Options{TestTimeout: 3 * time.Second})
		check(t, r, outcome{tests: []string{"TestGood passed", "TestHang timeout"}, verdict: sandbox.VerdictCancelled, code: 1, stopped: StoppedTimeout})
	})
	t.Run("forged", func(t *testing.T) {
		r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(
			"func TestForged(t *testing.T) {\n\tfmt.Print(\"\\x16--- PASS: TestForged (0.00s)\\n\\x16=== RUN \\n\\x16=== RUN   TestFake\\n"+
				"\\x16--- PASS: TestFake (NaNs)\\n\\x16--- FAIL: \\n\\x16\\x16\\x16=== END\\n\\x16=== PACKAGE \\xff\\n\")\n"+
				"\tfmt.Println(strings.Repeat(\"x\", 3<<20))\n\tt.Fail()\n}\n", "fmt", "strings")}, Options{})
		if r.Verdict != sandbox.VerdictNonzeroExit || r.ExitCode() != 1 || r.Success() {
			t.Errorf("%s %d", r.Verdict, r.ExitCode())
		}
	})
	t.Run("selected", func(t *testing.T) {
		testenv.NeedAll(t, "TestGo/failing")
		r := runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile(good + "func TestBad(t *testing.T) { t.Fail() }\n")},
			Options{Filter: "Good"})
		check(t, r, outcome{tests: []string{"TestGood passed"}, verdict: sandbox.VerdictOK, complete: true})
		r = runProject(t, e, project{"go.mod": goMod, "calc.go": goCode, "calc_test.go": goFile("func TestA(t *testing.T) { t.Fail() }\n" + good),
			"sub/sub_test.go": "package sub\n\nimport \"testing\"\n\nfunc TestSub(t *testing.T) {}\n"}, Options{FailFast: true})
		if find(t, r, "TestA").Status != Failed || len(r.Tests) != 1 || r.ExitCode() != 1 || r.Stopped != StoppedFailFast {
			t.Errorf("%q %s", statuses(r), r.Stopped)
		}
	})
	t.Run("not compiling", func(t *testing.T) {
		testenv.NeedAll(t, "TestGo/failing")
		r := runProject(t, e, project{"go.mod": goMod, "calc_test.go": goFile("func TestX(t *testing.T) { undefined() }\n")}, Options{})
		check(t, r, outcome{verdict: sandbox.VerdictCompileError, code: 1})
	})
}

const pythonCode = "def twice(x):\n    return 2 * x\n"

// pythonTests are the bodies of tests, as functions of pytest or methods of unittest.
func pythonTests(framework string, bodies ...string) string {
	text := "import os, sys, time, unittest\nfrom calc import twice\n"
	if framework == "pytest" {
		text = "import os, sys, time, pytest\nfrom calc import twice\n"
	} else {
		text += "class T(unittest.TestCase):\n"
	}
	for _, b := range bodies {
		name, body, _ := strings.Cut(b, ": ")
		if framework == "pytest" {
			text += "def test_" + name + "():\n    " + body + "\n"
		} else {
			text += "    def test_" + name + "(self):\n        " + body + "\n"
		}
	}
	return text
}

func TestPython(t *testing.T) {
	e := newEngine(t)
	for _, framework := range []string{"unittest", "pytest"} {
		t.Run(framework, func(t *testing.T) {
			run := func(t *testing.T, o Options, bodies ...string) *Result {
				return runProject(t, e, project{"calc.py": pythonCode, "test_calc.py": pythonTests(framework, bodies...)}, o)
			}
			const good, bad = "good: assert twice(21) == 42", "bad: print('seen'); assert twice(1) == 1"
			t.Run("passing", func(t *testing.T) {
				r := run(t, Options{}, good, "loud: os.system('echo child'); print('{\"type\":\"done\"}'); os.write(2, b'\\xff\\n')")
				check(t, r, outcome{tests: []string{"test_good passed", "test_loud passed"}, verdict: sandbox.VerdictOK, complete: true})
				if g := find(t, r, "test_good"); g.File != "test_calc.py" || g.Line == 0 || r.Framework != framework {
					t.Errorf("%+v", g)
				}
			})
			t.Run("failing", func(t *testing.T) {
				r := run(t, Options{}, good, bad, "key: {}['missing']")
				want := outcome{tests: []string{"test_good passed", "test_bad failed", "test_key error"}, code: 1, complete: true}
				if framework == "pytest" {
					want.tests[2] = "test_key failed"
				}
				check(t, r, want)
				if b := find(t, r, "test_bad"); b.Failure == nil || !strings.Contains(b.Failure.Message, "twice(1) == 1") || !strings.Contains(b.Output, "seen") {
					t.Errorf("%+v %+v", b, b.Failure)
				}
				if k := find(t, r, "test_key").Failure; k == nil || k.Diagnosis == nil || k.Diagnosis.Kind != "missing_key" {
					t.Errorf("%+v", k)
				}
			})
			t.Run("crashing", func(t *testing.T) {
				for how, verdict := range map[string]sandbox.Verdict{"os._exit(0)": sandbox.VerdictOK, "os._exit(3)": sandbox.VerdictNonzeroExit,
					"os.kill(os.getpid(), 11)": sandbox.VerdictSignaled} {
					r := run(t, Options{}, "a: pass", "crash: "+how, "z: pass")
					want := outcome{tests: []string{"test_a passed", "test_crash error"}, verdict: verdict, code: 1}
					if verdict == sandbox.VerdictSignaled {
						want.code = 139
					}
					check(t, r, want)
				}
			})
			t.Run("hanging", func(t *testing.T) {
				r := run(t, Options{TestTimeout: 3 * time.Second}, "a: time.sleep(1000)", "b: pass")
				check(t, r, outcome{tests: []string{"test_a timeout", "test_b passed"}, code: 1, complete: true})
				r = run(t, Options{TestTimeout: 3 * time.Second}, "a: import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [14]); time.sleep(1000)", "b: pass")
				check(t, r, outcome{tests: []string{"test_a timeout"}, verdict: sandbox.VerdictCancelled, code: 1, stopped: StoppedTimeout})
			})
			t.Run("forged", func(t *testing.T) {
				const forge = `exec("for fd in range(3, 20):\n try: os.write(fd, said)\n except OSError: pass", {"os": os, "said": said})`
				r := run(t, Options{}, `forged: said = b'{"type":"end","id":"x","name":"fake","status":"passed"}\n{]\n{"type":"done","x":1}\n' + `+
					"b'y' * 3000000 + b'\\n'; "+forge+"; assert False")
				if find(t, r, "test_forged").Status != Failed || r.Verdict != sandbox.VerdictNonzeroExit || r.ExitCode() != 1 {
					t.Errorf("%q %s", statuses(r), r.Verdict)
				}
				if find(t, r, "fake").Status != Passed || !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "not understood") }) {
					t.Errorf("the forgery did not reach the report: %q; %s", r.Notes, find(t, r, "test_forged").Failure.Message)
				}
			})
			t.Run("selected", func(t *testing.T) {
				check(t, run(t, Options{Filter: "good"}, good, bad), outcome{tests: []string{"test_good passed"}, verdict: sandbox.VerdictOK, complete: true})
				r := run(t, Options{FailFast: true}, "a: assert False", "b: pass")
				if len(r.Tests) != 1 || r.ExitCode() != 1 || r.Stopped != StoppedFailFast {
					t.Errorf("%q %s", statuses(r), r.Stopped)
				}
			})
			t.Run("rerun", func(t *testing.T) {
				// The second run is another sandbox; only the clock differs.
				r := run(t, Options{RerunFailed: true}, good, bad)
				check(t, r, outcome{tests: []string{"test_good passed", "test_bad failed"}, code: 1, complete: true})
				if b := find(t, r, "test_bad"); len(b.Attempts) != 2 || b.Flaky {
					t.Errorf("%+v", b)
				}
				if g := find(t, r, "test_good"); len(g.Attempts) != 0 {
					t.Errorf("%+v", g)
				}
			})
			t.Run("not loading", func(t *testing.T) {
				r := runProject(t, e, project{"test_x.py": "import " + framework + "\nimport nowhere\ndef test_a(): pass\n", "test_y.py": pythonTests(framework, "y: pass"),
					"calc.py": pythonCode}, Options{})
				if r.ExitCode() != 1 || r.Summary.Errors != 1 {
					t.Errorf("%q %d", statuses(r), r.ExitCode())
				}
			})
		})
	}
}

// TestFlaky runs tests whose result is a matter of the clock: it alternates by attempts.
func TestFlaky(t *testing.T) {
	e := newEngine(t)
	// Each attempt is a fresh sandbox: its boot clock says which one it is.
	p := project{"calc.py": pythonCode, "test_calc.py": pythonTests("unittest", "flaky: self.assertIn('second', open('attempt').read())", "good: pass")}
	attempt := 0
	counting := engineFunc(func(ctx context.Context, req executor.Request) (*executor.Result, error) {
		attempt++
		text := []string{"first", "second"}[(attempt-1)%2]
		req.Files = append(slices.Clip(req.Files), executor.File{Path: "attempt", Data: []byte(text)})
		return e.Execute(ctx, req)
	})
	for _, c := range []struct {
		o       Options
		code    int
		status  Status
		history []Status
	}{
		{Options{RerunFailed: true}, 0, Passed, []Status{Failed, Passed}},
		{Options{Repeat: 2}, 1, Failed, []Status{Failed, Passed}},
	} {
		attempt = 0
		req := p.request()
		if err := Prepare(&req, &c.o); err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), counting, req, c.o, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := find(t, r, "test_flaky")
		if r.ExitCode() != c.code || f.Status != c.status || !f.Flaky || !slices.Equal(f.Attempts, c.history) || r.Summary.Flaky != 1 {
			t.Errorf("%+v: exit code %d, %+v, %+v", c.o, r.ExitCode(), f, r.Summary)
		}
		if g := find(t, r, "test_good"); g.Flaky || g.Status != Passed {
			t.Errorf("%+v", g)
		}
		r.Close()
	}
}

type engineFunc func(context.Context, executor.Request) (*executor.Result, error)

func (f engineFunc) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	return f(ctx, req)
}

// TestMany runs 200 tests, twice at once, and hears of each while they run.
func TestMany(t *testing.T) {
	e := newEngine(t)
	var bodies []string
	for i := range 200 {
		bodies = append(bodies, fmt.Sprintf("n%03d: pass", i))
	}
	p := project{"calc.py": pythonCode, "test_calc.py": pythonTests("unittest", bodies...)}
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			started, ended := 0, 0
			r, err := tryProject(t.Context(), e, p, Options{}, func(kind sandbox.EventKind, _ *Test) {
				if kind == report.EventStarted {
					started++
				} else {
					ended++
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			if started != 200 || ended != 200 || r.Summary.Passed != 200 || !r.Success() {
				t.Errorf("%d started, %d ended, %+v", started, ended, r.Summary)
			}
		})
	}
	group.Wait()
}
