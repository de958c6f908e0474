package executor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
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

// TestHostileWheels: what a hostile or broken registry serves is refused with pip's words, and nothing of it runs or gets out of its place. The
// sound wheel of each case is the control.
func TestHostileWheels(t *testing.T) {
	const evil = "import os; os.makedirs('/workspace/layer', exist_ok=True); open('/workspace/layer/ran', 'w').write('x')\nraise SystemExit('ran')\n"
	var sdist bytes.Buffer
	z := gzip.NewWriter(&sdist)
	archive := tar.NewWriter(z)
	for _, name := range []string{"source-1.0/setup.py", "source-1.0/PKG-INFO"} {
		_ = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(evil))})
		_, _ = archive.Write([]byte(evil))
	}
	_ = errors.Join(archive.Close(), z.Close())
	sound := testregistry.Wheel{Name: "sound", Version: "1.0", Files: map[string]string{"sound.py": "WORD = 'sound'\n"}}
	bomb := map[string]string{"bomb.py": strings.Repeat("0", 64<<20)}
	s := testregistry.New(t, testregistry.PyPI(
		sound,
		testregistry.Wheel{Name: "changed", Version: "1.0", Digest: strings.Repeat("0", 64)},
		testregistry.Wheel{Name: "cut", Version: "1.0", Archive: testregistry.Zip(map[string]string{"cut.py": "x"})[:40]},
		testregistry.Wheel{Name: "source", Version: "1.0", Sdist: true, Archive: sdist.Bytes()},
		testregistry.Wheel{Name: "climbs", Version: "1.0", Files: map[string]string{"../../../climbed.py": "x"}},
		testregistry.Wheel{Name: "bomb", Version: "1.0", Files: bomb},
		testregistry.Wheel{Name: "startup", Version: "1.0", Files: map[string]string{"startup.pth": "import os; print('of the package')\n"}},
	))
	e := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	e.opts.InstallDisk = 48 * sandbox.MiB
	for name, c := range map[string]struct {
		verdict sandbox.Verdict
		said    string
	}{
		"changed": {sandbox.VerdictInstallError, "DO NOT MATCH THE HASHES"},
		"cut":     {sandbox.VerdictInstallError, "invalid"},
		"source":  {sandbox.VerdictInstallError, "No matching distribution found"},
		"climbs":  {sandbox.VerdictInstallError, "outside the target directory"},
	} {
		t.Run(name, func(t *testing.T) {
			req := Request{Language: "python", Code: "print('the program')", Options: LanguageOptions{Deps: []string{name}}}
			w := want{verdict: c.verdict, exit: 1, said: []string{c.said}}
			if r := expectOn(t, e, req, w); strings.Contains(string(r.Stdout.Bytes())+string(r.Stderr.Bytes()), "ran\n") || r.Phase != PhaseInstall {
				t.Errorf("%s %s%s", r.Phase, r.Stdout.Bytes(), r.Stderr.Bytes())
			}
		})
	}
	// pip frees the disk again at its end: whether a sample has found it full is left to chance.
	full, err := e.Execute(t.Context(), Request{Language: "python", Code: "1", Options: LanguageOptions{Deps: []string{"bomb"}}})
	if err != nil || full.Verdict != sandbox.VerdictInstallError && full.Verdict != sandbox.VerdictDiskLimit ||
		!strings.Contains(string(full.Stderr.Bytes()), "No space left") {
		t.Errorf("%+v %v", full, err)
	}
	program := "import sound, os; print(sound.WORD, os.path.exists('/opt/sandbox-run/ran'))"
	expectOn(t, e, Request{Language: "python", Code: program, Options: LanguageOptions{Deps: []string{"sound"}}}, want{stdout: "sound False\n"})
	// A .pth of a package runs in the program, as on a machine, and not in the installation.
	r := expectOn(t, e, Request{Language: "python", Code: "print('program')", Options: LanguageOptions{Deps: []string{"startup"}}},
		want{stdout: "of the package\nprogram\n"})
	for _, p := range r.Phases {
		if strings.Contains(p.Stdout+p.Stderr, "of the package") {
			t.Errorf("%+v", p)
		}
	}
}

