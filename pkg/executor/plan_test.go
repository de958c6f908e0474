package executor

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// bigMachine is one on which every default fits.
var bigMachine = sandbox.Machine{CPUs: 8, Memory: 64 * sandbox.GiB, OpenFiles: 1 << 20}

// fakeTools are toolchains of no machine, so that plans are the same on all.
var fakeTools = map[string]toolchain.Toolchain{
	"python": {Name: "python", Version: "3.12.1", Path: "/opt/python/bin/python3.12", Home: "/opt/python",
		Mounts: []sandbox.Mount{{Source: "/opt/python", Target: "/opt/python"}}, ID: "python-id"},
	"node": {Name: "node", Version: "22.9.0", Path: "/usr/bin/node", ID: "node-id"},
	"shell": {Name: "shell", Version: "5.2.15", Path: "/usr/bin/bash",
		Programs: map[string]string{"bash": "/usr/bin/bash", "sh": "/usr/bin/sh", "zsh": "/usr/bin/zsh"}, ID: "shell-id"},
	"go": {Name: "go", Version: "1.26.1", Path: "/opt/go/bin/go", Home: "/opt/go",
		Mounts: []sandbox.Mount{{Source: "/opt/go", Target: "/opt/go"}}, Env: map[string]string{"GOROOT": "/opt/go"}, ID: "go-id"},
	"rust": {Name: "rust", Version: "1.90.0", Path: "/opt/rust/bin/rustc", Home: "/opt/rust",
		Programs: map[string]string{"cargo": "/opt/rust/bin/cargo", "cc": "/usr/bin/cc"},
		Mounts:   []sandbox.Mount{{Source: "/opt/rust", Target: "/opt/rust"}}, ID: "rust-id"},
	"java": {Name: "java", Version: "21.0.2", Path: "/opt/jdk/bin/java", Home: "/opt/jdk",
		Programs: map[string]string{"javac": "/opt/jdk/bin/javac"}, Env: map[string]string{"JAVA_HOME": "/opt/jdk"}, ID: "java-id"},
	"postgres": {Name: "postgres", Version: "15.3", Path: "/usr/lib/postgresql/15/bin/postgres", Home: "/usr/lib/postgresql/15/bin",
		Programs: map[string]string{"postgres": "/usr/lib/postgresql/15/bin/postgres", "initdb": "/usr/lib/postgresql/15/bin/initdb",
			"psql": "/usr/lib/postgresql/15/bin/psql"}, ID: "postgres-id"},
}

// fakeJob is a request on its way to a plan, with a fake toolchain.
func fakeJob(t *testing.T, req Request) *job {
	t.Helper()
	e := New(nil, Options{})
	j, err := e.newJob(&req)
	if err != nil {
		t.Fatal(err)
	}
	if j.Language.Toolchain != nil {
		tool, ok := fakeTools[j.Language.Toolchain.Name]
		if !ok {
			t.Fatalf("there is no fake toolchain %q", j.Language.Toolchain.Name)
		}
		tool.Programs = maps.Clone(tool.Programs)
		j.Tool = &tool
	}
	j.Kit, j.WarmDir = "/opt/kit/sandbox-kit", "/var/cache/warm"
	return j
}

