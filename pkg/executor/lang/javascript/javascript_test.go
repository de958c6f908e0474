package javascript

import (
	"slices"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestSuspectFile(t *testing.T) {
	for text, suspects := range map[string][]string{
		"/workspace/main.js:2\nlet a = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n    at x\n": {"commonjs",
			"/workspace/main.js"},
		"file:///workspace/a%20b%C3%BC.mjs:10\nlet a = ;\n\nSyntaxError: x\n": {"module",
			"/workspace/a bü.mjs"},
		"(node:1) Warning: something: 5\n/workspace/a:b.js:3\nx\n\nSyntaxError: y\n": {"commonjs",
			"/workspace/a:b.js"},
		"<anonymous_script>:1\n{\n\nSyntaxError: Expected property name\n    at JSON.parse\n    at /workspace/main.js:1:6\n": nil,
		"/workspace/main.js:1\nthrow 1\n": nil,
		"Error: SyntaxError: no\n":        nil,
		"":                                nil,
	} {
		if got := suspectFile([]byte(text)); !slices.Equal(got, suspects) {
			t.Errorf("%q: %q instead of %q", text, got, suspects)
		}
	}
}

// FuzzSuspectFile: whatever a program prints, reading it does no harm.
func FuzzSuspectFile(f *testing.F) {
	f.Add([]byte("file:///%zz:1\n\nSyntaxError: "))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := suspectFile(text); len(got) > 2 {
			t.Errorf("%q", got)
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

func TestOutOfMemory(t *testing.T) {
	heap := "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n"
	for _, c := range []struct {
		of           func(*sandbox.Result) bool
		signal, code int
		stderr       string
		is           bool
	}{
		{OutOfMemory, int(syscall.SIGABRT), 0, heap, true},
		{OutOfMemory, 0, 134, heap, true},
		{OutOfMemory, 0, 1, "Error [ERR_WORKER_OUT_OF_MEMORY]: Worker terminated", true},
		{OutOfMemory, int(syscall.SIGABRT), 0, "assertion failed", false},
		{OutOfMemory, 0, 1, heap, false}, // it only says so
	} {
		r := &sandbox.Result{Exit: sandbox.Exit{Signal: c.signal, Code: c.code}, Stderr: sandbox.Output{Head: []byte(c.stderr)}}
		if c.of(r) != c.is {
			t.Errorf("%+v %s: %v", r.Exit, c.stderr, !c.is)
		}
	}
}
