//go:build linux

package session

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol/drivertest"
)

const javaScript = "javascript"

// start starts the driver of a language in the Node on PATH, below a shell that prints its exit status. Env are its variables.
func start(t *testing.T, language string, env ...string) (*drivertest.Driver, protocol.Ready) {
	t.Helper()
	testenv.NeedSystem(t)
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node: scripts/deps.sh test installs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kit := filepath.Join(dir, kitpath.Name)
	if err := os.Symlink(self, kit); err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(dir, "driver.cjs"), filepath.Join(dir, "reader.cjs"), filepath.Join(dir, "answers.cjs")}
	for i, text := range [][]byte{driver, reader, answers} {
		if err := os.WriteFile(files[i], text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const shell = `"$@"; echo "status $?" >&2`
	return drivertest.Start(t, env, append([]string{"sh", "-c", shell, "sh"}, command(language, kit, []string{node}, files)...)...)
}

// session is a driver under test.
type session struct {
	*testing.T
	*drivertest.Driver
}

func newSession(t *testing.T, language string, env ...string) session {
	t.Helper()
	d, _ := start(t, language, env...)
	return session{t, d}
}

// ok runs a cell that must succeed, and returns the text of its result.
func (s session) ok(code string, lines ...string) string {
	s.Helper()
	c := s.Execute(code, lines...)
	if !c.OK {
		s.Fatalf("%.200q: %+v\n%s", code, c.Error, s.Stderr())
	}
	return c.Result()
}

// expect runs a cell that must succeed with a result.
func (s session) expect(code, result string, lines ...string) {
	s.Helper()
	if got := s.ok(code, lines...); got != result {
		s.Errorf("%q: %q instead of %q", code, got, result)
	}
}

// fails runs a cell that must fail with an error in a line.
func (s session) fails(code, name string, line int) drivertest.Cell {
	s.Helper()
	c := s.Execute(code)
	if c.OK || c.Error == nil || c.Error.Name != name || c.Error.Line != line || c.Status != 1 {
		s.Errorf("%.200q: %+v %+v instead of %s in line %d", code, c.Done, c.Error, name, line)
	}
	return c
}

// ends waits for the end of the driver with an exit status.
func (s session) ends(status int) {
	s.Helper()
	s.Printed(fmt.Sprintf("status %d\n", status))
}

func TestReady(t *testing.T) {
	for _, language := range []string{javaScript, TypeScript} {
		d, ready := start(t, language)
		if ready.Protocol != protocol.Version || ready.Language != language || ready.Version == "" || ready.How != "message" {
			t.Errorf("%+v", ready)
		}
		if err := d.Write(protocol.KindClose, 0, ""); err != nil {
			t.Fatal(err)
		}
		d.Printed("status 0\n")
	}
}

func TestState(t *testing.T) {
	s := newSession(t, javaScript)
	s.ok("const a = 20; let b = 1\nfunction f() { return a + b }\nclass C { m() { return 1 } }")
	s.expect("f() * 2", "42")
	s.expect("_ + 1", "43")
	// Every kind of declaration follows every other.
	declarations := []string{"const x = %d", "let x = %d", "var x = %d", "function x() {}; x = %d", "class x {}; x = %d",
		"var { x } = { x: %d }",
		"import * as x from 'node:os'; x = %d", "for (var y of [1]) {}; var x = %d"}
	n := 0
	for _, first := range declarations {
		for _, second := range declarations {
			n += 2
			s.ok(fmt.Sprintf(first, n))
			s.expect("x", fmt.Sprint(n))
			s.ok(fmt.Sprintf(second, n+1))
			s.expect("x", fmt.Sprint(n+1))
		}
	}
	s.expect("class C { m() { return 2 } }\nnew C().m()", "2")
	s.expect("await new Promise(r => setTimeout(() => r('späß'), 1))", "'späß'")
	s.expect("const { p, ...rest } = await Promise.resolve({ p: 1, q: 2 }); rest", "{ q: 2 }")
	s.expect("{ a: 1 }", "{ a: 1 }")
	s.expect("undefined", "")
	s.expect("null", "null")
	s.expect("[10n, NaN, -0, Symbol.iterator]", "[ 10n, NaN, -0, Symbol(Symbol.iterator) ]")
	s.expect("new Error('value')", "Error: value\n    at <cell "+fmt.Sprint(cellsSoFar(s)+1)+">:1:1")
	s.expect("if (true) 5", "5")
	s.expect("let _ = 7; _", "7")
	s.expect("1", "1")
	s.expect("_", "7") // the user's own
	// Names that a cell hides from all code.
	s.ok("let process = 1, Object = 2, Error = 3, JSON = 4, Buffer = 5, globalThis = 6, Promise = 7, String = 8, Set = 9, RegExp = 10")
	s.expect("process + Set", "10")
	s.fails("null.x", "TypeError", 1)
	var v protocol.Variables
	s.Ask(protocol.KindVariables, "", &v)
	if len(v.Variables) < 10 {
		t.Errorf("%+v", v)
	}
}

// cellsSoFar returns the number of the last cell.
func cellsSoFar(s session) uint64 {
	s.Helper()
	id := s.Send("0")
	s.Finish(id)
	return id
}

func TestModules(t *testing.T) {
	s := newSession(t, javaScript)
	s.ok(`const fs = require('fs')
for (const [name, text] of Object.entries({
  'own.mjs': 'export const value = 1; export default class D {}; export { value as "a b" }', 'old.cjs': 'exports.value = 2',
  'node_modules/pack/package.json': '{"exports": {"import": "./m.mjs", "require": "./c.cjs"}}',
  'node_modules/pack/m.mjs': 'export default "module"', 'node_modules/pack/c.cjs': 'module.exports = "commonjs"',
  'more/node_modules/added/index.js': 'module.exports = "added"',
})) { fs.mkdirSync(require('path').dirname(name), { recursive: true }); fs.writeFileSync(name, text) }`)
	s.expect("import D, { value, 'a b' as ab } from './own.mjs'\n[D.name, value, ab]", "[ 'D', 1, 1 ]")
	s.expect("import * as own from './own.mjs'; own.value", "1")
	s.expect("import 'node:os'; import pack from 'pack'; import npm from 'npm:pack@1'; [pack, npm]", "[ 'module', 'module' ]")
	s.expect("[require('pack'), require('./old.cjs').value, require.resolve('./old.cjs') === __dirname + '/old.cjs']",
		"[ 'commonjs', 2, true ]")
	s.expect("(await import('./own.mjs')).value + (await (() => import('./old.cjs'))()).default.value", "3")
	s.expect("import.meta.dirname === process.cwd()", "true")
	s.expect("export const exported = 4; export default function g() { return exported }\ng()", "4")
	s.expect("path.basename(os.constructor.name) + typeof module.exports", "'Objectobject'")
	s.expect("import manifest from './node_modules/pack/package.json' with { type: 'json' }\nmanifest.exports.require", "'./c.cjs'")
	s.fails("\nimport { missing } from './own.mjs'", "SyntaxError", 2)
	s.fails("import 'added'", "Error", 1)
	var reply struct{}
	s.Ask(protocol.KindPackages, filepath.Join(workdir(s), "more"), &reply)
	s.expect("import added from 'added'; [added, require('added')]", "[ 'added', 'added' ]")
}

// workdir is the directory of the driver.
func workdir(s session) string {
	s.Helper()
	return strings.Trim(s.ok("__dirname"), "'")
}

func TestOutput(t *testing.T) {
	s := newSession(t, javaScript)
	c := s.Execute("console.log('out %d', 1); console.error('err'); display({ a: 1 }, 'b'); 5")
	if len(c.Displays) != 3 || c.Displays[0].Text() != "{ a: 1 }" || c.Displays[0].Result || c.Result() != "5" {
		t.Errorf("%+v", c.Displays)
	}
	s.Printed("out 1\n")
	s.Printed("err\n")
	s.ok("setTimeout(() => console.log('la' + 'ter'), 1)")
	s.Printed("later\n")
	s.ok("process.stdout.write('x'.repeat(5e6) + 'en' + 'd')")
	s.Printed("xend")
	s.ok("process.stdout.write(Buffer.from([0, 255, 254, 10]))")
	s.Printed("\x00\xff\xfe\n")
	if got := s.ok("'y'.repeat(3e6)"); len(got) > protocol.MaxBody || !strings.HasSuffix(got, "(1048576 of 3000002 characters shown)") {
		t.Errorf("%d bytes", len(got))
	}
	if got := s.ok("'\\u0001'.repeat(2e6)"); len(got) < 1<<20 {
		t.Errorf("%d bytes", len(got))
	}
	s.expect("new Uint8Array(2)", "Uint8Array(2) [ 0, 0 ]")
	s.fails("require('fs').closeSync(1); process.stdout.write('x'); await new Promise(() => {})", "Error", 1)
	s.expect("1 + 1", "2")
	s.Execute("require('fs').closeSync(2); console.error('x')")
	s.fails("nope", "ReferenceError", 1)
	s.expect("1 + 1", "2")
}

func TestInput(t *testing.T) {
	s := newSession(t, javaScript)
	s.expect("prompt('? ') + prompt()", "'onetwo'", "one", "two")
	s.expect("prompt('? ')", "null")
	const ask = `const lines = require('readline/promises').createInterface({ input: process.stdin })
const answer = await lines.question('name? '); lines.close(); answer`
	s.expect(ask, "'me'", "me", "unused")
	s.expect(strings.ReplaceAll(ask, "me", "you"), "'you'", "you")
	s.expect("prompt()", "'again'", "again")
	s.expect("let all = ''; for await (const part of process.stdin) all += part\nall", `'a\nb\n'`, "a", "b")
	s.expect("require('fs').readFileSync(0).length", "0")
	s.expect("require('child_process').execSync('cat; echo end', { stdio: [0, 'pipe', 2] }).toString()", `'end\n'`)
}

func TestErrors(t *testing.T) {
	s := newSession(t, javaScript)
	s.fails("function f() {\n  throw new RangeError('deep')\n}\n\nf()", "RangeError", 2)
	s.Printed("<cell 1>:2\n  throw new RangeError('deep')\n        ^\n\nRangeError: deep\n    at f (<cell 1>:2:9)\n    at <cell 1>:5:1\n")
	s.fails("1\nf()", "RangeError", 2)
	s.Printed("RangeError: deep\n    at f (<cell 1>:2:9)\n    at <cell 2>:2:1\n")
	s.fails("let a = 1\nlet b = ;", "SyntaxError", 2)
	s.Printed("<cell 3>:2\nlet b = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n")
	s.fails("throw 'text'", "Error", 1)
	s.Printed("Uncaught:\n'text'\n")
	s.fails("Promise.reject(new TypeError('rejected')); 1", "TypeError", 1)
	s.fails("setTimeout(() => { throw new TypeError('timer') }, 1)\nawait new Promise(() => {})", "TypeError", 1)
	s.fails("(function f() { f() })()", "RangeError", 1)
	s.fails("await (async () => { await null; throw new URIError('x') })()", "URIError", 1)
	s.fails("({ [require('util').inspect.custom]() { throw new EvalError('x') } })", "EvalError", 1)
	s.fails("import x from 'no-such-package'", "Error", 1)
	s.fails("["+strings.Repeat("[", 50000), "RangeError", 0)
	s.ok("setTimeout(() => { throw new Error('la' + 'ter') }, 1)")
	s.Printed("Error: later\n")
	s.ok("process.removeAllListeners('uncaughtException')")
	s.fails("setTimeout(() => { throw new TypeError('timer') }, 1)\nawait new Promise(() => {})", "TypeError", 1)
	s.expect("process.once('uncaughtException', e => { globalThis.own = e }); setTimeout(() => { throw 1 }, 1)\n"+
		"await new Promise(r => setInterval(() => { if ('own' in globalThis) r() }, 1)); own", "1")
	if s.expect("1 + 1", "2"); strings.Contains(s.Stderr(), "driver.cjs") || strings.Contains(s.Stderr(), "node:inspector") {
		t.Error("frames of the driver are shown")
	}
}

// interrupt runs a cell, and interrupts it when it has called begun.
func (s session) interrupt(code string) {
	s.Helper()
	marker := filepath.Join(s.TempDir(), "begun")
	id := s.Send("var begun = () => require('fs').writeFileSync('" + marker + "', '');\n" + code)
	s.await(marker)
	if err := s.Write(protocol.KindInterrupt, id, ""); err != nil {
		s.Fatal(err)
	}
	if c := s.Finish(id); c.OK || !c.Interrupted || c.Error == nil {
		s.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	}
	s.expect("kept", "1")
}

// await waits for a file.
func (s session) await(file string) {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s was not written", file)
		}
	}
}

