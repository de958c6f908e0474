package executor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// greetModules are a module, and one that it needs only for a package below its top.
var greetModules = []testregistry.Module{
	{Path: "example.com/Words", Version: "v1.0.0", Files: map[string]string{"w.go": "package words\n\nconst World = \"old\"\n"}},
	{Path: "example.com/Words", Version: "v1.2.0", Files: map[string]string{"w.go": "package words\n\nconst World = \"world\"\n"}},
	{Path: "example.com/greet", Version: "v1.1.0", Files: map[string]string{
		"go.mod": "module example.com/greet\n\ngo 1.21\n\nrequire example.com/Words v1.2.0\n",
		"g.go":   "package greet\n\nimport \"strings\"\n\nfunc Hello(s string) string { return \"hello \" + strings.ToLower(s) }\n",
		"loud/l.go": "package loud\n\nimport (\n\t\"example.com/Words\"\n\t\"example.com/greet\"\n)\n\n" +
			"func Hello() string { return greet.Hello(words.World) + \"!\" }\n",
	}},
}

const (
	greetsGo = "package main\n\nimport \"example.com/greet\"\n\nfunc main() { println(greet.Hello(\"WORLD\")) }\n"
	shoutsGo = "package main\n\nimport \"example.com/greet/loud\"\n\nfunc main() { println(loud.Hello()) }\n"
)

func goPackages(t *testing.T, modules ...testregistry.Module) (*Executor, *testregistry.Server) {
	t.Helper()
	s := testregistry.New(t, testregistry.Go(modules...))
	return packageEngine(t, map[string]string{"go": s.URL}), s
}

// expectRefused holds a request against what its usage error must say.
func expectRefused(t *testing.T, e *Executor, req Request, said string) {
	t.Helper()
	if _, err := e.Execute(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), said) {
		t.Errorf("%v instead of %q", err, said)
	}
}

// TestGoPackages: declared modules and what they depend on are installed once, and a lock installs the same layer.
func TestGoPackages(t *testing.T) {
	e, s := goPackages(t, greetModules...)
	req := Request{Language: "go", Code: greetsGo, Options: LanguageOptions{Deps: []string{"example.com/greet"}}}
	first := expectOn(t, e, req, want{said: []string{"hello world\n"}})
	if d := first.Deps; d.Cached || len(d.Packages) == 0 || !strings.HasPrefix(d.Packages[0].Hash, "h1:") || len(lockOf(t, e, first).Files) != 2 {
		t.Fatalf("%+v", d)
	}
	if len(first.Violations) > 0 {
		t.Errorf("%+v", first.Violations)
	}
	asked := len(s.Requests())
	req.Code += "// changed\n"
	second := expectOn(t, e, req, want{said: []string{"hello world\n"}})
	if d := second.Deps; d == nil || !d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) != asked {
		t.Errorf("%+v, %q", d, s.Requests()[asked:])
	}
	tested := req
	tested.Code = "package main\n\nimport (\n\t\"testing\"\n\n\t\"example.com/greet\"\n)\n\n" +
		"func TestHello(t *testing.T) { t.Log(greet.Hello(\"TEST\")) }\n"
	tested.Args = []string{"-v"}
	if d := expectOn(t, e, tested, want{has: []string{"hello test"}}).Deps; !d.Cached || d.Layer != first.Deps.Layer {
		t.Errorf("%+v", d)
	}
	tree := req
	tree.Code, tree.Files = "", []File{{Path: "main.go", Data: []byte("package main\n\nfunc main() { hello() }\n")},
		{Path: "h.go", Data: []byte(strings.Replace(greetsGo, "func main()", "func hello()", 1))}}
	if d := expectOn(t, e, tree, want{said: []string{"hello world\n"}}).Deps; !d.Cached || d.Layer != first.Deps.Layer {
		t.Errorf("%+v", d)
	}
	// A package below the top has needs of its own.
	req.Code = shoutsGo
	loud := expectOn(t, e, req, want{said: []string{"hello world!\n"}})
	if d := loud.Deps; d.Cached || len(d.Packages) != 2 || d.Packages[0].Name != "example.com/Words" || d.Packages[0].Version != "v1.2.0" {
		t.Errorf("%+v", d)
	}
	locked := req
	locked.Options = LanguageOptions{Lock: lockText(t, e, loud), Frozen: true}
	frozen := expectOn(t, e, locked, want{said: []string{"hello world!\n"}})
	if d := frozen.Deps; d.Cached || d.Layer != loud.Deps.Layer || lockText(t, e, frozen) != lockText(t, e, loud) {
		t.Errorf("%+v instead of %+v", d, loud.Deps)
	}
	req.Options.DepsRefresh = true
	if again := expectOn(t, e, req, want{said: []string{"hello world!\n"}}); again.Deps.Cached || again.Deps.Layer != loud.Deps.Layer {
		t.Errorf("%+v instead of %+v", again.Deps, loud.Deps)
	}
	locked.Options.Deps = []string{"example.com/Words"}
	expectRefused(t, e, locked, "example.com/Words is not among")
}

