package executor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestLayerLinksToHost: an install script that puts a link in the place of the packages gets nothing of the host into a run.
func TestLayerLinksToHost(t *testing.T) {
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "secret.txt"), []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := host; dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755|os.ModeSticky); err != nil {
			t.Log(err)
			break
		}
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
			if err != nil {
				t.Log(err)
				return
			}
			t.Logf("%s %q %q %q", r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes(), r.Notes)
			if r.Verdict == sandbox.VerdictOK {
				t.Errorf("the run lists %q", r.Stdout.Bytes())
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
