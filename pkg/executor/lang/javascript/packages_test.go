package javascript

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// newJob is a job on a machine with npm.
func newJob(o language.Options, pairs ...string) *language.Job {
	tool := &toolchain.Toolchain{
		Path: "/usr/bin/node", Found: "/bin/node", Version: "20.20.2", Programs: map[string]string{"npm": "/npm-cli.js"},
	}
	j := &language.Job{Tool: tool, Language: &Language}
	j.Request.Options, j.Plan = o, &language.Plan{}
	for i := 0; i < len(pairs); i += 2 {
		j.Files = append(j.Files, language.File{Path: pairs[i], Data: []byte(pairs[i+1])})
	}
	return j
}

func TestParseSpec(t *testing.T) {
	for text, want := range map[string]spec{
		"lodash": {"lodash", ""}, "lodash@4.17.21": {"lodash", "4.17.21"}, "@a/b": {"@a/b", ""},
		" @a/b@^1.0 || >=2 <3 ": {"@a/b", "^1.0 || >=2 <3"},
		"x@next":                {"x", "next"}, "JSONStream@1.x": {"JSONStream", "1.x"}, "a@1.0.0-rc.1+b": {"a", "1.0.0-rc.1+b"},
		"lodash.get@~4": {"lodash.get", "~4"}, "a@1\n": {"a", "1"},
	} {
		if got, err := parseSpec(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "@", "@a", "@a/", "@/b", "a/b", "./a", "../a", "/a", "~/a", "a@", "a@b@c", "a@file:..", "a@npm:b", "npm:a",
		"a@https://x/y.tgz", "git+ssh://x/y", "a@github:x/y", "a@x/y", "a@.", "a@..", "a@y.tgz", "a@y.TAR.gz", "a b", ".a", "_a", "-g", "a@$x",
		"a\x00", "ä", "node_modules", "@a/node_modules",
		"a\\b", "a@" + strings.Repeat("1", 300), strings.Repeat("a", 300), "@-a/b", "a@C:x", "constructor@{index}",
	} {
		if got, err := parseSpec(text); err == nil || !strings.Contains(err.Error(), "write it like") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"lodash", "@a/b@^1 || 2", "a@npm:b", "@@", "a@", "a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseSpec(text)
		if err != nil {
			return
		}
		again := p.name
		if p.wanted != "" {
			again += "@" + p.wanted
		}
		if q, err := parseSpec(again); err != nil || q != p {
			t.Errorf("%q is %+v, and then %+v, %v", text, p, q, err)
		}
		if strings.ContainsAny(p.wanted, `:/\`) || strings.Contains(p.name, "..") && strings.HasPrefix(p.name, ".") {
			t.Errorf("%q is %+v", text, p)
		}
	})
}

func TestFindImports(t *testing.T) {
	for source, want := range map[string][]string{
		`import a from "npm:a"`:                         {"npm:a"},
		`import "npm:a"; import'npm:b'`:                 {"npm:a", "npm:b"},
		`import a, { b as c } from 'npm:@s/a@1/x.js';`:  {"npm:@s/a@1/x.js"},
		`export * from "npm:a"`:                         {"npm:a"},
		`import type { T } from "npm:a"`:                {"npm:a"},
		"await import(\n  'npm:a' )":                    {"npm:a"},
		`require ( "npm:a" ).b`:                         {"npm:a"},
		`require.resolve("npm:a")`:                      {"npm:a"},
		`import.meta.resolve("npm:a")`:                  {"npm:a"},
		"`${require('npm:a')} ${`${import('npm:b')}`}`": {"npm:a", "npm:b"},
		"`${{}} npm:a`; import 'npm:b'":                 {"npm:b"},
		`x = /["'` + "`" + `]/; import "npm:a"`:         {"npm:a"},
		`x = a / 2; import "npm:a" // "`:                {"npm:a"},
		`x = a[1] / 2 / "npm:x"; import "npm:a"`:        {"npm:a"},
		`return /[/"]/.test(x) || import("npm:a")`:      {"npm:a"},
		"<p>Don't</p>;\nimport \"npm:a\"":               {"npm:a"},
		"#!/usr/bin/env node '\nimport 'npm:a'":         {"npm:a"},
		"'a\\\nb'; import 'npm:a'":                      {"npm:a"},
		`// import "npm:a"`:                             nil,
		"/* import 'npm:a' */":                          nil,
		"/* import 'npm:a'":                             nil,
		`"import 'npm:a'"`:                              nil,
		"`import 'npm:a'`":                              nil,
		`x = "npm:a"`:                                   nil,
		`f("npm:a")`:                                    nil,
		`Promise.resolve("npm:a")`:                      nil,
		`x.require("npm:a")`:                            nil,
		`import "npm:a`:                                 nil,
		`import "npm:\x61"`:                             nil,
		"import 'npm:a\n'":                              nil,
		`import "node:fs"`:                              nil,
	} {
		var got []string
		for _, i := range findImports([]byte(source)) {
			got = append(got, i.text)
			if source[i.from:i.to] != i.text {
				t.Errorf("%s: %+v", source, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", source, got)
		}
	}
}

func FuzzFindImports(f *testing.F) {
	for _, s := range []string{`import "npm:a"`, "`${{}} npm:a`", `/["npm:`, "#!npm:", `'npm:\`, "`npm:${", "`npm:\\", "/*npm:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		j := newJob(language.Options{}, "main.js", source)
		before := findImports([]byte(source))
		if err := plainImports(j); err != nil {
			t.Fatal(err)
		}
		made := string(j.Files[0].Data)
		if len(made) != len(source) || strings.Count(made, "\n") != strings.Count(source, "\n") {
			t.Errorf("%q became %q", source, made)
		}
		for _, i := range before {
			if _, plain, err := i.parse(); err == nil && made[i.from:i.from+len(plain)] != plain {
				t.Errorf("%q became %q", source, made)
			}
		}
	})
}

func TestPlainImports(t *testing.T) {
	const source = `import a from "npm:a@1.2"; const b = require('npm:@s/b@^2/x/y.js'), c = import("npm:c"); f("npm:d"); import "npm:!";`
	j := newJob(language.Options{}, "main.ts", source, "node_modules/a/index.js", source, "notes.md", source)
	given := slices.Clone(j.Files)
	if err := plainImports(j); err != nil {
		t.Fatal(err)
	}
	const want = `import a from "a"        ; const b = require('@s/b/x/y.js'       ), c = import("c"    ); f("npm:d"); import "npm:!";`
	if got := string(j.Files[0].Data); got != want {
		t.Errorf("%s", got)
	}
	if string(j.Files[1].Data) != source || string(j.Files[2].Data) != source || string(given[0].Data) != source {
		t.Error("another file has changed, or that of the request")
	}
}

const someLock = `{"lockfileVersion": 3, "packages": {"": {"dependencies": {"a": "^1"}},
	"node_modules/a": {"version": "1.0.0", "resolved": "https://registry.npmjs.org/a/-/a-1.0.0.tgz", "integrity": "sha512-AAAA"},
	"node_modules/a/node_modules/@s/b": {"version": "2.0.0", "resolved": "https://example.com:444/@s/b/-/b-2.0.0.tgz",
		"integrity": "sha1-AAAA"},
	"node_modules/c": {"name": "d", "version": "3.0.0", "resolved": "https://registry.npmjs.org/d/-/d-3.0.0.tgz", "integrity": "sha256-AAAA"},
	"node_modules/e": {"version": "1.0.0", "inBundle": true}}, "dependencies": {"a": {}}}`

func TestPackages(t *testing.T) {
	const project = `{"name": "x", "scripts": {"preinstall": "evil"}, "dependencies": {"a": "^1", "e": ""},
		"devDependencies": {"t": "2", "z": "npm:y@1"}}`
	with := func(pairs ...string) []string { return append([]string{packageFile, project}, pairs...) }
	install, test := language.Options{Install: true}, language.Options{Install: true, Test: true}
	for name, c := range map[string]struct {
		o        language.Options
		files    []string
		requires string // separated by blanks
		command  string
		locked   bool
	}{
		"nothing": {o: install, files: []string{"main.js", "1"}},
		"not asked": {o: language.Options{Deps: []string{"b"}}, files: with("main.js", `import "npm:c"`), requires: "b",
			command: "install"},
		"project": {o: install, files: with(), requires: "a@^1 e@*", command: "install"},
		"tests":   {o: test, files: with(), requires: "a@^1 e@* t@2 z@npm:y@1", command: "install"},
		"lock":    {o: install, files: with(lockFile, someLock), requires: "a@^1 e@*", command: "ci", locked: true},
		"shrinkwrap": {o: install, files: with("npm-shrinkwrap.json", someLock), requires: "a@^1 e@*", command: "ci",
			locked: true},
		"a lock of another": {o: install, files: with(lockFile, someLock, "x.js", "import 'npm:n@1'"),
			requires: "a@^1 e@* n@1", command: "install"},
		"declared twice": {o: install, files: with(lockFile, someLock, "x.js", "import 'npm:a'"),
			requires: "a@^1 e@*", command: "ci", locked: true},
		"without a digest": {o: install, files: with(lockFile, strings.Replace(someLock, `"sha1-AAAA"`, `""`, 1)),
			requires: "a@^1 e@*", command: "ci"},
		"imports": {o: install, files: []string{"a.js", `import "npm:a"; import "npm:b@2/x"`, "b.ts", `import "npm:a@1"; import "npm:b"`},
			requires: "a@1 b@2", command: "install"},
	} {
		j := newJob(c.o, c.files...)
		p, err := Packages(j)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p == nil {
			if c.requires != "" {
				t.Errorf("%s: nothing", name)
			}
			continue
		}
		if got := strings.Join(p.Requirements, " "); got != c.requires || p.Steps[0].Args[6] != c.command || p.Locked != c.locked {
			t.Errorf("%s: %s, %q, %v", name, got, p.Steps[0].Args, p.Locked)
		}
		for _, f := range p.Files {
			if bytes.Contains(f.Data, []byte("evil")) || bytes.Contains(f.Data, []byte("//registry.npmjs.org")) {
				t.Errorf("%s: %s", name, f.Data)
			}
		}
		for _, s := range p.Steps {
			if slices.Contains(s.Args, "--registry="+language.Index) == s.Offline || !s.Offline && !slices.Contains(s.Args, "--ignore-scripts") {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

func TestPackagesRefused(t *testing.T) {
	project := func(text string) []string { return []string{packageFile, text} }
	locked := func(text string) []string { return []string{packageFile, `{"dependencies":{"a":"1"}}`, lockFile, text} }
	for said, c := range map[string]struct {
		o     language.Options
		files []string
	}{
		`"a@file:x" names an address`:   {o: language.Options{Deps: []string{"a@file:x"}}},
		"a@2 contradicts a@1 of --deps": {o: language.Options{Deps: []string{"a@1", "a@2"}}},
		"a@2 contradicts a@1 of package.json": {language.Options{Install: true, Deps: []string{"a@2"}},
			project(`{"dependencies":{"a":"1"}}`)},
		`main.js, line 2: "!" is not the name`:                 {files: []string{"main.js", "\nimport 'npm:!'"}},
		"main.js, line 2: a@2 contradicts a@1 of main.js, li":  {files: []string{"main.js", "import 'npm:a@1'\nimport 'npm:a@2'"}},
		`package.json: dependencies: "b": names an address`:    {files: project(`{"dependencies":{"b":"git+https://x/y"}}`)},
		`package.json: devDependencies: "b": names an address`: {files: project(`{"devDependencies":{"b":"link:../x"}}`)},
		`package.json: optionalDependencies: "b": "x/y"`:       {files: project(`{"optionalDependencies":{"b":"npm:x/y"}}`)},
		`package.json: peerDependencies: "../b": is not the`:   {files: project(`{"peerDependencies":{"../b":"1"}}`)},
		`package.json: overrides: "b": "c": names an addre`:    {files: project(`{"overrides":{"b":{"c":"file:x"}}}`)},
		`package.json: overrides: "c": it is no version`:       {files: project(`{"overrides":{"c":1}}`)},
		"package.json: workspaces are not installed":           {files: project(`{"workspaces":["a"]}`)},
		"package.json: unexpected end of JSON":                 {files: project(`{`)},
		"package-lock.json: it is of an old form":              {files: locked(`{"lockfileVersion":1,"dependencies":{}}`)},
		`package-lock.json: "node_modules/a" is not of the r`:  {files: locked(`{"packages":{"node_modules/a":{"resolved":"git+ssh://x"}}}`)},
		`package-lock.json: "node_modules/b" is not of the r`:  {files: locked(`{"packages":{"node_modules/b":{"link":true}}}`)},
		`package-lock.json: "node_modules/../c" is not of th`:  {files: locked(`{"packages":{"node_modules/../c":{}}}`)},
		`package-lock.json: "lib/d" is not of the registry`:    {files: locked(`{"packages":{"lib/d":{}}}`)},
		"package-lock.json: json: ":                            {files: locked(`[]`)},
		"it is not a lock of sandbox-run":                      {o: language.Options{Lock: "x"}},
		`it is a lock of "python", and not of npm`: {o: language.Options{Lock: `{"language":"python","language_version":"","platform":"",
			"packages":[]}`}},
	} {
		if len(c.o.Deps) == 0 && c.o.Lock == "" {
			c.o.Install = true
		}
		if _, err := Packages(newJob(c.o, c.files...)); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", said, err)
		}
	}
	j := newJob(language.Options{Deps: []string{"a"}})
	j.Tool.Programs = nil
	_, err := Packages(j)
	if err == nil || sandbox.Describe(err).Hint == "" || !strings.Contains(err.Error(), "there is none beside /bin/node") {
		t.Errorf("without npm: %v", err)
	}
}

func TestParseLock(t *testing.T) {
	l, err := parseLock([]byte(someLock))
	if err != nil || !l.exact || string(l.original) != someLock {
		t.Fatalf("%+v, %v", l, err)
	}
	var doc struct {
		Packages map[string]entry `json:"packages"`
		Old      any              `json:"dependencies"`
	}
	if err := json.Unmarshal(l.text, &doc); err != nil || doc.Old != nil {
		t.Fatal(err, doc.Old)
	}
	for dir, want := range map[string]string{
		"node_modules/a": "{index}a/-/a-1.0.0.tgz", "node_modules/c": "{index}d/-/d-3.0.0.tgz",
		"node_modules/a/node_modules/@s/b": "{registry}/https/example.com~444/@s/b/-/b-2.0.0.tgz",
	} {
		if got := doc.Packages[dir].Resolved; got != want {
			t.Errorf("%s: %q", dir, got)
		}
	}
	const installed = `{"packages":{"node_modules/a":{"version":"1.0.0"},
		"node_modules/a/node_modules/@s/b":{"version":"2.0.0"},"node_modules/c":{"version":"3.0.0"}}}`
	made, err := readInstalled([]byte(installed), []byte(someLock), []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	want := []language.Package{
		{Name: "@s/b", Version: "2.0.0", Hash: "sha1:000000", URL: "https://example.com:444/@s/b/-/b-2.0.0.tgz"},
		{Name: "a", Version: "1.0.0", Hash: "sha512:000000", URL: "https://registry.npmjs.org/a/-/a-1.0.0.tgz"},
		{Name: "d", Version: "3.0.0", Hash: "sha256:000000", URL: "https://registry.npmjs.org/d/-/d-3.0.0.tgz"},
	}
	if got := language.SortPackages(made.Packages); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzParseLock(f *testing.F) {
	for _, s := range []string{someLock, "{}", `{"packages":{"node_modules/a":null}}`, `{"packages":{"":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLock(text)
		if err != nil {
			return
		}
		// Its addresses are now those of the installing sandbox.
		inside := strings.NewReplacer(language.Index, "https://x/", language.Registry, "https://x").Replace(string(l.text))
		if _, err := parseLock([]byte(inside)); err != nil {
			t.Errorf("%s: %v", l.text, err)
		}
	})
}