// TestGoPackagesOfProject: go.mod says what is installed, and go.sum what that must be.
func TestGoPackagesOfProject(t *testing.T) {
	e, s := goPackages(t, greetModules...)
	words, greet := &greetModules[1], &greetModules[2]
	const module = "\n\ngo 1.21\n\nrequire (\n\texample.com/greet v1.1.0\n\texample.com/Words v1.2.0 // indirect\n)\n"
	files := func(sum string) []File {
		list := []File{
			{Path: "go.mod", Data: []byte("module example.org/x" + module)},
			{Path: "main.go", Data: []byte(shoutsGo)},
		}
		if sum != "" {
			list = append(list, File{Path: "go.sum", Data: []byte(sum)})
		}
		return list
	}
	req := Request{Language: "go", Files: files(words.Sum() + greet.Sum()), Options: LanguageOptions{Install: true, Frozen: true}}
	r := expectOn(t, e, req, want{said: []string{"hello world!\n"}})
	if len(r.Deps.Packages) != 2 || !strings.Contains(greet.Sum(), r.Deps.Packages[1].Hash) {
		t.Errorf("%+v", r.Deps)
	}
	if slices.ContainsFunc(s.Requests(), func(r string) bool { return strings.Contains(r, "/list") }) {
		t.Errorf("versions were looked up: %q", s.Requests())
	}
	req.Files = files("")
	expectRefused(t, e, req, "no lock")
	req.Options.Frozen = false
	if again := expectOn(t, e, req, want{said: []string{"hello world!\n"}}); again.Deps.Layer != r.Deps.Layer {
		t.Errorf("%+v instead of %+v", again.Deps, r.Deps)
	}
	wrong := *greet
	wrong.Files = map[string]string{"g.go": "package other\n"}
	req.Files = files(words.Sum() + wrong.Sum())
	expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{"checksum mismatch", "example.com/greet@v1.1.0"}})

	// Modules of a workspace require each other, and what is installed.
	req = Request{Language: "go", Entry: "a", Options: LanguageOptions{Install: true}, Files: []File{
		{Path: "go.work", Data: []byte("go 1.21\n\nuse (\n\t./a\n\t./b\n)\n")},
		{Path: "a/go.mod", Data: []byte("module example.org/a\n\ngo 1.21\n")},
		{Path: "a/main.go", Data: []byte("package main\n\nimport \"example.org/b\"\n\nfunc main() { println(b.Say()) }\n")},
		{Path: "b/go.mod", Data: []byte("module example.org/b" + module)},
		{Path: "b/go.sum", Data: []byte(words.Sum() + greet.Sum())},
		{Path: "b/b.go", Data: []byte("package b\n\nimport \"example.com/greet/loud\"\n\nfunc Say() string { return loud.Hello() }\n")},
	}}
	r = expectOn(t, e, req, want{said: []string{"hello world!\n"}})
	req.Options.Lock = lockText(t, e, r)
	if frozen := expectOn(t, e, req, want{said: []string{"hello world!\n"}}); frozen.Deps.Layer != r.Deps.Layer {
		t.Errorf("%+v instead of %+v", frozen.Deps, r.Deps)
	}
	req.Options = LanguageOptions{Deps: []string{"example.com/greet"}}
	expectRefused(t, e, req, "workspace")
}

