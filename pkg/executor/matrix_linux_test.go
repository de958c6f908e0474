package executor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// row is one case of the matrix.
type row struct {
	name string
	all  bool // uses much processor time: for make test-all
	req  Request
	want want
	more func(*testing.T, *Result)
}

func runRows(t *testing.T, language string, rows []row) {
	t.Helper()
	runRowsOn(t, realEngine(t), language, rows)
}

func runRowsOn(t *testing.T, e *Executor, language string, rows []row) {
	t.Helper()
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			if c.all {
				testenv.NeedAll(t, "the other programs")
			}
			if c.req.Language == "" && c.req.Code != "" && c.req.Name == "" {
				c.req.Language = language
			}
			r := expectOn(t, e, c.req, c.want)
			if c.more != nil {
				c.more(t, r)
			}
		})
	}
}

const (
	nonzero  = sandbox.VerdictNonzeroExit
	noSyntax = sandbox.VerdictCompileError
)

func TestPython(t *testing.T) {
	runRows(t, "python", []row{
		{name: "single file", req: Request{Code: "print('hello')"}, want: want{stdout: "hello\n", silent: true}},
		{name: "version", req: Request{Code: "import sys; print('%d.%d.%d' % sys.version_info[:3])"}, more: func(t *testing.T, r *Result) {
			if strings.TrimSpace(string(r.Stdout.Bytes())) != r.Version || r.Language != "python" {
				t.Errorf("it is %q, and says %q", r.Version, r.Stdout.Bytes())
			}
		}},
		{name: "sys", req: Request{Code: "import sys\nprint(sys.argv[0], sys.path[0], __file__, __name__)"},
			want: want{stdout: "/workspace/main.py /workspace /workspace/main.py __main__\n"}},
		{name: "modules of a tree",
			req: Request{Files: tree("main.py", "import util, pkg.deep\nprint(util.f(), pkg.deep.x)", "util.py", "def f(): return 42",
				"pkg/__init__.py", "", "pkg/deep.py", "x = 'deep'")}, want: want{stdout: "42 deep\n"}},
		{name: "package by its name", req: Request{Entry: "pkg",
			Files: tree("pkg/__init__.py", "", "pkg/__main__.py", "from . import a\nimport sys\nprint(a.x, __package__, sys.argv)", "pkg/a.py",
				"x = 1", "other.py", ""), Args: []string{"z"}}, want: want{stdout: "1 pkg ['/workspace/pkg/__main__.py', 'z']\n"}},
		{name: "package without a name",
			req:  Request{Files: tree("pkg/__init__.py", "", "pkg/__main__.py", "from .a import x\nprint(x)", "pkg/a.py", "x = 1")},
			want: want{stdout: "1\n"}},
		{name: "package elsewhere",
			req: Request{Files: tree("pkg/__init__.py", "", "pkg/__main__.py", "from .a import x\nimport os\nprint(x, os.getcwd())", "pkg/a.py",
				"x = 1"), Policy: Policy{Workdir: "/tmp"}}, want: want{stdout: "1 /tmp\n"}},
		{name: "package elsewhere with a path",
			req: Request{Files: tree("pkg/__init__.py", "", "pkg/__main__.py", "from .a import x\nimport b\nprint(x + b.y)", "pkg/a.py", "x = 1",
				"lib/b.py", "y = 2"), Entry: "pkg", Env: map[string]string{"PYTHONPATH": "/workspace/lib"}, Policy: Policy{Workdir: "/tmp"}},
			want: want{stdout: "3\n"}},
		{name: "nested package", req: Request{Entry: "a/b",
			Files: tree("a/__init__.py", "", "a/b/__init__.py", "", "a/b/__main__.py", "from ..c import x\nprint(x)", "a/c.py", "x = 3")},
			want: want{stdout: "3\n"}},
		{name: "tree is a package",
			req: Request{Files: tree("__init__.py", "", "__main__.py", "from . import a\nimport b\nprint(a.x + b.x)", "a.py", "x = 1", "b.py",
				"x = 2")}, want: want{stdout: "3\n"}},
		{name: "tree with a main", req: Request{Files: tree("__main__.py", "import a\nprint(a.x)", "a.py", "x = 1")}, want: want{stdout: "1\n"}},
		{name: "stdin", req: Request{Code: "import sys\nprint(sum(int(l) for l in sys.stdin))", Stdin: strings.NewReader("1\n2\n3\n")},
			want: want{stdout: "6\n"}},
		{name: "no stdin", req: Request{Code: "import sys\nprint(repr(sys.stdin.read()))"}, want: want{stdout: "''\n"}},
		{name: "args", req: Request{Code: "import sys; print(sys.argv[1:])", Args: []string{"a b", "--flag", "ü"}},
			want: want{stdout: "['a b', '--flag', 'ü']\n"}},
		{name: "env", req: Request{Code: "import os; print(os.environ['GREETING'], os.environ.get('SSH_AUTH_SOCK'))",
			Env: map[string]string{"GREETING": "hi"}}, want: want{stdout: "hi None\n"}},
		{name: "own PYTHON variables", req: Request{Code: "import sys; print(sys.flags.utf8_mode, sys.dont_write_bytecode)",
			Env: map[string]string{"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": ""}}, want: want{stdout: "1 False\n"}},
		{name: "no trace of the hook", req: Request{Code: "import os, sys\nprint(os.listdir('/tmp'), 'PYTHONPATH' in os.environ, sys.path[0], " +
			"[p for p in sys.path + list(sys.path_importer_cache) if 'sandbox-run' in p], sys.stdout.line_buffering)"},
			want: want{stdout: "[] False /workspace [] True\n", silent: true}},
		{name: "a hook that Python would cache", req: Request{Code: "import os; print(os.listdir('/tmp'))",
			Env: map[string]string{"PYTHONDONTWRITEBYTECODE": ""}}, want: want{stdout: "[]\n", silent: true}},
		{name: "own path", req: Request{Files: tree("main.py", "import os, b\nprint(os.environ['PYTHONPATH'], b.y)", "lib/b.py", "y = 2"),
			Env: map[string]string{"PYTHONPATH": "/workspace/lib"}}, want: want{stdout: "/workspace/lib 2\n"}},
		{name: "unbuffered", req: Request{Code: "import sys; print(sys.stdout.write_through, sys.stdout.line_buffering)",
			Env: map[string]string{"PYTHONUNBUFFERED": "1"}}, want: want{stdout: "True False\n"}},
		{name: "lines before a kill", req: Request{Code: "import os\nprint('a\\nb')\nprint('part of a line', end='')\nos.kill(os.getpid(), 9)"},
			want: want{verdict: sandbox.VerdictSignaled, stdout: "a\nb\n"}},
		{name: "merged", req: Request{Code: "import os, sys\nfor i in range(100):\n    print('out', i)\n    print('err', i, file=sys.stderr)\n" +
			"os.system('echo child')\n1/0", Policy: Policy{MergeOutput: true}}, want: want{verdict: nonzero, silent: true},
			more: func(t *testing.T, r *Result) {
				var lines strings.Builder
				for i := range 100 {
					fmt.Fprintf(&lines, "out %d\nerr %d\n", i, i)
				}
				if got := string(r.Stdout.Bytes()); !strings.HasPrefix(got, lines.String()+"child\nTraceback (most") {
					t.Error(got)
				}
			}},
		{name: "merged syntax error", req: Request{Code: "x = = 1\n", Policy: Policy{MergeOutput: true}},
			want: want{verdict: noSyntax, has: []string{"SyntaxError"}, silent: true}},
		{name: "exit code", req: Request{Code: "import sys; sys.exit(7)"}, want: want{verdict: nonzero, exit: 7}},
		{name: "exit message", req: Request{Code: "raise SystemExit('no')"}, want: want{verdict: nonzero, said: []string{"no"}}},
		{name: "trace", req: Request{Files: tree("main.py", "import util\n\nutil.f()\n", "util.py", "def f():\n    return 1/0\n")},
			want: want{verdict: nonzero, said: []string{`File "/workspace/main.py", line 3, in <module>`, `File "/workspace/util.py", line 2, in f`,
				"ZeroDivisionError"}}},
		{name: "syntax error", req: Request{Code: "print(1)\nx = = 1\n"},
			want: want{verdict: noSyntax, said: []string{`File "/workspace/main.py", line 2`, "SyntaxError"}}},
		{name: "indentation error", req: Request{Code: "if 1:\nx = 1\n"}, want: want{verdict: noSyntax, said: []string{"IndentationError"}}},
		{name: "return at the top", req: Request{Code: "return 1\n"}, want: want{verdict: noSyntax}},
		{name: "wrong encoding", req: Request{Code: "x = '\xff'\n"}, want: want{verdict: noSyntax}},
		{name: "syntax error in a module", req: Request{Files: tree("main.py", "import util", "util.py", "def f(:\n")},
			want: want{verdict: noSyntax, said: []string{`util.py", line 1`}}},
		{name: "syntax error in a package", req: Request{Entry: "pkg", Files: tree("pkg/__main__.py", "def f(:\n", "x.py", "")},
			want: want{verdict: noSyntax}},
		{name: "syntax error of what it evaluates", req: Request{Code: "eval('1 1')"},
			want: want{verdict: nonzero, said: []string{"SyntaxError"}}},
		{name: "syntax error it raises", req: Request{Code: "raise SyntaxError('mine')"}, want: want{verdict: nonzero}},
		{name: "syntax error of what it wrote", req: Request{Code: "open('/workspace/gen.py','w').write('x = =')\nimport gen"},
			want: want{verdict: nonzero}},
		{name: "broken by itself", req: Request{Code: "open(__file__,'w').write('x = =')\nimport main"}, want: want{verdict: nonzero}},
		{name: "files",
			req: Request{Code: "d = open('in.txt').read()\n" +
				"open('out/r.txt','w').write(d.upper()) if __import__('os').makedirs('out') is None else 0", Inputs: tree("in.txt", "text"),
				Outputs: sandbox.Selection{Patterns: []string{"out/*.txt"}}}, want: want{files: map[string]string{"out/r.txt": "TEXT"}}},
		{name: "threads",
			req: Request{Code: "import threading\nr=[]\nts=[threading.Thread(target=lambda i=i: r.append(i)) for i in range(20)]\n" +
				"[t.start() for t in ts]; [t.join() for t in ts]\nprint(sum(r))"}, want: want{stdout: "190\n"}},
		{name: "multiprocessing",
			req: Request{Code: "import multiprocessing as mp\ndef f(x): return x*x\nif __name__ == '__main__':\n" +
				"    for how in ('fork', 'spawn'):\n        with mp.get_context(how).Pool(2) as p: print(sum(p.map(f, range(10))))"},
			want: want{stdout: "285\n285\n"}},
		{name: "subprocess",
			req: Request{Code: "import subprocess, sys\n" +
				"print(subprocess.run(['sh','-c','echo $((6*7))'],capture_output=True,text=True).stdout, end='')\n" +
				"print(subprocess.run([sys.executable,'-c','print(1)'],capture_output=True,text=True).stdout, end='')"}, want: want{stdout: "42\n1\n"}},
		{name: "asyncio",
			req: Request{Code: "import asyncio\nasync def f(i):\n    await asyncio.sleep(0.01); return i\n" +
				"async def main(): print(sum(await asyncio.gather(*map(f, range(5)))))\nasyncio.run(main())"}, want: want{stdout: "10\n"}},
		{name: "Unicode", req: Request{Code: "s='grüße 日本 🎉'\nprint(s, len(s))"}, want: want{stdout: "grüße 日本 🎉 10\n"}},
		{name: "Unicode names", req: Request{Files: tree("main.py", "import größe\nprint(größe.x)", "größe.py", "x = 1")},
			want: want{stdout: "1\n"}},
		{name: "standard library",
			req: Request{Code: "import json, sqlite3, ssl, zlib, hashlib, decimal, ctypes, datetime, re, csv, collections\n" +
				"print(json.dumps(sqlite3.connect(':memory:').execute('select 1+1').fetchone()))"}, want: want{stdout: "[2]\n"}},
		{name: "time limit", req: Request{Code: "while True: pass", Limits: sandbox.Limits{Wall: ms(700)}},
			want: want{verdict: sandbox.VerdictTimeLimit}},
		{name: "memory limit", req: Request{Code: "x = []\nwhile True: x.append(bytearray(1<<20))",
			Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "forbidden imports",
			req: Request{Files: tree("main.py", "print('ran')\nimport os, socket\n", "util.py",
				"from ctypes import util\nfrom os import path\n__import__('ctypes.util')\nimport importlib\nimportlib.import_module('socket')\n"+
					"from . import socket\n"), Options: LanguageOptions{ForbidImports: []string{"socket", "ctypes", "os.path"}}},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.py:2: lint: import of socket",
				"/workspace/util.py:1: lint: import of ctypes", "util.py:2: lint: import of os.path", "util.py:3: lint: import of ctypes",
				"util.py:5: lint: import of socket"}}, more: func(t *testing.T, r *Result) {
				if strings.Contains(string(r.Stderr.Bytes()), "util.py:6") || len(r.Stdout.Bytes()) > 0 ||
					strings.Count(string(r.Stderr.Bytes()), "lint") != 5 {
					t.Errorf("%s%s", r.Stdout.Bytes(), r.Stderr.Bytes())
				}
			}},
		{name: "allowed imports", req: Request{Code: "import os, json\nfrom os.path import join\nprint('ran')",
			Options: LanguageOptions{ForbidImports: []string{"socket", "jso"}}}, want: want{stdout: "ran\n"}},
		{name: "forbidden imports and a syntax error", req: Request{Code: "import os\nx = = 1",
			Options: LanguageOptions{ForbidImports: []string{"socket"}}},
			want: want{verdict: noSyntax, said: []string{`main.py", line 2`, "SyntaxError"}}},
		{name: "shebang", req: Request{Files: tree("tool", "#!/usr/bin/env -S python3 -u\nprint('by shebang')")},
			want: want{stdout: "by shebang\n"}},
	})
}

