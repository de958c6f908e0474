package executor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestLayerLinksToHost: an install script that puts a link in the place of the packages gets nothing of the host into a run.
func TestLayerLinksToHost(t *testing.T) {
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "secret.txt"), []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"a link in the place of node_modules": "mkdir -p " + host + " && cd /workspace && mv node_modules moved && ln -s " + host + " node_modules",
		"a link up in the place of it":        "mkdir -p " + host + " && cd /workspace && mv node_modules moved && ln -s ../../../../../../../../../.." + host + " node_modules",
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := npmEngine(t, testregistry.NPMPackage{Name: "hostile", Version: "1.0.0", Files: map[string]string{"index.js": ""},
				Fields: fields{"scripts": map[string]string{"install": script}}})
			req := Request{
				Language: "javascript", Code: "console.log(require('fs').readdirSync('/node_modules').join())",
				Options: LanguageOptions{Deps: []string{"hostile"}, AllowInstallScripts: true},
			}
			r, err := e.Execute(t.Context(), req)
			if err == nil || !strings.Contains(err.Error(), "symlink") {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
}

// TestPythonRequirementOptions: a requirement has no options of pip, which would build from source while there is a network.
func TestPythonRequirementOptions(t *testing.T) {
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	const setup = "raise SystemExit('code of the package ran')\n"
	if err := w.WriteHeader(&tar.Header{Name: "built-2.0/setup.py", Mode: 0o644, Size: int64(len(setup))}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte(setup))
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	s := testregistry.New(t, testregistry.PyPI(
		testregistry.Wheel{Name: "built", Version: "2.0", Sdist: true, Archive: archive.Bytes()},
	))
	e := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	for _, text := range []string{
		"built; python_version>'3' --global-option=x", "built; python_version>'3' --config-settings=a=b", "built ; --global-option=x python_version>'3'",
		"built;python_version>'3'\t--global-option=x", "built; python_version>'3' -i x",
	} {
		r, err := e.Execute(t.Context(), Request{Language: "python", Code: "1", Options: LanguageOptions{Deps: []string{text}}})
		if !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
		if r != nil {
			t.Logf("%q: %s %s", text, r.Verdict, r.Stderr.Bytes())
		}
	}
}

