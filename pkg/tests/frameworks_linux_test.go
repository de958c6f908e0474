package tests

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestNode(t *testing.T) {
	e := newEngine(t)
	const head = "const { test, describe, it } = require('node:test');\nconst assert = require('node:assert');\n"
	run := func(t *testing.T, o Options, files ...string) *Result {
		p := project{"package.json": "{}"}
		for i := 0; i+1 < len(files); i += 2 {
			p[files[i]] = head + files[i+1]
		}
		return runProject(t, e, p, o)
	}
	const good = "test('good', () => assert.equal(1, 1));\n"
	t.Run("passing", func(t *testing.T) {
		r := run(t, Options{}, "test/a.test.js", good+"describe('group', () => { it('inner', () => { console.log('loud'); }); it.skip('later', () => {}); });\n",
			"test/b.test.js", good+"test('parent', async (t) => { await t.test('child', () => {}); });\ntest('todo', { todo: true }, () => { throw 1; });\n")
		check(t, r, outcome{tests: []string{"good passed", "good passed", "group > inner passed", "group > later skipped", "parent passed",
			"parent > child passed", "todo skipped"}, verdict: sandbox.VerdictOK, complete: true})
		if i := find(t, r, "group > inner"); i.File != "test/a.test.js" || i.Line != 4 {
			t.Errorf("%+v", i)
		}
		if !strings.Contains(string(r.Stderr.Bytes()), "loud") {
			t.Errorf("stderr %q", r.Stderr.Bytes())
		}
	})
	t.Run("failing", func(t *testing.T) {
		r := run(t, Options{}, "a.test.js", good+"test('bad', () => { null.x; });\n", "b.test.js", "syntax error\n")
		check(t, r, outcome{tests: []string{"good passed", "bad failed", "b.test.js error"}, code: 1, complete: true})
		if f := find(t, r, "bad").Failure; f == nil || !strings.Contains(f.Message, "TypeError") || f.Diagnosis == nil || f.Diagnosis.Location == nil ||
			f.Diagnosis.Location.Line != 4 {
			t.Errorf("%+v", f)
		}
	})
	t.Run("crashing", func(t *testing.T) {
		for _, how := range []string{"process.exit(0)", "process.exit(3)", "process.kill(process.pid, 'SIGSEGV')"} {
			r := run(t, Options{}, "a.test.js", good+"test('crash', () => { "+how+"; });\ntest('more', () => {});\n", "b.test.js", good)
			if r.Success() || r.ExitCode() != 1 || r.Summary.Errors == 0 {
				t.Errorf("%s: %q, verdict %s", how, statuses(r), r.Verdict)
			}
		}
	})
	t.Run("hanging", func(t *testing.T) {
		r := run(t, Options{TestTimeout: 3 * time.Second}, "a.test.js", good+"test('hang', () => new Promise((r) => setTimeout(r, 1e6)));\n")
		check(t, r, outcome{tests: []string{"good passed", "hang timeout"}, verdict: sandbox.VerdictCancelled, code: 1, stopped: StoppedTimeout})
	})
	t.Run("forged", func(t *testing.T) {
		r := run(t, Options{}, "a.test.js", "test('forged', () => { console.log(JSON.stringify({ type: 'end', id: 'x', name: 'fake', status: 'passed' }));\n"+
			"for (let fd = 3; fd < 30; fd++) { try { require('fs').writeSync(fd, '{\"type\":\"done\"}\\n\\x0f\\xff'); } catch {} } assert.fail(); });\n")
		// The descriptors are those of Node itself, too: the process of the file breaks.
		if r.ExitCode() != 1 || r.Summary.Passed > 0 || r.Verdict != sandbox.VerdictNonzeroExit {
			t.Errorf("%q %s", statuses(r), r.Verdict)
		}
	})
	t.Run("selected", func(t *testing.T) {
		r := run(t, Options{Filter: "good"}, "a.test.js", good+"test('bad', () => assert.fail());\n")
		check(t, r, outcome{tests: []string{"good passed"}, verdict: sandbox.VerdictOK, complete: true})
		r = run(t, Options{RerunFailed: true}, "a.test.js", good+"test('bad (one)', () => assert.fail());\n")
		check(t, r, outcome{tests: []string{"good passed", "bad (one) failed"}, code: 1, complete: true})
		if b := find(t, r, "bad (one)"); len(b.Attempts) != 2 {
			t.Errorf("%+v", b)
		}
		r = run(t, Options{FailFast: true}, "a.test.js", "test('bad', () => assert.fail());\ntest('slow', () => new Promise((r) => setTimeout(r, 1e6)));\n")
		if r.Stopped != StoppedFailFast || r.ExitCode() != 1 {
			t.Errorf("%q %s", statuses(r), r.Stopped)
		}
	})
}