func TestInterrupt(t *testing.T) {
	for _, language := range []string{javaScript, TypeScript} {
		t.Run(language, func(t *testing.T) {
			s := newSession(t, language)
			s.ok("let kept = 1")
			for _, code := range []string{
				"begun(); while (true) {}",
				"begun(); await new Promise(() => {})",
				"await null; begun(); while (true) {}",
				"setTimeout(() => { begun(); while (true) {} }, 1); await new Promise(() => {})",
				"setImmediate(() => {}); setImmediate(() => { begun(); while (true) {} }); await new Promise(() => {})",
				"process.nextTick(() => { begun(); while (true) {} }); await new Promise(() => {})",
				"begun(); queueMicrotask(function again() { queueMicrotask(again) }); await new Promise(() => {})",
				"require('fs').readFile('/dev/null', () => { begun(); while (true) {} }); await new Promise(() => {})",
				"try { begun(); while (true) {} } finally { while (true) {} }",
				"({ [require('util').inspect.custom]() { begun(); while (true) {} } })",
				"begun(); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
				"begun(); require('child_process').execSync('sleep 1000')",
				"begun(); while (true) display(1)",
			} {
				s.interrupt(code)
			}
			if err := s.Write(protocol.KindInterrupt, 1, ""); err != nil { // of a cell that has ended
				t.Fatal(err)
			}
			s.expect("kept", "1")
			// A loop that an earlier cell has left is ended with the cell that waits for it.
			marker := filepath.Join(t.TempDir(), "left")
			s.ok("setTimeout(() => { require('fs').writeFileSync('" + marker + "', ''); while (true) {} }, 1); 0")
			s.await(marker)
			id := s.Send("1")
			if err := s.Write(protocol.KindInterrupt, id, ""); err != nil {
				t.Fatal(err)
			}
			if c := s.Finish(id); !c.Interrupted {
				t.Errorf("%+v", c)
			}
			s.expect("kept", "1")
		})
	}
}

