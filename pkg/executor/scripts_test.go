package executor

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestBrokenPython(t *testing.T) {
	for text, file := range map[string]string{
		"  File \"/workspace/main.py\", line 2\n    x = =\n        ^\nSyntaxError: invalid syntax\n":                                                                                                           "/workspace/main.py",
		"Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n    import ret\n  File \"/workspace/ret.py\", line 1\n    return 1\nSyntaxError: 'return' outside function\n": "/workspace/ret.py",
		"SyntaxError: Non-UTF-8 code starting with '\\xff' in file /workspace/a b.py on line 2, but no encoding declared; see x\n":                                                                             "/workspace/a b.py",
		"  File \"main.py\", line 1\nTabError: inconsistent\n":                                                                                                                                                 "/workspace/main.py",
		"  File \"<string>\", line 1\n    1 1\nSyntaxError: invalid syntax\n":                                                                                                                                  "/workspace/<string>", // no file of the program
		"Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n    raise SyntaxError('mine')\nSyntaxError: mine\n":                                                           "",
		"Traceback (most recent call last):\nValueError: SyntaxError\n":                                                                                                                                        "",
		"":              "",
		"SyntaxError:":  "",
		"SyntaxError: ": "",
	} {
		got := brokenPython([]byte(text), "/workspace")
		if file == "" && got != nil || file != "" && !slices.Equal(got, []string{file}) {
			t.Errorf("%q: %q instead of %q", text, got, file)
		}
	}
}

func TestBrokenJavaScript(t *testing.T) {
	for text, suspects := range map[string][]string{
		"/workspace/main.js:2\nlet a = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n    at x\n":                        {"commonjs", "/workspace/main.js"},
		"file:///workspace/a%20b%C3%BC.mjs:10\nlet a = ;\n\nSyntaxError: x\n":                                                {"module", "/workspace/a bü.mjs"},
		"(node:1) Warning: something: 5\n/workspace/a:b.js:3\nx\n\nSyntaxError: y\n":                                         {"commonjs", "/workspace/a:b.js"},
		"<anonymous_script>:1\n{\n\nSyntaxError: Expected property name\n    at JSON.parse\n    at /workspace/main.js:1:6\n": nil,
		"/workspace/main.js:1\nthrow 1\n": nil,
		"Error: SyntaxError: no\n":        nil,
		"":                                nil,
	} {
		if got := brokenJavaScript([]byte(text)); !slices.Equal(got, suspects) {
			t.Errorf("%q: %q instead of %q", text, got, suspects)
		}
	}
}

func TestBrokenShell(t *testing.T) {
	for text, file := range map[string]string{
		"/workspace/main.sh: line 3: syntax error near unexpected token `fi'\n":              "/workspace/main.sh",
		"./lib.sh: line 2: syntax error: unexpected end of file\n":                           "/workspace/lib.sh",
		"/workspace/main.sh: 3: Syntax error: \"fi\" unexpected\n":                           "/workspace/main.sh",
		"/workspace/main.sh:3: parse error near `fi'\n":                                      "/workspace/main.sh",
		"noise\n/workspace/main.sh: line 1: unexpected EOF while looking for matching `''\n": "/workspace/main.sh",
		"/workspace/main.sh: line 1: x: command not found\n":                                 "",
		": syntax error": "",
		"":               "",
	} {
		got := brokenShell([]byte(text), "/workspace")
		if file == "" && got != nil || file != "" && !slices.Equal(got, []string{file}) {
			t.Errorf("%q: %q instead of %q", text, got, file)
		}
	}
}

// FuzzBroken: whatever a program prints, reading it does no harm.
func FuzzBroken(f *testing.F) {
	f.Add([]byte("  File \"x\", line 1\nSyntaxError: y"))
	f.Add([]byte("file:///%zz:1\n\nSyntaxError: "))
	f.Add([]byte(": syntax error"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, got := range [][]string{brokenPython(text, "/w"), brokenJavaScript(text), brokenShell(text, "/w")} {
			if len(got) > 2 {
				t.Errorf("%q", got)
			}
		}
	})
}

func TestLooksLikeModule(t *testing.T) {
	for text, is := range map[string]bool{
		"import fs from 'fs'":              true,
		"  import {x} from './x.js'":       true,
		"import 'x'":                       true,
		"import\"x\"":                      true,
		"import{x}from'x'":                 true,
		"import * as y from 'y'":           true,
		"export default 1":                 true,
		"export {x}":                       true,
		"export{x}":                        true,
		"'use strict'\nexport const a = 1": true,
		"const x = await f()":              true,
		"for await (const x of y) {}":      true,
		"import('x').then(f)":              false,
		"import ('x')":                     false,
		"const exports = 1":                false,
		"exporter()":                       false,
		"importScripts('x')":               false,
		"async () => await f()":            false,
		"function f() {\n  await x\n}":     false,
		"// await nothing":                 false,
		"console.log(1)":                   false,
		"":                                 false,
	} {
		if looksLikeModule(text) != is {
			t.Errorf("%q: %v", text, !is)
		}
	}
}

