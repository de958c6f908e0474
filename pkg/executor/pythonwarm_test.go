package executor

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestPythonImports(t *testing.T) {
	for source, want := range map[string][]string{
		"":                                  nil,
		"import os":                         {"os"},
		"import os, sys as s, a.b.c\nx = 1": {"os", "sys", "a"},
		"  from numpy.random import x\r\n":  {"numpy"},
		"from . import y":                   nil,
		"import numpy as np; np.x":          {"numpy"},
		"import os, sys; import gc;from a import": {"os", "sys", "gc", "a"},
		"# import os\nimportant = 1\nfromage":     nil,
		"try:\n\timport pandas # why\nexcept:":    {"pandas"},
		"import \nfrom \nimport ,":                nil,
	} {
		if got := pythonImports([]byte(source)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", source, got, want)
		}
	}
}

func FuzzPythonImports(f *testing.F) {
	f.Add("import a, b.c\nfrom d import e")
	f.Fuzz(func(t *testing.T, source string) {
		for _, m := range pythonImports([]byte(source)) {
			if m == "" || !strings.Contains(source, m) || strings.ContainsAny(m, ". \t\n;#") {
				t.Errorf("%q of %q", m, source)
			}
		}
	})
}

// Which interpreter a program waits in, and which does not wait.
func TestPythonWarm(t *testing.T) {
	for name, c := range map[string]struct {
		req     Request
		version string
		want    string
	}{
		"plain":        {Request{Language: "python", Code: "print(1)"}, "", "python"},
		"standard":     {Request{Language: "python", Code: "import json, re"}, "", "python"},
		"numpy":        {Request{Language: "python", Code: "import numpy as np"}, "", "python+pandas"},
		"pandas":       {Request{Language: "python", Code: "if 1:\n  from pandas import DataFrame"}, "", "python+pandas"},
		"both":         {Request{Language: "python", Code: "import pandas\nimport matplotlib.pyplot as plt"}, "", "python+matplotlib"},
		"other file":   {Request{Files: tree("main.py", "import util", "util.py", "import numpy")}, "", "python+pandas"},
		"collector":    {Request{Language: "python", Code: "import gc"}, "", "python+gc"},
		"pandas' own":  {Request{Files: tree("main.py", "import util", "util.py", "import numpy, objgraph")}, "", "python+pandas+gc"},
		"own variable": {Request{Language: "python", Code: "1", Env: map[string]string{"X": "1"}}, "", "python"},
		"python's":     {Request{Language: "python", Code: "1", Env: map[string]string{"PYTHONHASHSEED": "1"}}, "", ""},
		"buffered":     {Request{Language: "python", Code: "1", Env: map[string]string{"PYTHONUNBUFFERED": ""}}, "", ""},
		"module":       {Request{Files: tree("pkg/__main__.py", "", "pkg/__init__.py", "")}, "", ""},
		"old":          {Request{Language: "python", Code: "1"}, "3.8.18", ""},
		"oldest":       {Request{Language: "python", Code: "1"}, "2.7.18", ""},
		"who knows":    {Request{Language: "python", Code: "1"}, "unknown", ""},
		"new":          {Request{Language: "python", Code: "1"}, "3.10.1", "python"},
	} {
		j := fakeJob(t, c.req)
		j.engine.opts.Ahead = true
		if c.version != "" {
			j.tool.Version = c.version
		}
		p, err := newPlan(j, bigMachine)
		if err != nil {
			t.Fatal(name, err)
		}
		got := ""
		warm := p.Phases[len(p.Phases)-1].Process.Warm
		if warm != nil {
			got = warm.Name
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if warm != nil && (!warm.Fork || warm.Handshake == "" || len(warm.Files) == 0 || warm.Env["PYTHONPATH"] == "") {
			t.Errorf("%s: %+v", name, warm)
		}
	}
}

// Nothing waits for a command that runs one program: it has neither drivers nor what they need.
func TestNothingWaitsForOne(t *testing.T) {
	for language, code := range map[string]string{
		"python": "1", "javascript": "1", "java": "class A { public static void main(String[] a) {} }", "typescript": "1", "postgres": "SELECT 1", "sql": "SELECT 1",
	} {
		for _, ahead := range []bool{false, true} {
			j := fakeJob(t, Request{Language: language, Code: code})
			j.kit, j.warmDir, j.engine.opts.Ahead, j.engine.opts.WarmDir = "/kit", "/var/cache/warm", ahead, t.TempDir()
			p, err := newPlan(j, bigMachine)
			if err != nil {
				t.Fatal(language, err)
			}
			waits := slices.ContainsFunc(p.Phases, func(p Phase) bool { return p.Process.Warm != nil })
			if waits != (ahead && language != "sql") {
				t.Errorf("%s, ahead %v: waits %v", language, ahead, waits)
			}
			if drivers := slices.ContainsFunc(p.Spec.Root.Add, func(m sandbox.Mount) bool {
				return strings.Contains(m.Source, "ahead") || strings.HasSuffix(m.Source, ".cjs")
			}); drivers != (ahead && slices.Contains([]string{"javascript", "typescript", "java"}, language)) {
				t.Errorf("%s: %+v", language, p.Spec.Root.Add)
			}
		}
	}
}
