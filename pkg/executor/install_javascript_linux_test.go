package executor

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

type fields = map[string]any

// npmPackages are some packages, with what Node can find in them.
func npmPackages() []testregistry.NPMPackage {
	return []testregistry.NPMPackage{
		{Name: "words", Version: "0.9.0", Files: map[string]string{"index.js": "exports.WORLD = 'old'\n"}},
		{Name: "words", Version: "1.2.0", Files: map[string]string{"index.js": "exports.WORLD = 'world'\n"}},
		{Name: "words", Version: "2.0.0-rc.1", Tag: "next", Files: map[string]string{"index.js": "exports.WORLD = 'next'\n"}},
		{Name: "greet", Version: "1.0.0", Requires: map[string]string{"words": "^1.0.0"}, Files: map[string]string{
			"index.js": "const { WORLD } = require('words');\nexports.hello = () => 'hello ' + WORLD;\n", "package.json.txt": "x",
		}},
		{Name: "@scope/both", Version: "3.1.4", Fields: fields{"type": "module", "exports": fields{
			".": fields{"import": "./index.js", "require": "./index.cjs"}, "./sub": "./lib/sub.js",
		}}, Files: map[string]string{
			"index.js": "export default 'imported';\n", "index.cjs": "module.exports = 'required';\n", "lib/sub.js": "export const sub = 'sub';\n",
			"hidden.js": "export const hidden = 1;\n",
		}},
		{Name: "speak", Version: "1.0.0", Fields: fields{"bin": fields{"speak": "cli.js"}},
			Files: map[string]string{"cli.js": "#!/usr/bin/env node\nconsole.log('says', ...process.argv.slice(2));\n"}},
	}
}

func npmEngine(t *testing.T, packages ...testregistry.NPMPackage) (*Executor, *testregistry.Server) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm: scripts/deps.sh test installs it")
	}
	s := testregistry.New(t, testregistry.NPM(packages...))
	return packageEngine(t, map[string]string{"npm": s.URL}), s
}