// TestPythonDeclarations: where declarations come from, and what is refused.
func TestPythonDeclarations(t *testing.T) {
	s := testregistry.New(t, testregistry.PyPI(
		testregistry.Wheel{Name: "one", Version: "1.0", Files: map[string]string{"one.py": "N = 1\n"}},
		testregistry.Wheel{Name: "two", Version: "2.0", Files: map[string]string{"two/__init__.py": "N = 2\n", "two/__main__.py": "print('two runs')\n"}},
	))
	e := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	const both = "import one, two; print(one.N + two.N)"
	for name, files := range map[string][]File{
		"requirements": {{Path: "main.py", Data: []byte(both)}, {Path: "requirements.txt", Data: []byte("one==1.0  # the first\n-r more/others.txt\n")},
			{Path: "more/others.txt", Data: []byte("Two >= 1 ; python_version > '3'\n")}},
		"pyproject": {{Path: "main.py", Data: []byte(both)},
			{Path: "pyproject.toml", Data: []byte("[project]\nname = \"x\"\nrequires-python = \">=3.9\"\ndependencies = [\n  \"one\", # x\n  'two~=2.0',\n]\n")}},
		"script": {{Path: "main.py", Data: []byte("# /// script\n# dependencies = ['one', \"two\"]\n# ///\n" + both)},
			{Path: "requirements.txt", Data: []byte("absent\n")}},
	} {
		t.Run(name, func(t *testing.T) {
			expectOn(t, e, Request{Language: "python", Files: files, Options: LanguageOptions{Install: true}}, want{stdout: "3\n"})
		})
	}
	expectOn(t, e, Request{Language: "python", Options: LanguageOptions{Module: "two", Deps: []string{"two"}}}, want{stdout: "two runs\n"})
	expectOn(t, e, Request{Language: "python", Code: "import subprocess, sys; subprocess.run(['python3', '-m', 'two'])", Options: LanguageOptions{Deps: []string{"two"}}},
		want{stdout: "two runs\n"})
	// The lock of one run installs the same in another, without asking which versions there are.
	r := expectOn(t, e, Request{Language: "python", Code: both, Options: LanguageOptions{Deps: []string{"one", "two"}, ReturnLock: true}}, want{stdout: "3\n"})
	expectOn(t, e, Request{Language: "python", Code: both, Options: LanguageOptions{Lock: r.Deps.Lock, Frozen: true}}, want{stdout: "3\n"})
	wrong := strings.Replace(r.Deps.Lock, "sha256:", "sha256:0", 1)
	for name, c := range map[string]struct {
		o     LanguageOptions
		files []File
		says  string
	}{
		"requires-python": {LanguageOptions{Install: true}, []File{{Path: "pyproject.toml", Data: []byte("[project]\nrequires-python = '<3.5'\n")}}, "requires Python <3.5"},
		"an index":        {LanguageOptions{Install: true}, []File{{Path: "requirements.txt", Data: []byte("one\n--index-url https://x/\n")}}, "requirements.txt, line 2"},
		"an editable":     {LanguageOptions{Install: true}, []File{{Path: "requirements.txt", Data: []byte("-e .\n")}}, "line 1"},
		"a loop":          {LanguageOptions{Install: true}, []File{{Path: "requirements.txt", Data: []byte("-r requirements.txt\n")}}, "leads to itself"},
		"an open block":   {LanguageOptions{Install: true}, []File{{Path: "main.py", Data: []byte("# /// script\nprint(1)\n")}}, "does not end"},
		"a version":       {LanguageOptions{Deps: []string{"one=1"}}, nil, `"one=1" has a wrong version`},
		"a lock":          {LanguageOptions{Lock: "{}"}, nil, "lock"},
		"another lock":    {LanguageOptions{Lock: strings.Replace(r.Deps.Lock, `"python"`, `"go"`, 1)}, nil, "it is a lock of go"},
		"a wrong lock":    {LanguageOptions{Lock: strings.ReplaceAll(wrong, "--hash=sha256:", "--hash=sha256:0")}, nil, "wrong digest"},
		"scripts":         {LanguageOptions{Deps: []string{"one"}, AllowInstallScripts: true}, nil, "wheels only"},
	} {
		files := append(c.files, File{Path: "app.py", Data: []byte("print(1)")})
		_, err := e.Execute(t.Context(), Request{Language: "python", Files: files, Entry: files[0].Path, Options: c.o})
		if path.Ext(files[0].Path) != ".py" {
			_, err = e.Execute(t.Context(), Request{Language: "python", Files: files, Entry: "app.py", Options: c.o})
		}
		if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lockOf returns the lock of the layer of a run.
func lockOf(t *testing.T, e *Executor, r *Result) *language.Lock {
	t.Helper()
	if r.Deps == nil {
		t.Fatal("nothing was installed")
	}
	i, err := e.opts.Layers.Get(r.Deps.Layer)
	if err != nil {
		t.Fatal(err)
	}
	return i.Lock
}

// lockText returns the lock as results and --lock have it.
func lockText(t *testing.T, e *Executor, r *Result) string {
	t.Helper()
	text, err := json.Marshal(lockOf(t, e, r))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