// TestGoPackagesThatFail: the go command's own words say why, and nothing is kept.
func TestGoPackagesThatFail(t *testing.T) {
	whole := testregistry.Module{Path: "example.com/short", Version: "v1.0.0", Files: map[string]string{"s.go": "package short\n"}}
	archive := testregistry.Zip(map[string]string{"example.com/short@v1.0.0/s.go": "package short\n"})
	whole.Archive = archive[:len(archive)/2]
	e, _ := goPackages(t,
		whole,
		testregistry.Module{Path: "example.com/hostile", Version: "v1.0.0",
			Archive: testregistry.Zip(map[string]string{"example.com/hostile@v1.0.0/../../x": "x"})},
		testregistry.Module{Path: "example.com/other", Version: "v1.0.0",
			Archive: testregistry.Zip(map[string]string{"example.com/another@v1.0.0/go.mod": "module example.com/another\n"})},
		testregistry.Module{Path: "example.com/needs", Version: "v1.0.0", Files: map[string]string{
			"go.mod": "module example.com/needs\n\ngo 1.21\n\nrequire example.com/absent v1.0.0\n",
			"n.go":   "package needs\n\nimport _ \"example.com/absent\"\n"}},
	)
	for dep, said := range map[string]string{
		"example.com/short":        "not a valid zip file",
		"example.com/hostile":      "malformed file path",
		"example.com/other@v1.0.0": "has unexpected file",
		"example.com/absent":       "404 Not Found",
		"example.com/needs":        "example.com/absent@v1.0.0",
		"example.com/short@v1.9.0": "404 Not Found",
	} {
		req := Request{Language: "go", Code: "package main\n\nfunc main() {}\n", Options: LanguageOptions{Deps: []string{dep}}}
		expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{said}})
	}
	if list, err := e.opts.Layers.List(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestRealGoPackages installs a module with dependencies from the real registry. SANDBOX_RUN_TEST_REAL_REGISTRIES may name a
// registries.yaml.
func TestRealGoPackages(t *testing.T) {
	file := os.Getenv("SANDBOX_RUN_TEST_REAL_REGISTRIES")
	if file == "" {
		t.Skip("needs SANDBOX_RUN_TEST_REAL_REGISTRIES=1, or the path of a registries.yaml")
	}
	e := packageEngine(t, nil)
	if e.opts.RegistriesFile = ""; filepath.IsAbs(file) {
		e.opts.RegistriesFile = file
	}
	e.opts.Registries = registry.Local{File: e.opts.RegistriesFile}
	const code = `package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func main() {
	c := &cobra.Command{Use: "x", Run: func(*cobra.Command, []string) { fmt.Println("ran") }}
	_ = c.Execute()
}
`
	req := Request{Language: "go", Code: code, Options: LanguageOptions{Deps: []string{"github.com/spf13/cobra@v1.9.1"}}}
	r := expectOn(t, e, req, want{stdout: "ran\n"})
	const h1 = "h1:CXSaggrXdbHK9CF+8ywj8Amf7PBRmPCOJugH954Nnlo="
	if d := r.Deps; len(d.Packages) < 3 || !slices.ContainsFunc(d.Packages, func(p language.Package) bool { return p.Hash == h1 }) {
		t.Errorf("%+v", d)
	}
	req.Options = LanguageOptions{Lock: lockText(t, e, r), Frozen: true}
	if frozen := expectOn(t, e, req, want{stdout: "ran\n"}); frozen.Deps.Layer != r.Deps.Layer {
		t.Errorf("%+v instead of %+v", frozen.Deps, r.Deps)
	}
}