// TestLongDeclarations: no declaration of a request that a server would read keeps it busy for long.
func TestLongDeclarations(t *testing.T) {
	e := packageEngine(t, nil)
	repeat := func(n int, each func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(each(i))
		}
		return b.String()
	}
	requirements := []File{{Path: "main.py", Data: []byte("1")}, {Path: "requirements.txt", Data: []byte("-r r0\n")}}
	for i := range 6 {
		requirements = append(requirements, File{Path: fmt.Sprintf("r%d", i), Data: []byte(strings.Repeat(fmt.Sprintf("-r r%d\n", i+1), 1000))})
	}
	requirements = append(requirements, File{Path: "r6", Data: []byte("a\n")})
	goMod := "module m\n\ngo 1.20\n\nrequire (\n" + repeat(50_000, func(i int) string { return fmt.Sprintf("\ta.b/x%d v1.0.0\n", i) }) + ")\n"
	lock := func(language, requires string, files map[string]string) string {
		text, err := json.Marshal(files)
		if err != nil {
			t.Fatal(err)
		}
		return `{"language": "` + language + `", "language_version": "", "platform": "", "packages": [], "requires": [` + requires + `], "files": ` + string(text) + `}`
	}
	for name, req := range map[string]Request{
		"deps in brackets": {Language: "python", Code: "1", Options: LanguageOptions{Deps: append([]string{"a["}, strings.Split(strings.Repeat("a", 1<<20), "")...)}},
		"requirements":     {Language: "python", Files: requirements, Entry: "main.py", Options: LanguageOptions{Install: true}},
		"arrays without an end": {Language: "python", Entry: "main.py", Options: LanguageOptions{Install: true},
			Files: []File{{Path: "main.py", Data: []byte("1")}, {Path: "pyproject.toml", Data: []byte(strings.Repeat("a=[\n", 250_000))}}},
		"//DEPS": {Language: "java", Options: LanguageOptions{Install: true},
			Code: repeat(200_000, func(i int) string { return fmt.Sprintf("//DEPS a:b%d:1\n", i) }) + "class Main { public static void main(String[] a) {} }"},
		"lock of jars": {Language: "java", Code: "class Main { public static void main(String[] a) {} }", Options: LanguageOptions{
			Lock: lock("java", "", map[string]string{"maven.lock": repeat(200_000, func(i int) string {
				return fmt.Sprintf("a:b%d:1 sha256:%s\n", i, strings.Repeat("0", 64))
			})})}},
		"slashes":      {Language: "javascript", Code: "// npm:\n" + strings.Repeat("=/[", 300_000), Options: LanguageOptions{Install: true}},
		"npm: imports": {Language: "javascript", Code: strings.Repeat("import 'npm:a';\n", 200_000), Options: LanguageOptions{Install: true}},
		"imports of Go": {Language: "go", Options: LanguageOptions{Install: true}, Files: []File{{Path: "go.mod", Data: []byte(goMod)},
			{Path: "main.go", Data: []byte("package main\n\nimport (\n" + repeat(50_000, func(i int) string { return fmt.Sprintf("\t_ \"a.b/y%d\"\n", i) }) + ")\n\nfunc main() {}\n")}}},
		"lock of modules": {Language: "go", Files: []File{{Path: "go.mod", Data: []byte(goMod)}, {Path: "main.go", Data: []byte("package main\n\nfunc main() {}\n")}},
			Options: LanguageOptions{Install: true, Lock: lock("go", repeat(1_000_000, func(int) string { return `"z",` })+
				strings.TrimSuffix(repeat(50_000, func(i int) string { return fmt.Sprintf(`"a.b/x%d@v1.0.0",`, i) }), ","), map[string]string{"go.mod": goMod})}},
		"names of crates' sources": {Language: "rust", Options: LanguageOptions{Install: true}, Files: append([]File{
			{Path: "Cargo.toml", Data: []byte("[package]\nname = \"a\"\nversion = \"1.0.0\"\n#" + strings.Repeat("x", 4_000_000) + "\n")}, {Path: "src/main.rs", Data: []byte("fn main() {}")}},
			func() (all []File) {
				for i := range 10_000 {
					all = append(all, File{Path: fmt.Sprintf("f/%d.rs", i), Data: []byte("//")})
				}
				return all
			}()...)},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			_, err := e.Plan(t.Context(), req)
			if took := time.Since(begin); took > 2*time.Minute { // a second alone on a machine; much longer than any patience before
				t.Errorf("it took %v", took)
			}
			t.Logf("%v: %.200v", time.Since(begin), err)
		})
	}
}

