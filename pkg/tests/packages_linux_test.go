package tests

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// modulesVariable names a directory with node_modules, in which npm has installed jest and vitest.
const modulesVariable = "SANDBOX_RUN_TEST_NODE_MODULES"

// withModules adds the installed packages of a directory to a request.
func withModules(t *testing.T, req *executor.Request, dir string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "node_modules"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(p)
		st, statErr := d.Info()
		if err := errors.Join(err, statErr); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		req.Files = append(req.Files, executor.File{Path: name, Mode: st.Mode().Perm(), Data: text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPackages runs tests with frameworks that are packages of the project.
func TestPackages(t *testing.T) {
	dir := os.Getenv(modulesVariable)
	if dir == "" {
		t.Skipf("needs %s: a directory in which npm has installed jest and vitest", modulesVariable)
	}
	testenv.NeedSystem(t)
	e := newEngine(t)
	for _, framework := range []string{"jest", "vitest"} {
		head := ""
		if framework == "vitest" {
			head = "import { test, describe, expect } from 'vitest';\n"
		}
		run := func(t *testing.T, o Options, files ...string) *Result {
			p := project{"package.json": `{"type":"commonjs","devDependencies":{"` + framework + `":"*"}}`}
			for i := 0; i+1 < len(files); i += 2 {
				p[files[i]] = head + files[i+1]
			}
			req := p.request()
			withModules(t, &req, dir)
			req.Limits = sandbox.Limits{Memory: 2 * sandbox.GiB, Processes: 500, Wall: 5 * time.Minute}
			if err := Prepare(&req, &o); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), e, req, o, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			return r
		}
		const good = "describe('group', () => { test('good', () => expect(1).toBe(1)); });\n"
		const bad = "test('bad', () => expect(1).toBe(2));\n"
		t.Run(framework+"/passing", func(t *testing.T) {
			check(t, run(t, Options{}, "a.test.js", good, "b.test.js", good), outcome{tests: []string{"group > good passed", "group > good passed"},
				verdict: sandbox.VerdictOK, complete: true})
		})
		t.Run(framework+"/failing", func(t *testing.T) {
			r := run(t, Options{RerunFailed: true}, "a.test.js", good+bad+"test.skip('later', () => {});\n")
			check(t, r, outcome{tests: []string{"group > good passed", "bad failed", "later skipped"}, code: 1, complete: true})
			if b := find(t, r, "bad"); b.File != "a.test.js" || len(b.Attempts) != 2 || !strings.Contains(b.Failure.Message, "xpected") {
				t.Errorf("%+v %+v", b, b.Failure)
			}
		})
		t.Run(framework+"/selected", func(t *testing.T) {
			r := run(t, Options{Filter: "good"}, "a.test.js", good+bad)
			check(t, r, outcome{tests: []string{"group > good passed"}, verdict: sandbox.VerdictOK, complete: true})
		})
		t.Run(framework+"/crashing", func(t *testing.T) {
			r := run(t, Options{}, "a.test.js", good+"test('crash', () => { process.exit(0); });\n")
			if r.Success() || r.ExitCode() != 1 {
				t.Errorf("%q, verdict %s", statuses(r), r.Verdict)
			}
			r = run(t, Options{}, "a.test.js", "syntax error\n")
			if r.ExitCode() != 1 || r.Summary.Errors == 0 {
				t.Errorf("%q, verdict %s", statuses(r), r.Verdict)
			}
		})
		t.Run(framework+"/hanging", func(t *testing.T) {
			r := run(t, Options{TestTimeout: 3 * time.Second}, "a.test.js", good+"test('hang', () => new Promise(() => setTimeout(() => {}, 1e6)), 1e6);\n")
			if h := find(t, r, "hang"); h.Status != TimedOut || r.ExitCode() != 1 {
				t.Errorf("%q, verdict %s", statuses(r), r.Verdict)
			}
		})
	}
	req := project{"package.json": `{"devDependencies":{"jest":"*"}}`, "a.test.js": "test()\n"}.request()
	if err := Prepare(&req, &Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), e, req, Options{}, nil); err == nil || !strings.Contains(err.Error(), "--install") {
		t.Error(err)
	}
}
