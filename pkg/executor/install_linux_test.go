package executor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	_ "github.com/sandbox-run/sandbox-run/pkg/network/stack" // the test is its own sandbox-net
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// packageEngine is an engine that installs packages from registries with these indexes, by name. Each has layers of its own.
func packageEngine(t *testing.T, indexes map[string]string) *Executor {
	t.Helper()
	base, dir := realEngine(t), t.TempDir()
	o := base.opts
	o.RegistriesFile = testregistry.Config(t, indexes)
	o.Registries = registry.Local{File: o.RegistriesFile}
	o.Layers = &deps.Store{Dir: filepath.Join(dir, "deps"), Open: func(create bool) (*image.Store, error) {
		store := filepath.Join(dir, "images")
		if _, err := os.Stat(store); err != nil && !create {
			return nil, nil
		}
		return image.Open(store)
	}}
	if err := os.Mkdir(o.Layers.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return New(base.manager, o)
}

// TestPythonPackages: a declared package and what it depends on are installed once, and importable.
func TestPythonPackages(t *testing.T) {
	s := testregistry.New(t, testregistry.PyPI(
		testregistry.Wheel{Name: "greet", Version: "1.0", Requires: []string{"words>=1"},
			Files: map[string]string{"greet.py": "import words\ndef hello(): return 'hello ' + words.WORLD\n"}},
		testregistry.Wheel{Name: "words", Version: "1.2", Files: map[string]string{"words/__init__.py": "WORLD = 'world'\n"}},
		testregistry.Wheel{Name: "words", Version: "0.9", Files: map[string]string{"words/__init__.py": "WORLD = 'old'\n"}},
	))
	e := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	const code = "import greet; print(greet.hello())"
	req := Request{Language: "python", Code: code, Options: LanguageOptions{Deps: []string{"greet>=1", "<2"}}}
	first := expectOn(t, e, req, want{stdout: "hello world\n"})
	if d := first.Deps; d == nil || d.Cached || len(d.Packages) != 2 || d.Packages[1].Version != "1.2" || !strings.HasPrefix(d.Packages[1].URL, s.URL) {
		t.Errorf("%+v", d)
	}
	asked := len(s.Requests())
	second := expectOn(t, e, req, want{stdout: "hello world\n"})
	if d := second.Deps; d == nil || !d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) != asked {
		t.Errorf("%+v, %q", d, s.Requests()[asked:])
	}
	req.Code, req.Options.Deps = "# /// script\n# dependencies = [\n#   'greet',  # a comment\n# ]\n# ///\n"+code, nil
	expectOn(t, e, req, want{verdict: sandbox.VerdictNonzeroExit, exit: 1, said: []string{"No module named 'greet'"}}) // not asked to install
	req.Options.Install = true
	expectOn(t, e, req, want{stdout: "hello world\n"})
	req.Options.Deps = []string{"absent"}
	expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{"No matching distribution found for absent"}})
}