// TestJavaScriptPackages: what is declared is installed once, and Node finds it in all ways.
func TestJavaScriptPackages(t *testing.T) {
	e, s := npmEngine(t, npmPackages()...)
	const code = "console.log(require('greet').hello())"
	req := Request{Language: "javascript", Code: code, Options: LanguageOptions{Deps: []string{"greet@^1"}}}
	first := expectOn(t, e, req, want{stdout: "hello world\n", silent: true})
	d := first.Deps
	if d == nil || d.Cached || len(d.Packages) != 2 || d.Packages[1].Name != "words" || d.Packages[1].Version != "1.2.0" ||
		!strings.HasPrefix(d.Packages[1].URL, s.URL+"/words/-/") || !strings.HasPrefix(d.Packages[1].Hash, "sha512:") {
		t.Fatalf("%+v", d)
	}
	asked := len(s.Requests())
	if d := expectOn(t, e, req, want{stdout: "hello world\n"}).Deps; !d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) != asked {
		t.Errorf("%+v, %q", d, s.Requests()[asked:])
	}
	// Equal installations have equal layers: nothing of the registry's address, which changes, is in them.
	req.Options.DepsRefresh = true
	if d := expectOn(t, e, req, want{stdout: "hello world\n"}).Deps; d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) == asked {
		t.Errorf("%+v after %+v", d, first.Deps)
	}
	req.Options.DepsRefresh = false
	for _, text := range lockOf(t, e, first).Files {
		if strings.Contains(text, deps.ProxyName) {
			t.Errorf("%s", text)
		}
	}
	plan, release, err := e.plan(t.Context(), &req)
	if err != nil || plan.layer == nil {
		t.Fatal(plan, err)
	}
	defer release()
	if err := filepath.WalkDir(plan.layer.Dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Base(name) == "lock.json" {
			return err
		}
		text, err := os.ReadFile(name)
		if strings.Contains(string(text), deps.ProxyName) || strings.Contains(string(text), s.URL) || entry.Name() == ".package-lock.json" {
			t.Errorf("%s is in the layer: %s", name, text)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	// A lock installs the same again, whatever is newer; it is as good for TypeScript.
	lock := req
	lock.Options = LanguageOptions{Lock: lockText(t, e, first), Frozen: true}
	if d := expectOn(t, e, lock, want{stdout: "hello world\n"}).Deps; d.Cached || !slices.Equal(d.Packages, first.Deps.Packages) {
		t.Errorf("%+v", d)
	}
	lock.Language, lock.Code = "typescript", "import { hello } from 'greet'; console.log(hello() as string)"
	expectOn(t, e, lock, want{stdout: "hello world\n"})
	frozen := req
	frozen.Options.Frozen = true
	if _, err := e.Execute(t.Context(), frozen); err == nil || !strings.Contains(err.Error(), "no lock") {
		t.Errorf("frozen, without a lock: %v", err)
	}
}

func TestNodeResolution(t *testing.T) {
	e, _ := npmEngine(t, npmPackages()...)
	options := LanguageOptions{Deps: []string{"greet", "@scope/both@3", "words@next", "speak"}}
	const all = "'imported' 'sub' ERR_PACKAGE_PATH_NOT_EXPORTED required next\n"
	const module = "import { createRequire } from 'node:module';\nimport both from '@scope/both';\nimport words from 'words';\n" +
		"const { sub } = await import('@scope/both/sub');\nlet why;\nconst name = '@scope/both/hidden';\n" +
		"try { await import(name) } catch (e) { why = e.code }\n" +
		"console.log('%o %o %s', both, sub, why, createRequire('/workspace/x.js')('@scope/both'), words.WORLD);\n"
	for name, req := range map[string]Request{
		"module":     {Language: "javascript", Name: "main.mjs", Code: module},
		"TypeScript": {Language: "typescript", Code: module + "export type T = string;\n"},
		"project": {Language: "typescript", Files: tree("package.json", `{"type":"module"}`, "src/index.ts", module,
			"node_modules/x/index.js", "")},
		"a volume": {Language: "javascript", Name: "main.mjs", Code: module,
			Policy: Policy{Volumes: []sandbox.Volume{{Source: t.TempDir(), Target: "/workspace"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			req.Options = options
			expectOn(t, e, req, want{stdout: all, silent: true})
		})
	}
	expectOn(t, e, Request{Language: "javascript", Options: options, Files: tree(
		// The project's own packages come first, and find those of the layer.
		"main.js", "console.log(require('words').WORLD, require('own'))", "node_modules/words/index.js", "exports.WORLD = 'own'",
		"node_modules/own/index.js", "module.exports = require('@scope/both')",
	)}, want{stdout: "own required\n"})
	expectOn(t, e, Request{Language: "javascript", Options: options, Entry: "package.json", Args: []string{"more"},
		Files: tree("package.json", `{"scripts":{"start":"speak up"}}`)}, want{stdout: "says up more\n"})
	expectOn(t, e, Request{Language: "javascript", Options: options,
		Code: "console.log(require('words').WORLD);\n" +
			"try { require('fs').writeFileSync('/node_modules/x', '') } catch (e) { console.log(e.code) }"},
		want{has: []string{"next\n", "EROFS\n"}})
}

// TestNPMImports: an import that names its package is installed and found, in JavaScript and TypeScript, and traces keep their positions.
func TestNPMImports(t *testing.T) {
	e, _ := npmEngine(t, npmPackages()...)
	const module = "import both from \"npm:@scope/both@^3\"; import { sub } from 'npm:@scope/both@^3/sub';\n" +
		"const words = await import('npm:words@1.2.0'); console.log(both, sub, words.default.WORLD, " +
		"new Error('x').stack.split('\\n')[1].match(/:\\d+:\\d+/)[0]);\n"
	const out = "imported sub world :2:92\n"
	for language, req := range map[string]Request{
		"javascript": {Language: "javascript", Name: "main.mjs", Code: module},
		"typescript": {Language: "typescript", Files: tree("main.ts", "import './lib/x';", "lib/x.ts", module+"export type T = string;")},
	} {
		t.Run(language, func(t *testing.T) {
			r := expectOn(t, e, req, want{verdict: map[string]sandbox.Verdict{"javascript": nonzero, "typescript": noSyntax}[language], exit: 1,
				said: []string{"npm:"}})
			if !slices.ContainsFunc(r.Notes, func(n string) bool {
				return strings.HasPrefix(n, "hint: the program declares packages (@scope/both@^3")
			}) {
				t.Errorf("%q", r.Notes)
			}
			req.Options.Install = true
			if r := expectOn(t, e, req, want{stdout: out, silent: true}); len(r.Deps.Packages) != 2 {
				t.Errorf("%+v", r.Deps)
			}
		})
	}
	expectOn(t, e, Request{Language: "javascript", Code: "console.log(require('npm:words').WORLD)",
		Options: LanguageOptions{Deps: []string{"words@0.9.0"}}}, want{stdout: "old\n"})
}

// TestNPMProjects: package.json and its lock, and tests with what only they need.
func TestNPMProjects(t *testing.T) {
	e, s := npmEngine(t, npmPackages()...)
	const project = `{"scripts": {"preinstall": "exit 1"}, "dependencies": {"greet": "1"}, "devDependencies": {"words": "0.9.0"}}`
	const code, test = "exports.hello = require('greet').hello\nif (require.main === module) console.log(exports.hello())\n",
		"require('node:test').test(require('words').WORLD, () => require('assert').equal(require('../index.js').hello(), 'hello world'))\n"
	files := tree("package.json", project, "index.js", code, "test/x.test.js", test)
	run := Request{Language: "javascript", Files: files, Options: LanguageOptions{Install: true}}
	if r := expectOn(t, e, run, want{stdout: "hello world\n"}); len(r.Deps.Packages) != 2 {
		t.Errorf("%+v", r.Deps)
	}
	run.Options.Test = true
	tested := expectOn(t, e, run, want{has: []string{"ok 1 - old", "# pass 1"}})
	if len(tested.Deps.Packages) != 3 { // words, in two versions
		t.Errorf("%+v", tested.Deps)
	}
	// The project's own lock, as npm writes it: with addresses of the public registry, which stands for the registry, or with its own.
	native := lockOf(t, e, tested).Files["package-lock.json"]
	locked := run
	locked.Options.Frozen = true
	for _, host := range []string{"https://registry.npmjs.org", s.URL} {
		locked.Options.Test, locked.Files = true, append(tree("package-lock.json", strings.ReplaceAll(native, s.URL, host)), files...)
		d := expectOn(t, e, locked, want{has: []string{"ok 1 - old"}}).Deps
		if len(d.Packages) != 3 || !strings.HasPrefix(d.Packages[0].URL, s.URL) {
			t.Errorf("%+v", d)
		}
		locked.Options.Test = false
		if d := expectOn(t, e, locked, want{stdout: "hello world\n"}).Deps; len(d.Packages) != 2 {
			t.Errorf("%+v", d)
		}
	}
	locked.Files[0].Data = []byte(strings.ReplaceAll(native, s.URL, "https://npm.example.com"))
	r := expectOn(t, e, locked, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{"403"}})
	if !strings.Contains(strings.Join(r.Notes, "\n"), "the host npm.example.com is none of the registry's") {
		t.Errorf("%q", r.Notes)
	}
	// A lock that does not fit the project, and one that does not fit the registry.
	other := run
	other.Files = append(tree("package-lock.json", native, "package.json", strings.Replace(project, "0.9.0", "1.2.0", 1)), files[1:]...)
	expectOn(t, e, other, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{"npm ci", "words@0.9.0"}})
	_, after, _ := strings.Cut(native, "sha512-")
	other.Files = append(tree("package-lock.json", strings.Replace(native, after[:86], strings.Repeat("A", 86), 1)), files...)
	expectOn(t, e, other, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{"EINTEGRITY"}})
}