func TestJavaScript(t *testing.T) {
	runRows(t, "javascript", []row{
		{name: "single file", req: Request{Code: "console.log('hello')"}, want: want{stdout: "hello\n", silent: true}},
		{name: "version", req: Request{Code: "console.log(process.versions.node)"}, more: func(t *testing.T, r *Result) {
			if strings.TrimSpace(string(r.Stdout.Bytes())) != r.Version {
				t.Errorf("it is %q, and says %q", r.Version, r.Stdout.Bytes())
			}
		}},
		{name: "names", req: Request{Code: "console.log(__filename, __dirname, process.argv[1], require.main === module)"},
			want: want{stdout: "/workspace/main.js /workspace /workspace/main.js true\n"}},
		{name: "CommonJS",
			req: Request{Files: tree("main.js", "const {f} = require('./lib/util'); console.log(f(), require('./data.json').x)", "lib/util.js",
				"exports.f = () => 42", "data.json", `{"x": 7}`)}, want: want{stdout: "42 7\n"}},
		{name: "ES modules",
			req: Request{Files: tree("main.mjs", "import {f} from './util.mjs'; console.log(f(), import.meta.url)", "util.mjs",
				"export const f = () => 42")}, want: want{stdout: "42 file:///workspace/main.mjs\n"}},
		{name: "type module",
			req: Request{Files: tree("package.json", `{"type":"module"}`, "index.js", "import {f} from './util.js'; console.log(f())", "util.js",
				"export const f = () => 42")}, want: want{stdout: "42\n", silent: true}},
		{name: "module by its syntax",
			req:  Request{Code: "import os from 'node:os';\nexport const x = 1;\nconsole.log(typeof os.cpus, await Promise.resolve(2))"},
			want: want{stdout: "function 2\n", silent: true}},
		{name: "top-level await alone", req: Request{Code: "const x = await Promise.resolve(5);\nconsole.log(x)"},
			want: want{stdout: "5\n", silent: true}},
		{name: "module by its syntax in a package",
			req: Request{Files: tree("package.json", `{"name":"x"}`, "index.js", "import {f} from './util.js'; console.log(f())", "util.js",
				"export const f = () => 42")}, want: want{stdout: "42\n", silent: true}},
		{name: "main of a package",
			req: Request{Files: tree("package.json", `{"main":"./lib/start"}`, "lib/start.js", "console.log(__filename)", "index.js",
				"console.log('wrong')", "other.js", "")}, want: want{stdout: "/workspace/lib/start.js\n"}},
		{name: "directory as entry", req: Request{Entry: "lib",
			Files: tree("lib/index.js", "console.log(__filename)", "index.js", "console.log('wrong')")},
			want: want{stdout: "/workspace/lib/index.js\n"}},
		{name: "node_modules",
			req: Request{Files: tree("index.js", "console.log(require('left')(1), require('scoped/sub'))", "package.json", `{}`,
				"node_modules/left/package.json", `{"main":"l.js"}`, "node_modules/left/l.js", "module.exports = x => x + 1",
				"node_modules/scoped/sub.js", "module.exports = 's'")}, want: want{stdout: "2 s\n"}},
		{name: "node_modules from a module",
			req: Request{Files: tree("index.mjs", "import left, {two} from 'left'; console.log(left, two)", "node_modules/left/package.json",
				`{"type":"module","exports":"./l.js"}`, "node_modules/left/l.js", "export default 1; export const two = 2")},
			want: want{stdout: "1 2\n"}},
		{name: "async",
			req: Request{Code: "const sleep = ms => new Promise(r => setTimeout(r, ms));\n" +
				"(async () => { await sleep(5); for await (const x of [1,2]) console.log(x) })()"}, want: want{stdout: "1\n2\n"}},
		{name: "JSON import",
			req: Request{Files: tree("main.mjs",
				"import {createRequire} from 'module'; const d = createRequire(import.meta.url)('./d.json'); console.log(d.x)", "d.json", `{"x":1}`)},
			want: want{stdout: "1\n"}},
		{name: "JSON import with an attribute",
			req:  Request{Files: tree("main.mjs", "import d from './d.json' with {type: 'json'}; console.log(d.x)", "d.json", `{"x":1}`)},
			want: want{stdout: "1\n"}},
		{name: "stdin",
			req: Request{Code: "let s=''; process.stdin.on('data', d => s += d).on('end', () => console.log(s.trim().split('\\n').reduce((a, x) " +
				"=> a + +x, 0)))", Stdin: strings.NewReader("1\n2\n3\n")}, want: want{stdout: "6\n"}},
		{name: "stdin at once", req: Request{Code: "console.log(require('fs').readFileSync(0, 'utf8').length)",
			Stdin: strings.NewReader("12345")}, want: want{stdout: "5\n"}},
		{name: "args", req: Request{Code: "console.log(JSON.stringify(process.argv.slice(2)))", Args: []string{"a b", "--flag", "ü"}},
			want: want{stdout: `["a b","--flag","ü"]` + "\n"}},
		{name: "env", req: Request{Code: "console.log(process.env.GREETING)", Env: map[string]string{"GREETING": "hi"}},
			want: want{stdout: "hi\n"}},
		{name: "NODE_OPTIONS", req: Request{Code: "console.log(require('v8').getHeapStatistics().heap_size_limit >> 20 < 200, process.title)",
			Env: map[string]string{"NODE_OPTIONS": "--max-old-space-size=100 --title=mine"}}, want: want{stdout: "true mine\n"}},
		{name: "exit code", req: Request{Code: "process.exit(7)"}, want: want{verdict: nonzero, exit: 7}},
		{name: "trace",
			req: Request{Files: tree("main.js", "const u = require('./util')\n\nu.f()\n", "util.js",
				"exports.f = () => {\n  throw new Error('boom')\n}\n")},
			want: want{verdict: nonzero, said: []string{"/workspace/util.js:2", "Error: boom", "/workspace/main.js:3:3"}}},
		{name: "trace in a module", req: Request{Name: "main.mjs", Code: "await 1\nnull.x\n"},
			want: want{verdict: nonzero, said: []string{"/workspace/main.mjs:2"}}},
		{name: "rejected promise", req: Request{Code: "Promise.reject(new Error('lost'))"}, want: want{verdict: nonzero, said: []string{"lost"}}},
		{name: "syntax error", req: Request{Code: "console.log(1)\nlet a = ;\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.js:2", "SyntaxError"}}},
		{name: "syntax error in a module", req: Request{Name: "main.mjs", Code: "let a = ;\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.mjs:1"}}},
		{name: "syntax error in a module by its syntax", req: Request{Code: "import fs from 'fs'\nlet a = ;\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.js:2"}}},
		{name: "syntax error in another file", req: Request{Files: tree("main.js", "require('./grü ße')", "grü ße.js", "function (")},
			want: want{verdict: noSyntax, said: []string{"/workspace/grü ße.js:1"}}},
		{name: "syntax error in another module", req: Request{Files: tree("main.mjs", "import './grü ße.mjs'", "grü ße.mjs", "function (")},
			want: want{verdict: noSyntax}},
		{name: "import in CommonJS", req: Request{Files: tree("package.json", `{"type":"commonjs"}`, "index.js", "import fs from 'fs'")},
			want: want{verdict: noSyntax}},
		{name: "syntax error of what it parses", req: Request{Code: "JSON.parse('{')"},
			want: want{verdict: nonzero, said: []string{"SyntaxError"}}},
		{name: "syntax error of what it evaluates", req: Request{Code: "eval('let a = ;')"},
			want: want{verdict: nonzero, said: []string{"SyntaxError"}}},
		{name: "files",
			req: Request{Code: "const fs=require('fs'); fs.mkdirSync('out'); fs.writeFileSync('out/r.txt', " +
				"fs.readFileSync('in.txt','utf8').toUpperCase())", Inputs: tree("in.txt", "text"),
				Outputs: sandbox.Selection{Patterns: []string{"out"}}}, want: want{files: map[string]string{"out/r.txt": "TEXT"}}},
		{name: "worker threads",
			req: Request{Files: tree("main.js",
				"const {Worker} = require('worker_threads'); new Worker('./w.js', {workerData: 20}).on('message', m => console.log(m))", "w.js",
				"const {parentPort, workerData} = require('worker_threads'); parentPort.postMessage(workerData + 1)")}, want: want{stdout: "21\n"}},
		{name: "child processes",
			req: Request{Files: tree("main.js",
				"const cp = require('child_process'); console.log(cp.execSync('echo $((6*7))', {encoding: 'utf8'}).trim(), "+
					"cp.execFileSync(process.execPath, ['-p', '1+1'], {encoding: 'utf8'}).trim()); cp.fork('./c.js').on('message', m => console.log(m))",
				"c.js", "process.send('from child')")}, want: want{stdout: "42 2\nfrom child\n"}},
		{name: "Unicode", req: Request{Code: "const größe='grüße 日本 🎉'; console.log(größe, [...größe].length)"},
			want: want{stdout: "grüße 日本 🎉 10\n"}},
		{name: "standard library",
			req: Request{Code: "const z=require('zlib'),c=require('crypto'); console.log(z.gunzipSync(z.gzipSync('zip')).toString(), " +
				"c.createHash('sha1').update('').digest('hex').slice(0,4), typeof fetch, new Intl.NumberFormat('de').format(1234.5))"},
			want: want{stdout: "zip da39 function 1.234,5\n"}},
		{name: "time limit", req: Request{Code: "for(;;);", Limits: sandbox.Limits{Wall: ms(900)}},
			want: want{verdict: sandbox.VerdictTimeLimit}},
		{name: "memory limit", req: Request{Code: hogJS, Limits: sandbox.Limits{Memory: 192 * sandbox.MiB}},
			want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "small memory limit", req: Request{Code: hogJS, Limits: sandbox.Limits{Memory: 96 * sandbox.MiB}},
			want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "memory limit in a worker",
			req: Request{Code: "const {Worker} = require('worker_threads'); new Worker(" + "`" + hogJS + "`" + ", {eval: true})",
				Limits: sandbox.Limits{Memory: 256 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "buffers beyond the memory limit", req: Request{Code: "const a=[]; for(;;) a.push(Buffer.alloc(1<<20, 1))",
			Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "much garbage", all: true, req: Request{Code: garbageJS, Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}},
			want: want{stdout: "survived\n"}},
		{name: "much garbage by default", all: true, req: Request{Code: garbageJS}, want: want{stdout: "survived\n"}},
	})
}