// TestPlans compares plans with golden files: testdata/plan/NAME.golden.
func TestPlans(t *testing.T) {
	plans := map[string]Request{
		"python": {Language: "python", Code: "print(1)"},
		"python-args": {Language: "py", Code: "print(1)", Args: []string{"a", "-b"},
			Env: map[string]string{"PYTHONUNBUFFERED": "", "X": "1"}},
		"python-tree":         {Files: tree("main.py", "", "util.py", "")},
		"python-package":      {Files: tree("pkg/__main__.py", "", "pkg/__init__.py", ""), Args: []string{"x"}},
		"python-package-cwd":  {Files: tree("pkg/__main__.py", "", "pkg/__init__.py", ""), Policy: Policy{Workdir: "/tmp"}},
		"python-tree-package": {Files: tree("__main__.py", "", "__init__.py", "")},
		"python-odd-package":  {Entry: "my-pkg", Files: tree("my-pkg/__main__.py", "", "x.py", "")},
		"python-forbid": {Files: tree("main.py", "", "a/util.py", "", "data.txt", ""),
			Options: LanguageOptions{ForbidImports: []string{"socket", "os.path"}}},
		"python-volume": {Language: "python", Code: "1",
			Policy: Policy{Volumes: []sandbox.Volume{{Source: "/srv/data", Target: sandbox.WorkspaceDir}}}},
		"python-own-path":   {Language: "python", Code: "1", Env: map[string]string{"PYTHONPATH": "/workspace/lib"}},
		"python-tmp-volume": {Language: "python", Code: "1", Policy: Policy{Volumes: []sandbox.Volume{{Source: "/srv/data", Target: "/tmp"}}}},
		"python-everything": {Language: "python", Code: "1", Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}, Inputs: tree("in.txt", "x"),
			Outputs: sandbox.Selection{Patterns: []string{"out/*", "/tmp/x"}},
			Policy:  Policy{Network: sandbox.NetworkLocalhost, Workdir: "/tmp", KillOnOutput: true, MergeOutput: true, Hostname: "box"},
			TTY:     &sandbox.TTY{Rows: 24, Cols: 80}},
		"python-module": {Options: LanguageOptions{Module: "json.tool"}, Args: []string{"x"}},
		"python-script": {Files: tree(
			"pyproject.toml", "[project]\nname = \"shop\"\n[project.scripts]\nshop = \"shop.cli:main\" # x\nother = 'a:b.c'\n",
			"src/shop/__init__.py", "", "src/shop/cli.py", "def main(): pass"), Args: []string{"x"}},
		"python-script-asked": {Entry: "other", Files: tree(
			"pyproject.toml", "[tool.poetry.scripts]\nshop = 'shop:main'\nother = 'shop:App.run'\n", "shop.py", "1")},
		"python-test":        {Options: LanguageOptions{Test: true}, Files: tree("a.py", "", "tests/test_a.py", "import unittest"), Args: []string{"-v"}},
		"python-pytest":      {Options: LanguageOptions{Test: true}, Entry: "tests", Files: tree("a.py", "", "tests/test_a.py", "import pytest")},
		"javascript-test":    {Options: LanguageOptions{Test: true}, Files: tree("a.js", "", "a.test.js", ""), Args: []string{"--test-reporter=tap"}},
		"javascript":         {Language: "js", Code: "1"},
		"javascript-small":   {Language: "js", Code: "1", Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}},
		"javascript-large":   {Language: "js", Code: "1", Limits: sandbox.Limits{Memory: 8 * sandbox.GiB}},
		"javascript-options": {Language: "js", Code: "1", Env: map[string]string{"NODE_OPTIONS": "--max_old_space_size=99"}},
		"javascript-package": {Files: tree("package.json", `{"main":"lib"}`, "lib/index.js", "", "index.js", ""), Args: []string{"x"}},
		"javascript-start": {Files: tree("package.json", `{"main":"a.js","scripts":{"start":"node src --port 1"}}`,
			"src/index.js", "1", "a.js", "1")},
		"javascript-start-shell": {Args: []string{"x"}, Files: append(
			tree("package.json", `{"scripts":{"start":"A=1 tool && node a.js"}}`, "a.js", "1"),
			File{Path: "node_modules/.bin/tool", Link: "../tool/cli.js"})},
		"javascript-start-absent": {Files: tree("package.json", `{"main":"a.js","scripts":{"start":"nodemon b.js"}}`, "a.js", "1", "b.js", "1")},
		"typescript-start": {Files: tree("package.json", `{"scripts":{"start":"tsx src/start.ts"}}`, "tsconfig.json", "{}",
			"src/start.ts", "1", "index.ts", "1")},
		"javascript-module":     {Files: tree("x.mjs", "")},
		"typescript":            {Language: "ts", Code: "1", Args: []string{"x"}},
		"typescript-jsx":        {Language: "tsx", Code: "1"},
		"typescript-tree":       {Files: tree("src/index.tsx", "", "tsconfig.json", "{}", "src/util.ts", "")},
		"typescript-packages":   {Files: tree("src/index.ts", "", "tsconfig.json", "{}", "node_modules/x/index.js", "")},
		"shell":                 {Language: "shell", Code: "ls", Args: []string{"x"}},
		"shell-sh":              {Language: "sh", Code: "ls"},
		"shell-zsh-by-shebang":  {Files: tree("x.sh", "#!/bin/zsh\n")},
		"shell-dash-by-shebang": {Files: tree("x", "#!/bin/dash\n")},
		"shell-by-extension":    {Files: tree("x.zsh", "")},
		"sql":                   {Language: "sqlite", Code: "select 1"},
		"sql-setup-and-db": {Files: tree("q.sql", "", "a/schema.sql", "", "shop.db", ""), Inputs: tree("data.sql", "", "x.csv", ""),
			Options: LanguageOptions{Setup: []string{"a/schema.sql", "data.sql"}}},
		"sql-two-dbs": {Files: tree("q.sql", "", "shop.db", "", "b.sqlite3", ""), Policy: Policy{Workdir: "/tmp"}},
		"postgres":    {Language: "psql", Code: "select 1"},
		"postgres-setup": {Language: "pg", Files: tree("q.sql", "", "schema.sql", ""),
			Options: LanguageOptions{Setup: []string{"schema.sql"}}},
	}
	for name, req := range plans {
		t.Run(name, func(t *testing.T) {
			plan, err := newPlan(fakeJob(t, req), bigMachine)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("plan", name+".golden"), plan)
		})
	}
}