// TestHostileNPM: packages that are not what the index says, and packages that try to leave their place.
func TestHostileNPM(t *testing.T) {
	const script = `const net = require("net"), fs = require("fs"); let said = "ran";
for (const file of ["/node_modules/x", "/etc/x", "/opt/sandbox-run/x", "../../../outside.txt"])
  try { fs.writeFileSync(file, ""); said += " wrote " + file } catch {}
for (const [host, port] of [["127.0.0.1", PORT], ["registry.sandbox-run.internal", 80], ["192.0.2.1", 80]]) {
  const s = net.connect(port, host, () => { fs.appendFileSync("out.txt", " connected to " + host); s.end() }).on("error", () => {});
}
fs.writeFileSync("out.txt", said);`
	var port string
	packages := []testregistry.NPMPackage{
		{Name: "wrong", Version: "1.0.0", Integrity: "sha512-" + base64.StdEncoding.EncodeToString(make([]byte, 64))},
		{Name: "weak", Version: "1.0.0", Archive: []byte("no archive")},
		{Name: "cut", Version: "1.0.0", Cut: 40, Files: map[string]string{"x": "x"}},
		{Name: "slow", Version: "1.0.0", Delay: 3 * time.Second, Files: map[string]string{"index.js": "module.exports = 'slow'"}},
		{Name: "links", Version: "1.0.0", Files: map[string]string{"index.js": "module.exports = 'links'"}, Entries: []testregistry.NPMEntry{
			{Name: "package/passwd", Link: "/etc/passwd"}, {Name: "package/up", Link: "../../.."},
			{Name: "package/hard", Link: "/etc/passwd", Hard: true},
			{Name: "package/../../../evil.txt", Text: "evil"}, {Name: "/package/../../evil.txt", Text: "evil"},
			{Name: "package/up/evil.txt", Text: "evil"},
		}},
		{Name: "git", Version: "1.0.0", Requires: map[string]string{"x": "git+http://192.0.2.1/x.git"}},
		{Name: "elsewhere", Version: "1.0.0", Requires: map[string]string{"x": "http://192.0.2.1/x.tgz"}},
		{Name: "upward", Version: "1.0.0", Fields: fields{"bin": fields{"../../../node": "x.js", "node": "../../../x.js"}}},
	}
	add := func(p testregistry.NPMPackage) { packages = append(packages, p) }
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testregistry.NPM(packages...).ServeHTTP(w, r)
	}))
	_, port, _ = strings.Cut(s.Host(), ":")
	add(testregistry.NPMPackage{Name: "script", Version: "1.0.0", Fields: fields{"scripts": map[string]string{"preinstall": "node x.js"}},
		Files: map[string]string{"x.js": strings.ReplaceAll(script, "PORT", port), "out.txt": "none",
			"index.js": "module.exports = require('fs').readFileSync(__dirname + '/out.txt', 'utf8')"}})
	e := packageEngine(t, map[string]string{"npm": s.URL})
	for name, said := range map[string]string{
		"wrong": "EINTEGRITY", "weak": "TAR_BAD_ARCHIVE", "cut": "npm error", "git": "npm error", "elsewhere": "npm error",
		"absent": "404",
	} {
		t.Run(name, func(t *testing.T) {
			expectOn(t, e, Request{Language: "javascript", Code: "1", Options: LanguageOptions{Deps: []string{name}}},
				want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{said}})
		})
	}
	if list, err := e.opts.Layers.List(); err != nil || len(list) != 0 {
		t.Errorf("layers of failed installations: %+v, %v", list, err)
	}
	expectOn(t, e, Request{Language: "javascript", Code: "console.log(require('slow'))", Options: LanguageOptions{Deps: []string{"slow"}}},
		want{stdout: "slow\n"})
	expectOn(t, e, Request{Language: "javascript", Options: LanguageOptions{Deps: []string{"links", "upward"}},
		Code: "console.log(require('links'));\n" +
			"require('child_process').execSync(\"find /node_modules -type l -o -name 'evil*' -o -name passwd\", {stdio: 'inherit'})"},
		want{stdout: "links\n/node_modules/links/up/evil.txt\n"})
	req := Request{Language: "javascript", Code: "console.log(require('script'))", Options: LanguageOptions{Deps: []string{"script"}}}
	expectOn(t, e, req, want{stdout: "none\n"})
	req.Options.AllowInstallScripts = true
	expectOn(t, e, req, want{stdout: "ran\n"})
}