func TestCargo(t *testing.T) {
	e := newEngine(t)
	const manifest = "[package]\nname = \"my-calc\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"
	lib := func(doc, tests string) string {
		return "/// ```\n/// assert_eq!(my_calc::twice(2), " + doc + ");\n/// ```\npub fn twice(x: i32) -> i32 { 2 * x }\n#[cfg(test)]\nmod t {\n" + tests + "}\n"
	}
	const good = "#[test] fn good() { assert_eq!(super::twice(2), 4); }\n"
	t.Run("failing", func(t *testing.T) {
		r := runProject(t, e, project{"Cargo.toml": manifest, "src/lib.rs": lib("5", good+"#[test] fn bad() { println!(\"seen\"); assert_eq!(super::twice(2), 5); }\n"+
			"#[test] #[ignore = \"slow\"] fn slow() {}\n"), "tests/outer.rs": "#[test] fn raw() { std::process::Command::new(\"/bin/echo\").args([\"-n\", " +
			"\"{ \\\"type\\\": \\\"test\\\"\"]).status().unwrap(); }\n"}, Options{})
		check(t, r, outcome{tests: []string{"t::good passed", "t::bad failed", "t::slow skipped", "raw passed", "twice (line 1) failed"}, code: 1, complete: true})
		bad := find(t, r, "t::bad")
		if bad.Failure == nil || !strings.Contains(bad.Failure.Message, "left: 4") || !strings.Contains(bad.Output, "seen") || bad.File != "src/lib.rs" ||
			bad.Line != 8 || bad.Suite != "my-calc" {
			t.Errorf("%+v %+v", bad, bad.Failure)
		}
	})
	t.Run("crashing", func(t *testing.T) {
		testenv.NeedAll(t, "TestCargo/failing")
		for _, how := range []string{"std::process::exit(0)", "std::process::abort()"} {
			r := runProject(t, e, project{"Cargo.toml": manifest, "src/lib.rs": lib("4", good+"#[test] fn zcrash() { "+how+" }\n")}, Options{})
			if r.Success() || r.ExitCode() != 1 || find(t, r, "t::zcrash").Status != Errored {
				t.Errorf("%s: %q, verdict %s", how, statuses(r), r.Verdict)
			}
		}
	})
	t.Run("hanging", func(t *testing.T) {
		r := runProject(t, e, project{"Cargo.toml": manifest, "src/lib.rs": lib("4", good+"#[test] fn hang() { loop { std::thread::park(); } }\n")},
			Options{TestTimeout: 3 * time.Second})
		check(t, r, outcome{tests: []string{"t::good passed", "t::hang timeout"}, verdict: sandbox.VerdictCancelled, code: 1, stopped: StoppedTimeout})
	})
	t.Run("selected", func(t *testing.T) {
		testenv.NeedAll(t, "TestCargo/failing")
		r := runProject(t, e, project{"Cargo.toml": manifest, "src/lib.rs": lib("4", good+"#[test] fn bad() { panic!() }\n")}, Options{Filter: "good"})
		check(t, r, outcome{tests: []string{"t::good passed"}, verdict: sandbox.VerdictOK, complete: true})
		r = runProject(t, e, project{"Cargo.toml": manifest, "src/lib.rs": lib("4", good+"#[test] fn bad() { panic!() }\n")}, Options{RerunFailed: true})
		check(t, r, outcome{tests: []string{"t::good passed", "t::bad failed", "twice (line 1) passed"}, code: 1, complete: true})
		if b := find(t, r, "t::bad"); len(b.Attempts) != 2 {
			t.Errorf("%+v", b)
		}
	})
}

func TestBats(t *testing.T) {
	e := newEngine(t)
	if _, err := exec.LookPath("bats"); err != nil {
		t.Fatal("needs the package bats: scripts/deps.sh test")
	}
	run := func(t *testing.T, o Options, text string) *Result {
		return runProject(t, e, project{"test/a.bats": text, "greet.sh": "echo hi\n"}, o)
	}
	const good = "@test \"good one\" { run sh greet.sh; [ \"$output\" = hi ]; }\n"
	t.Run("failing", func(t *testing.T) {
		r := run(t, Options{}, good+"@test \"bad # 2 in 3ms\" { echo seen; [ 1 -eq 2 ]; }\n@test \"later\" { skip \"not yet\"; }\n@test \"zero\" { exit 0; }\n")
		check(t, r, outcome{tests: []string{"good one passed", "bad # 2 in 3ms failed", "later skipped", "zero failed"}, code: 1, complete: true})
		if b := find(t, r, "bad # 2 in 3ms"); b.File != "test/a.bats" || b.Line != 2 || !strings.Contains(b.Failure.Message, "seen") {
			t.Errorf("%+v %+v", b, b.Failure)
		}
		if l := find(t, r, "later"); l.Reason != "not yet" {
			t.Errorf("%+v", l)
		}
	})
	t.Run("passing", func(t *testing.T) {
		check(t, run(t, Options{}, good), outcome{tests: []string{"good one passed"}, verdict: sandbox.VerdictOK, complete: true})
	})
	t.Run("crashing", func(t *testing.T) {
		r := run(t, Options{}, good+"@test \"crash\" { kill -9 $$; }\n")
		if r.ExitCode() != 1 || find(t, r, "crash").Status != Errored {
			t.Errorf("%q %s", statuses(r), r.Verdict)
		}
	})
	t.Run("hanging", func(t *testing.T) {
		r := run(t, Options{TestTimeout: 3 * time.Second}, good+"@test \"hang\" { sleep 1000; }\n")
		check(t, r, outcome{tests: []string{"good one passed", "hang timeout"}, verdict: sandbox.VerdictCancelled, code: 1, stopped: StoppedTimeout})
	})
	t.Run("forged", func(t *testing.T) {
		r := run(t, Options{}, "@test \"forged\" { echo 'ok 1 forged' >&3; echo '1..0' >&3; printf 'not ok 99999999999\\nok\\nbegin\\nsuite\\n\\xff\\n' >&3; false; }\n")
		if r.ExitCode() != 1 || r.Verdict != sandbox.VerdictNonzeroExit {
			t.Errorf("%q %s", statuses(r), r.Verdict)
		}
	})
	t.Run("selected", func(t *testing.T) {
		r := run(t, Options{Filter: "good"}, good+"@test \"bad\" { false; }\n")
		check(t, r, outcome{tests: []string{"good one passed"}, verdict: sandbox.VerdictOK, complete: true})
	})
}
