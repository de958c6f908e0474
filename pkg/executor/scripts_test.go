package executor

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Versions of Node that do not tell modules by their syntax are told.
func TestOldNode(t *testing.T) {
	plan := func(version string, req Request) *Plan {
		t.Helper()
		j := fakeJob(t, req)
		j.Tool.Version = version
		p, err := newPlan(j, bigMachine)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	declared := func(p *Plan) bool { return p.has("/workspace/package.json") }
	module, script := Request{Language: "js", Code: "import fs from 'fs'"}, Request{Language: "js", Code: "require('fs')"}
	for version, old := range map[string]bool{"18.20.1": true, "20.18.3": true, "20.19.0": false, "21.7.3": true, "22.6.0": true,
		"22.7.0": false, "24.0.0": false, "": false} {
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
	if p := plan("18.0.0", Request{Files: tree("package.json", "{}", "index.js", "")}); slices.ContainsFunc(p.Phases[0].Process.Args,
		func(a string) bool { return strings.HasPrefix(a, "--disable-warning") }) {
		t.Error("an old Node has no --disable-warning")
	}
}

func TestNoKit(t *testing.T) {
	for _, language := range []string{"typescript", "sql", "postgres"} {
		j := fakeJob(t, Request{Language: language, Code: "1"})
		j.Kit = ""
		if _, err := newPlan(j, bigMachine); err == nil || !strings.Contains(err.Error(), "sandbox-kit") ||
			!strings.Contains(err.Error(), "make install") {
			t.Errorf("%s: %v", language, err)
		}
	}
	j := fakeJob(t, Request{Language: "postgres", Code: "1"})
	j.WarmDir = ""
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