// TestNativeAddon: an addon that its install script builds, and that Node loads from the layer.
func TestNativeAddon(t *testing.T) {
	node, err := exec.LookPath("node")
	if err == nil {
		node, err = filepath.EvalSymlinks(node)
	}
	headers := filepath.Join(filepath.Dir(filepath.Dir(node)), "include/node/node_api.h")
	if _, missing := os.Stat(headers); err != nil || missing != nil {
		t.Skip("needs the headers of Node")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs a C compiler")
	}
	e, _ := npmEngine(t, testregistry.NPMPackage{
		Name: "addon", Version: "1.0.0", Files: map[string]string{
			"index.js": "module.exports = require('./addon.node')\n",
			"addon.c": "#include <node_api.h>\nnapi_value napi_register_module_v1(napi_env env, napi_value exports) {\n" +
				"  napi_value n; napi_create_int32(env, 42, &n); return n;\n}\n",
		},
		Fields: fields{"scripts": map[string]string{"install": `cc -shared -fPIC -I"$npm_config_nodedir/include/node" -o addon.node addon.c`}},
	})
	req := Request{Code: "console.log(require('addon'))", Options: LanguageOptions{Deps: []string{"addon"}, AllowInstallScripts: true}}
	for _, language := range []string{"javascript", "typescript"} {
		req.Language = language
		expectOn(t, e, req, want{stdout: "42\n"})
	}
	req.Options.AllowInstallScripts = false
	expectOn(t, e, req, want{verdict: nonzero, said: []string{"addon.node"}})
}