// Versions of Node that do not tell modules by their syntax are told.
func TestOldNode(t *testing.T) {
	plan := func(version string, req Request) *Plan {
		t.Helper()
		j := fakeJob(t, req)
		j.tool.Version = version
		p, err := newPlan(j, bigMachine)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	declared := func(p *Plan) bool { return p.has("/workspace/package.json") }
	module, script := Request{Language: "js", Code: "import fs from 'fs'"}, Request{Language: "js", Code: "require('fs')"}
	for version, old := range map[string]bool{"18.20.1": true, "20.18.3": true, "20.19.0": false, "21.7.3": true, "22.6.0": true, "22.7.0": false, "24.0.0": false, "": false} {
		if declared(plan(version, module)) != old || declared(plan(version, script)) {
			t.Errorf("%s: %v", version, !old)
		}
	}
	for name, req := range map[string]Request{
		"by extension":  {Name: "x.mjs", Code: "import fs from 'fs'"},
		"a project":     {Files: tree("package.json", "{}", "index.js", "import fs from 'fs'")},
		"a part of one": {Entry: "a/b/x.js", Files: tree("a/package.json", "{}", "a/b/x.js", "import fs from 'fs'")},
	} {
		if p := plan("18.0.0", req); len(p.Files) > 0 && p.has("/workspace/package.json") != (name == "a project") {
			t.Errorf("%s: %+v", name, p.Files)
		}
	}
	if p := plan("18.0.0", Request{Files: tree("package.json", "{}", "index.js", "")}); slices.ContainsFunc(p.Phases[0].Process.Args, func(a string) bool { return strings.HasPrefix(a, "--disable-warning") }) {
		t.Error("an old Node has no --disable-warning")
	}
}

func TestOutOfMemory(t *testing.T) {
	heap := "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n"
	for _, c := range []struct {
		of           func(*sandbox.Result) bool
		signal, code int
		stderr       string
		is           bool
	}{
		{nodeOutOfMemory, int(syscall.SIGABRT), 0, heap, true},
		{nodeOutOfMemory, 0, 134, heap, true},
		{nodeOutOfMemory, 0, 1, "Error [ERR_WORKER_OUT_OF_MEMORY]: Worker terminated", true},
		{nodeOutOfMemory, int(syscall.SIGABRT), 0, "assertion failed", false},
		{nodeOutOfMemory, 0, 1, heap, false}, // it only says so
		{goOutOfMemory, 0, 2, "fatal error: runtime: out of memory\n", true},
		{goOutOfMemory, 0, 2, "runtime: out of memory: cannot allocate 70368744177664-byte block (3964928 in use)\nfatal error: out of memory\n", true},
		{goOutOfMemory, 0, 1, "fatal error: out of memory\n", false},
		{goOutOfMemory, 0, 2, "panic: out of memory\n", false},
	} {
		r := &sandbox.Result{Exit: sandbox.Exit{Signal: c.signal, Code: c.code}, Stderr: sandbox.Output{Head: []byte(c.stderr)}}
		if c.of(r) != c.is {
			t.Errorf("%+v %s: %v", r.Exit, c.stderr, !c.is)
		}
	}
}

func TestIsPythonModule(t *testing.T) {
	for name, is := range map[string]bool{"a": true, "a.b_1": true, "größe": true, "": false, "a..b": false, "1a": false, "a-b": false, "a b": false, ".a": false} {
		if isPythonModule(name) != is {
			t.Errorf("%q: %v", name, !is)
		}
	}
}

func TestNoKit(t *testing.T) {
	for _, language := range []string{"typescript", "sql", "postgres"} {
		j := fakeJob(t, Request{Language: language, Code: "1"})
		j.kit = ""
		if _, err := newPlan(j, bigMachine); err == nil || !strings.Contains(err.Error(), "sandbox-kit") || !strings.Contains(err.Error(), "make install") {
			t.Errorf("%s: %v", language, err)
		}
	}
	j := fakeJob(t, Request{Language: "postgres", Code: "1"})
	j.warmDir = ""
	if _, err := newPlan(j, bigMachine); err == nil || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Error(err)
	}
}

// What a finder finds is a language's only if the language needs it.
func TestToolchainOfALanguage(t *testing.T) {
	e := New(nil, Options{Toolchains: &toolchain.Finder{NoStore: true, Environ: []string{"PATH=/nowhere", "HOME=/nowhere"}}})
	l, err := e.lookUp("sql")
	if err != nil {
		t.Fatal(err)
	}
	if tool, err := e.Toolchain(t.Context(), l); tool != nil || err != nil {
		t.Errorf("%+v, %v", tool, err)
	}
}