// tree makes files of names and contents in turn.
func tree(pairs ...string) []File {
	var files []File
	for i := 0; i < len(pairs); i += 2 {
		files = append(files, File{Path: pairs[i], Data: []byte(pairs[i+1])})
	}
	return files
}

// golden compares a value, as JSON, with a file of testdata.
func golden(t *testing.T, name string, value any) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, b.Bytes()) {
		t.Errorf("the plan is not that of %s (go test -run %s -update writes it anew, to be read before it is committed):\n%s", file, t.Name(),
			differ(string(kept), b.String()))
	}
}

// differ lists the lines that only one of two texts has.
func differ(a, b string) string {
	var out strings.Builder
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range as {
		if !slices.Contains(bs, l) {
			out.WriteString("- " + l + "\n")
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			out.WriteString("+ " + l + "\n")
		}
	}
	return out.String()
}

// TestPlanIsPure makes a plan twice from one request: the same, and the request is as before.
func TestPlanIsPure(t *testing.T) {
	req := Request{Language: "python", Code: "1", Env: map[string]string{"A": "1"}, Args: make([]string, 1, 8)}
	first, err := newPlan(fakeJob(t, req), bigMachine)
	if err != nil {
		t.Fatal(err)
	}
	second, err := newPlan(fakeJob(t, req), bigMachine)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(first)
	b, _ := json.Marshal(second)
	if !bytes.Equal(a, b) || len(req.Env) != 1 {
		t.Errorf("%s\n%s\n%v", a, b, req.Env)
	}
}

// What the operator lowers is lowered before flags follow it, and a language's own lower default stays.
func TestLowered(t *testing.T) {
	lower := func(most sandbox.Size) func(run, compile *sandbox.Limits) []string {
		return func(run, compile *sandbox.Limits) []string {
			run.Memory, compile.Memory = min(run.Memory, most), min(compile.Memory, most)
			return []string{"lowered"}
		}
	}
	for name, test := range map[string]struct {
		most, run, compile sandbox.Size
	}{
		"below":          {64 * sandbox.MiB, 64 * sandbox.MiB, 64 * sandbox.MiB},
		"between":        {256 * sandbox.MiB, 128 * sandbox.MiB, 256 * sandbox.MiB},
		"above (normal)": {8 * sandbox.GiB, 128 * sandbox.MiB, 2 * sandbox.GiB},
	} {
		p, err := newPlan(fakeJob(t, Request{Language: "go", Code: "package main\nfunc main() {}", Lower: lower(test.most)}), bigMachine)
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec.Limits.Memory != test.run || p.Phases[0].Process.Limits.Memory != test.compile || !slices.Contains(p.Notes, "lowered") {
			t.Errorf("%s: %s, %s, %q", name, p.Spec.Limits.Memory, p.Phases[0].Process.Limits.Memory, p.Notes)
		}
	}
	heap := func(most sandbox.Size) string {
		p, err := newPlan(fakeJob(t, Request{Language: "js", Code: "1", Lower: lower(most)}), bigMachine)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(p.Phases[0].Process.Args, " ")
	}
	if small, large := heap(64*sandbox.MiB), heap(8*sandbox.GiB); small == large {
		t.Errorf("%s either way", small)
	}
}