// TestNPMGit: a registry that serves a git repository, too, has nothing of it executed, although npm prepares such packages with its own settings.
func TestNPMGit(t *testing.T) {
	dir := t.TempDir()
	var packages []testregistry.NPMPackage
	repositories := http.FileServer(http.Dir(dir))
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/repository.git/") {
			repositories.ServeHTTP(w, r)
			return
		}
		testregistry.NPM(packages...).ServeHTTP(w, r)
	}))
	work := filepath.Join(dir, "work")
	for name, text := range map[string]string{
		".npmrc": "git=./evil.sh\nignore-scripts=false\n", "evil.sh": "#!/bin/sh\necho code of the package ran >&2\nexit 1\n",
		"package.json": `{"name": "x", "version": "1.0.0", "scripts": {"prepare": "./evil.sh", "install": "./evil.sh"}, "devDependencies": {"y": "git+` + s.URL + `/y.git"}}`,
	} {
		if err := errors.Join(os.MkdirAll(work, 0o755), os.WriteFile(filepath.Join(work, name), []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("/bin/sh", "-c", "cd "+work+` && git init -q -b main && git add -A -f && git -c user.name=a -c user.email=a@example.com commit -q -m a &&
		git clone -q --bare . ../repository.git && cd ../repository.git && git update-server-info`).CombinedOutput()
	if err != nil {
		t.Skipf("needs git: %v: %s", err, out)
	}
	packages = []testregistry.NPMPackage{{Name: "leads", Version: "1.0.0", Requires: map[string]string{"x": "git+" + s.URL + "/repository.git"},
		Files: map[string]string{"index.js": ""}}}
	e := packageEngine(t, map[string]string{"npm": s.URL})
	r, err := e.Execute(t.Context(), Request{Language: "javascript", Code: "1", Options: LanguageOptions{Deps: []string{"leads"}}})
	if err != nil {
		t.Fatal(err)
	}
	if said := string(r.Stderr.Bytes()); r.Verdict != sandbox.VerdictInstallError || strings.Contains(said, "code of the package ran") {
		t.Errorf("%s: %s", r.Verdict, said)
	} else {
		t.Logf("%d %s", r.ExitCode(), said)
	}
}

// TestReplacedLayer: a layer that another one has replaced while a sandbox showed it is still no image for requests.
func TestReplacedLayer(t *testing.T) {
	wheel := testregistry.Wheel{Name: "secret", Version: "1.0", Files: map[string]string{"secret.py": "WORD = 'old'\n"}}
	handler := testregistry.PyPI(wheel)
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	e := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	o := e.opts
	o.Images = StoredImages(func() (*image.Store, error) { return o.Layers.Open(false) })
	e = New(e.manager, o)
	req := Request{Language: "python", Code: "import secret; print(secret.WORD)", Options: LanguageOptions{Deps: []string{"secret"}}}
	old := expectOn(t, e, req, want{stdout: "old\n"}).Deps.Layer
	list, err := o.Layers.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	lease, err := o.Layers.Find("python", list[0].Keys[0]) // as a run does
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	wheel.Version, wheel.Files = "2.0", map[string]string{"secret.py": "WORD = 'new'\n"}
	handler = testregistry.PyPI(wheel)
	req.Options.DepsRefresh = true
	expectOn(t, e, req, want{stdout: "new\n"})
	for _, ref := range []string{old, strings.TrimPrefix(old, "sha256:")[:4], old[:len("sha256:")+4]} {
		if _, err := o.Images.Image(t.Context(), ref); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if list, err := o.Layers.List(); err != nil || len(list) != 2 || list[1].Language != "python" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestPlaceholdersOfPrograms: a program's own text stays as it is, so that no lock has the address of a proxy.
func TestPlaceholdersOfPrograms(t *testing.T) {
	e, _ := goPackages(t, greetModules...)
	r := expectOn(t, e, Request{Language: "go", Options: LanguageOptions{Install: true, ReturnLock: true}, Files: []File{
		{Path: "main.go", Data: []byte(greetsGo)},
		{Path: "go.mod", Data: []byte("module m // {registry} {index} {checksums}\n\ngo 1.21\n\nrequire example.com/greet v1.1.0\n")},
	}}, want{said: []string{"hello world\n"}})
	if !strings.Contains(r.Deps.Lock, "{registry} {index} {checksums}") || strings.Contains(r.Deps.Lock, deps.ProxyName) {
		t.Errorf("%s", r.Deps.Lock)
	}
	npm, _ := npmEngine(t, npmPackages()...)
	_, err := npm.Execute(t.Context(), Request{Language: "javascript", Options: LanguageOptions{Install: true}, Files: []File{
		{Path: "index.js", Data: []byte("1")}, {Path: "package.json", Data: []byte(`{"dependencies": {"greet": "*"}}`)},
		{Path: "package-lock.json", Data: []byte(`{"lockfileVersion": 3, "packages": {"node_modules/greet": {"version": "\u007bindex}"}}}`)},
	}})
	if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "{index}") {
		t.Error(err)
	}
}