// TestInterruptedQuestion interrupts a cell that waits for a line; the next question has its own answer.
func TestInterruptedQuestion(t *testing.T) {
	s := newSession(t, javaScript)
	for _, code := range []string{"prompt('?')", "for await (const line of process.stdin) {}"} {
		id := s.Send(code)
		if f, err := s.Read(); err != nil || f.Kind != protocol.KindInput {
			t.Fatalf("%+v %v", f, err)
		}
		if err := s.Write(protocol.KindInterrupt, id, ""); err != nil {
			t.Fatal(err)
		}
		if c := s.Finish(id); !c.Interrupted {
			t.Errorf("%+v", c)
		}
	}
	s.ok("process.stdin.removeAllListeners(); process.stdin.pause(); 0")
	s.expect("prompt()", "'mine'", "mine")
}

func TestQuestions(t *testing.T) {
	s := newSession(t, javaScript)
	s.ok("const list = [1, 2]; function fun(a) { return a }; var old = 'x'; class Cls {}; fs = 5\n" +
		"let getter = { get secret() { throw 1 }, plain: 1 }\n" +
		"const proxy = new Proxy({}, { get() { throw 1 }, ownKeys() { throw 1 } })")
	var v protocol.Variables
	s.Ask(protocol.KindVariables, "", &v)
	want := []protocol.Variable{
		{Name: "Cls", Type: "Function", Value: "[class: Cls]"}, {Name: "fs", Type: "number", Value: "5"},
		{Name: "fun", Type: "Function", Value: "[Function: fun]"}, {Name: "getter", Type: "Object", Value: "{ secret: [Getter], plain: 1 }"},
		{Name: "list", Type: "Array", Value: "[ 1, 2 ]"}, {Name: "old", Type: "string", Value: "'x'"},
	}
	for _, w := range want {
		found := false
		for _, g := range v.Variables {
			found = found || g == w
		}
		if !found {
			t.Errorf("no %+v in %+v", w, v.Variables)
		}
	}
	if len(v.Variables) != len(want)+1 {
		t.Errorf("%+v", v.Variables)
	}
	for code, match := range map[string]string{
		"li": "list", "x = list.conc": "concat", "getter.pl": "plain", "'ä'; fu": "fun", "require('pat": "path",
		"import x from 'node:o": "node:os", "Math.ma": "max", "list[0].toF": "toFixed", "whi": "while",
	} {
		var c protocol.Completed
		s.Ask(protocol.KindComplete, code, &c, fmt.Sprint(len(code)))
		found := false
		for _, m := range c.Matches {
			found = found || m == match
		}
		if !found || c.End != len(code) || !strings.HasPrefix(match, code[c.Start:c.End]) {
			t.Errorf("%q: %.300v", code, c)
		}
	}
	for code, text := range map[string]string{
		"fun": "Source:\nfunction fun(a) { return a }", "list.length": "Value:  2", "proxy": "Proxy", "nothing": "",
		"getter.secret": "", "fun()": "fun",
	} {
		var i protocol.Inspected
		s.Ask(protocol.KindInspect, code, &i)
		if i.Found != (text != "") || !strings.Contains(i.Text, text) {
			t.Errorf("%q: %+v", code, i)
		}
	}
}