// realRegistries is the variable with which tests reach public registries, as the user's registries.yaml configures them.
const realRegistries = "SANDBOX_RUN_TEST_REAL_REGISTRIES"

// TestRealNPM installs packages of the public registry.
func TestRealNPM(t *testing.T) {
	if os.Getenv(realRegistries) == "" {
		t.Skip("reaches the public registry; set " + realRegistries)
	}
	e := packageEngine(t, nil)
	o := e.opts
	o.RegistriesFile = deps.RegistriesFile()
	o.Registries = registry.Local{File: o.RegistriesFile}
	testNPM(t, New(e.manager, o), "lodash@4.17.21", "express@4", "eslint@8")
}

// TestNPMOffline is TestRealNPM with packages of the test's.
func TestNPMOffline(t *testing.T) {
	packages := []testregistry.NPMPackage{
		{Name: "lodash", Version: "4.17.21", Files: map[string]string{
			"index.js": "exports.chunk = (a, n) => a.length ? [a.slice(0, n), ...exports.chunk(a.slice(n), n)] : [];\n" +
				"exports.VERSION = '4.17.21';\n",
		}, Fields: fields{"main": "index.js"}},
		{Name: "express", Version: "4.0.0", Files: map[string]string{
			"index.js": "module.exports = () => {\n  const app = {};\n  app.get = (path, f) => { app.f = f; };\n" +
				"  app.listen = (port, host, done) => require('http').createServer((q, r) => {\n" +
				"    r.send = (s) => r.end(s);\n    app.f(q, r);\n  }).listen(port, host, done);\n" +
				"  return app;\n};\n",
		}},
	}
	requires := map[string]string{}
	for i := range 100 {
		name := fmt.Sprintf("part-%d", i)
		if i%2 == 1 {
			name = "@part/" + name
		}
		requires[name] = "^1.0.0"
		packages = append(packages, testregistry.NPMPackage{Name: name, Version: "1.0.0",
			Files: map[string]string{"index.js": "module.exports = 1"}})
	}
	e, _ := npmEngine(t, append(packages, testregistry.NPMPackage{Name: "eslint", Version: "8.0.0", Requires: requires,
		Files: map[string]string{"index.js": "module.exports = { ESLint: { version: '8.0.0' } }"}})...)
	testNPM(t, e, "lodash@4.17.21", "express@4", "eslint@8")
}

func testNPM(t *testing.T, e *Executor, lodash, express, large string) {
	t.Helper()
	for language, code := range map[string]string{
		"javascript": "const _ = require('lodash'); console.log(_.chunk([1, 2, 3], 2).length, _.VERSION)",
		"typescript": "import _ from 'npm:lodash'; const n: number = _.chunk([1, 2, 3], 2).length; console.log(n, _.VERSION)",
	} {
		expectOn(t, e, Request{Language: language, Code: code, Options: LanguageOptions{Deps: []string{lodash}}}, want{stdout: "2 4.17.21\n"})
	}
	const server = `const app = require("express")();
app.get("/", (q, r) => r.send("answered"));
const s = app.listen(0, "127.0.0.1", async () => {
  console.log(await (await fetch("http://127.0.0.1:" + s.address().port)).text());
  process.exit();
});`
	expectOn(t, e, Request{Language: "javascript", Code: server, Options: LanguageOptions{Deps: []string{express}},
		Policy: Policy{Network: sandbox.NetworkLocalhost}}, want{stdout: "answered\n"})
	r := expectOn(t, e, Request{Language: "javascript", Code: "console.log(require('eslint').ESLint.version[0])",
		Options: LanguageOptions{Deps: []string{large}}}, want{stdout: "8\n"})
	t.Logf("%s: %d packages in %v", large, len(r.Deps.Packages), r.Phases[0].Metrics.WallTime.Duration())
	if len(r.Deps.Packages) < 80 {
		t.Errorf("%d packages", len(r.Deps.Packages))
	}
}
