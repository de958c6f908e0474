//go:build unix

package session

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol/drivertest"
)

// startWith starts the driver in a Python, below a shell that prints its exit status.
func startWith(t *testing.T, python string) (*drivertest.Driver, protocol.Ready) {
	t.Helper()
	if out, err := exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
		t.Skipf("needs Python 3.9 or later: %v %s", err, out)
	}
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "driver.py"), filepath.Join(dir, "tools.py")}
	for i, text := range [][]byte{driver, tools} {
		if err := os.WriteFile(paths[i], text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const shell = `trap : INT; "$@"; echo "status $?" >&2`
	return drivertest.Start(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, "sh", "-c", shell, "sh", python, paths[0], paths[1])
}

// ok runs a cell that must succeed, and returns the text of its result.
func ok(t *testing.T, d *drivertest.Driver, code string, lines ...string) string {
	t.Helper()
	c := d.Execute(code, lines...)
	if !c.OK {
		t.Fatalf("%q: %+v\n%s", code, c.Error, d.Stderr())
	}
	return c.Result()
}

// expect runs a cell that must succeed with a result.
func expect(t *testing.T, d *drivertest.Driver, code, result string, lines ...string) {
	t.Helper()
	if got := ok(t, d, code, lines...); got != result {
		t.Errorf("%q: %q instead of %q", code, got, result)
	}
}

// fails runs a cell that must fail with an error of a kind.
func fails(t *testing.T, d *drivertest.Driver, code, kind string) drivertest.Cell {
	t.Helper()
	c := d.Execute(code)
	if c.OK || c.Error == nil || c.Error.Name != kind || c.Status != 1 {
		t.Fatalf("%q: %+v %+v instead of %s", code, c.Done, c.Error, kind)
	}
	return c
}

// TestVersions runs the essential cells in every Python of the machine.
func TestVersions(t *testing.T) {
	testenv.NeedSystem(t)
	pythons := []string{"python3"}
	if testenv.All() {
		home, _ := os.UserHomeDir()
		more, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
		pythons = append(append(pythons, "/usr/bin/python3"), more...)
	}
	for _, python := range pythons {
		t.Run(python, func(t *testing.T) {
			d, ready := startWith(t, python)
			if ready.Protocol != protocol.Version || ready.Language != "python" || !strings.HasPrefix(ready.Version, "3.") {
				t.Errorf("%+v", ready)
			}
			ok(t, d, "a = 20\ndef f(): return a + 1")
			expect(t, d, "f() * 2", "42")
			expect(t, d, "_ + 1", "43")
			ok(t, d, "a = 'again'")
			expect(t, d, "a;", "")
			expect(t, d, "import asyncio\nawait asyncio.sleep(0.001)\n'späť'", "'späť'")
			expect(t, d, "input('? ') + input()", "'onetwo'", "one", "two")
			expect(t, d, "%time 1 + 1", "2")
			expect(t, d, "x = !echo {a}; echo b\nx", "['again', 'b']")
			c := fails(t, d, "a = 1\nf(2)", "TypeError")
			if c.Error.Line != 2 {
				t.Errorf("%+v", c.Error)
			}
			fails(t, d, "if a\n  1", "SyntaxError")
			ok(t, d, "from __future__ import annotations")
			expect(t, d, "def g(x: Missing): pass\ng.__annotations__['x']", "'Missing'")
			expect(t, d, "import inspect\nprint(inspect.getsource(f), end='')", "")
			d.Printed("def f(): return a + 1\n")
			interrupt(t, d, "while True: pass")
			interrupt(t, d, "import time\ntime.sleep(1000)")
			interrupt(t, d, "await asyncio.sleep(1000)")
			expect(t, d, "a", "1")
			check(t, d)
			if err := d.Write(protocol.KindClose, 0, ""); err != nil {
				t.Fatal(err)
			}
			d.Printed("status 0\n")
		})
	}
}

// interrupt runs a cell, and interrupts it when it has begun.
func interrupt(t *testing.T, d *drivertest.Driver, code string) {
	t.Helper()
	marker := filepath.Join(t.TempDir(), "begun")
	id := d.Send("open('" + marker + "', 'w').close()\n" + code)
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	d.Interrupt()
	c := d.Finish(id)
	if c.OK || !c.Interrupted || c.Error == nil || c.Error.Name != "KeyboardInterrupt" {
		t.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	}
}

func check(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	for code, want := range map[string]protocol.Checked{
		"1": {Status: "complete"}, "if x:": {Status: "incomplete", Indent: "    "}, "if x:\n    y()": {Status: "incomplete", Indent: "    "},
		"if x:\n    y()\n": {Status: "complete"}, "f(1,": {Status: "incomplete"}, "'''a": {Status: "incomplete"}, "1 +": {Status: "invalid"},
		"x = = 2": {Status: "invalid"}, "await f()": {Status: "complete"}, "!ls": {Status: "complete"}, "%%bash\nls": {Status: "incomplete"},
		"%%bash\nls\n": {Status: "complete"}, "for x in y: print(x)": {Status: "complete"}, "a = 1 + \\": {Status: "incomplete"}, "": {Status: "complete"},
		"def f():\n    return 1": {Status: "incomplete"}, "x = 'a": {Status: "invalid"}, "@d": {Status: "incomplete"},
	} {
		var got protocol.Checked
		d.Ask(protocol.KindCheck, code, &got)
		if got != want {
			t.Errorf("check %q: %+v instead of %+v", code, got, want)
		}
	}
}