func TestCheck(t *testing.T) {
	both := map[string]protocol.Checked{
		"1": {Status: "complete"}, "": {Status: "complete"}, "if (x) {": {Status: "incomplete", Indent: "  "}, "f(1,": {Status: "incomplete"},
		"  g({": {Status: "incomplete", Indent: "    "}, "`a\n": {Status: "incomplete"}, "1 +": {Status: "incomplete"},
		"/* a":    {Status: "incomplete"},
		"x = = 2": {Status: "invalid"}, "'a": {Status: "invalid"}, "await f()": {Status: "complete"}, "import x from 'y'": {Status: "complete"},
		"{ a: 1, b: 2 }": {Status: "complete"}, "class A {\n  m() {\n": {Status: "incomplete", Indent: "    "}, ")": {Status: "invalid"},
	}
	for _, language := range []string{javaScript, TypeScript} {
		s := newSession(t, language)
		for code, want := range both {
			var got protocol.Checked
			if s.Ask(protocol.KindCheck, code, &got); got != want {
				t.Errorf("%s: check %q: %+v instead of %+v", language, code, got, want)
			}
		}
	}
	s := newSession(t, TypeScript)
	for code, want := range map[string]string{
		"let a: number =": "incomplete", "interface A {": "incomplete", "let a: = 1": "invalid", "x as any": "complete",
	} {
		var got protocol.Checked
		if s.Ask(protocol.KindCheck, code, &got); got.Status != want {
			t.Errorf("check %q: %+v instead of %s", code, got, want)
		}
	}
}