const (
	hogJS = "const a = []; for (let i = 0;; i++) a.push({i, s: 'x' + i, o: [i, i + 1]})"
	// Keeps a little of what it makes, and makes gigabytes.
	garbageJS = "let keep = new Array(50000); for (let i = 0; i < 4e6; i++) keep[i % 50000] = {i, s: 'x' + i, o: [i, i + 1, i + 2]}; " +
		"console.log('survived')"
)

func TestTypeScript(t *testing.T) {
	runRows(t, "typescript", []row{
		{name: "single file", req: Request{Code: "const x: number = 42; console.log(x)"}, want: want{stdout: "42\n", silent: true}},
		{name: "enums and JSX", req: Request{Name: "main.tsx",
			Code: "enum E { A = 1, B }\nconst enum C { X = 'x' }\n" +
				"const React = {createElement: (t: string, p: unknown, ...c: string[]) => t + c.join('')};\n" +
				"console.log(E.B, E[1], C.X, <div>hi</div>)"}, want: want{stdout: "2 A x divhi\n"}},
		{name: "several files",
			req: Request{Files: tree("main.ts", "import {f} from './lib/util';\nimport data from './d.json';\nconsole.log(f<number>(data.x))",
				"lib/util.ts", "export function f<T>(x: T): T { return x }", "d.json", `{"x":3}`)}, want: want{stdout: "3\n"}},
		{name: "tsconfig paths",
			req: Request{Files: tree("src/index.ts", "import {f} from '@lib/util'; console.log(f())", "src/lib/util.ts",
				"export const f = (): string => 'aliased'", "tsconfig.json",
				"{\n // comment\n \"compilerOptions\": {\"baseUrl\": \"src\", \"paths\": {\"@lib/*\": [\"lib/*\"]}}}")},
			want: want{stdout: "aliased\n"}},
		{name: "main of a package",
			req: Request{Files: tree("package.json", `{"main":"lib/start.ts"}`, "lib/start.ts", "console.log('start' as string)", "index.ts",
				"console.log('wrong')")}, want: want{stdout: "start\n"}},
		{name: "node_modules",
			req: Request{Files: tree("index.ts", "import left from 'left'; console.log(left(1))", "node_modules/left/package.json",
				`{"main":"l.js"}`, "node_modules/left/l.js", "module.exports = x => x + 1", "tsconfig.json", "{}")}, want: want{stdout: "2\n"}},
		{name: "top-level await", req: Request{Code: "const x: number = await Promise.resolve(2); console.log(x); export {}"},
			want: want{stdout: "2\n"}},
		{name: "stdin, args, env, exit code",
			req: Request{Code: "import {readFileSync} from 'node:fs'; console.log(readFileSync(0, 'utf8'), process.argv.slice(2), " +
				"process.env.GREETING); process.exit(3)", Stdin: strings.NewReader("in"), Args: []string{"a b"},
				Env: map[string]string{"GREETING": "hi"}}, want: want{verdict: nonzero, exit: 3, stdout: "in [ 'a b' ] hi\n"}},
		{name: "trace",
			req: Request{Files: tree("main.ts", "import {f} from './util'\ninterface A {\n  x: number\n}\n\nf({x: 1} as A)\n", "util.ts",
				"type T = {\n  x: number\n}\nexport function f(a: T): never {\n  throw new Error('boom')\n}\n")},
			want: want{verdict: nonzero, said: []string{"/workspace/util.ts:5", "Error: boom", "/workspace/main.ts:6"}}},
		{name: "syntax error", req: Request{Code: "const a: number = 1\nlet b: = ;\n"},
			want: want{verdict: noSyntax, said: []string{"main.ts:2"}}},
		{name: "syntax error in another file", req: Request{Files: tree("main.ts", "import './util'", "util.ts", "\nfunction (")},
			want: want{verdict: noSyntax, said: []string{"util.ts:2"}}},
		{name: "missing import", req: Request{Code: "import './nowhere'"}, want: want{verdict: noSyntax, said: []string{"nowhere"}}},
		{name: "files", req: Request{Code: "import fs from 'fs'; fs.writeFileSync('r.txt', fs.readFileSync('in.txt','utf8').toUpperCase())",
			Inputs: tree("in.txt", "text"), Outputs: sandbox.Selection{Patterns: []string{"r.txt"}}},
			want: want{files: map[string]string{"r.txt": "TEXT"}}},
		{name: "worker threads",
			req: Request{Files: tree("main.ts",
				"import {Worker} from 'node:worker_threads'; new Worker('./w.ts', {workerData: 20}).on('message', (m: number) => console.log(m))",
				"w.ts", "import {parentPort, workerData} from 'node:worker_threads'; parentPort!.postMessage((workerData as number) + 1)")},
			want: want{stdout: "21\n"}},
		{name: "child processes",
			req:  Request{Code: "import {execSync} from 'child_process'; console.log(execSync('echo $((6*7))', {encoding: 'utf8'}).trim())"},
			want: want{stdout: "42\n"}},
		{name: "Unicode", req: Request{Code: "const größe: string = 'grüße 日本 🎉'; console.log(größe)"}, want: want{stdout: "grüße 日本 🎉\n"}},
		{name: "standard library",
			req: Request{Code: "import * as path from 'path'; import {createHash} from 'node:crypto'; console.log(path.join('a','b'), " +
				"createHash('sha1').update('').digest('hex').slice(0,4))"}, want: want{stdout: "a/b da39\n"}},
		{name: "memory limit", req: Request{Code: "const a: object[] = []; for (let i = 0;; i++) a.push({i, s: 'x' + i})",
			Limits: sandbox.Limits{Memory: 192 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "time limit", req: Request{Code: "for(;;);", Limits: sandbox.Limits{Wall: ms(900)}},
			want: want{verdict: sandbox.VerdictTimeLimit}},
	})
}

func TestTypeScriptIsCompiledOnce(t *testing.T) {
	for name, req := range map[string]Request{
		"alone": {Language: "typescript", Code: "console.log('once' as string)"},
		"with packages": {Files: tree("index.ts",
			"import left from 'left'; const n = 'left'; const m = await import(n); console.log(left, m.default)", "node_modules/left/index.js",
			"module.exports = 1", "tsconfig.json", "{}")},
	} {
		t.Run(name, func(t *testing.T) {
			first := expect(t, req, want{})
			second := expect(t, req, want{stdout: string(first.Stdout.Bytes())})
			if first.Phases[0].Cached || !second.Phases[0].Cached || len(second.Phases) != 2 {
				t.Errorf("first %+v\nsecond %+v\nnotes %q", first.Phases[0], second.Phases[0], first.Notes)
			}
			req.NoCache = true
			if third := expect(t, req, want{}); third.Phases[0].Cached {
				t.Error("it came from the cache all the same")
			}
		})
	}
}