func TestTypeScript(t *testing.T) {
	s := newSession(t, TypeScript)
	s.ok("interface Pair<T> { a: T; b: T }\ntype Text = string | null\nenum Color { Red, Green = 'g' }\n" +
		"namespace N { export const v = 3 }\nlet unused: Text = 'kept'")
	s.expect("const pair: Pair<number> = { a: 20, b: 22 }; (pair.a + pair.b) as number", "42")
	s.expect("[Color.Red, Color.Green, N.v, unused]", "[ 0, 'g', 3, 'kept' ]")
	s.expect("class P { constructor(private readonly v: number) {} get() { return this.v } }\nnew P(3).get()", "3")
	s.expect("function id<T>(a: T): T { return a }\nid<string>('q')", "'q'")
	s.expect("await Promise.resolve<number>(4)", "4")
	s.expect("{ a: 1 as number }", "{ a: 1 }")
	s.ok("import { join } from 'node:path'; import type { Stats } from 'node:fs'") // not used in this cell
	s.expect("join('a', 'b')", "'a/b'")
	s.ok("enum Color { Blue = 5 }")
	s.expect("Color.Blue", "5")
	s.fails("let x: = 1", "SyntaxError", 1)
	s.Printed("<cell 12>:1:7")
	s.fails("interface Long {\n  a: number\n}\n\nfunction bad(l: Long): never {\n  throw new RangeError('in line 6')\n}\nbad({ a: 1 })",
		"RangeError", 6)
	s.Printed("<cell 13>:6\n  throw new RangeError('in line 6')\n        ^\n\nRangeError: in line 6\n    at bad (<cell 13>:6:9)\n" +
		"    at <cell 13>:8:1\n")
	s.fails(strings.Repeat("[", 300000), "SyntaxError", 0)
	s.expect("join('c', 'd')", "'c/d'") // the compiler is started again
	s.ok("require('fs').writeFileSync('own.ts', 'import { z } from \"./z\"\\nexport interface T { a: number }\\n" +
		"export const twice = (t: T): number => t.a * z'); require('fs').writeFileSync('z.ts', 'export const z: number = 2')")
	s.expect("import { twice, T } from './own'\nconst t: T = { a: 21 }; twice(t)", "42")
	s.expect("(await import('./own.ts')).twice({ a: 1 })", "2")
	s.ok("require('fs').writeFileSync('wrong.ts', 'let a: = 1')")
	s.fails("import './wrong'", "SyntaxError", 1)
	s.expect("'y'.repeat(2e6).length", "2000000")
}

func TestEnd(t *testing.T) {
	s := newSession(t, javaScript)
	s.Send("process.exit(7)")
	s.ends(7)
	s = newSession(t, javaScript)
	s.Send("require('fs').closeSync(" + fmt.Sprint(socket) + ")")
	s.Printed("the cell has closed the descriptor of the session\n")
	s.ends(1)
	s = newSession(t, javaScript)
	s.Send("process.abort()")
	s.ends(128 + 6)
}

// TestForgery: frames that a cell writes reach the supervisor, which checks them, and change nothing in the driver. A process of the cell
// does not have the socket.
func TestForgery(t *testing.T) {
	s := newSession(t, javaScript)
	const forged = `display 1 34\n{"data":{"text/plain":"forged !"}}`
	frame := fmt.Sprintf("require('fs').writeSync(%d, '%s'.padEnd(%d)); 1", socket, forged, len("display 1 34\n")+34)
	if c := s.Execute(frame); len(c.Displays) != 2 || c.Displays[0].Text() != "forged !" || c.Result() != "1" {
		t.Errorf("%+v", c)
	}
	s.expect("require('child_process').execSync('ls /proc/self/fd').toString().split('\\n').includes('"+fmt.Sprint(socket)+"')", "false")
	s.expect("require('fs').readdirSync('/proc/self/fd').includes('"+fmt.Sprint(socket)+"')", "true")
}
