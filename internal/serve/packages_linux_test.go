package serve

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestPackagesOfRequests: requests install what the operator admits; each key has layers of its own.
func TestPackagesOfRequests(t *testing.T) {
	testenv.NeedRoot(t)
	bin := networkDir(t)
	if _, err := os.Stat(filepath.Join(bin, kitpath.Name)); err != nil {
		build := exec.Command("go", "build", "-o", bin, "github.com/sandbox-run/sandbox-run/cmd/"+kitpath.Name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	registry := testregistry.New(t, testregistry.PyPI(
		testregistry.Wheel{Name: "greeting", Version: "1.0", Files: map[string]string{"greeting.py": "WORD = 'hello'\n"}},
		testregistry.Wheel{Name: "large", Version: "1.0", Files: map[string]string{"large.py": strings.Repeat("0", 64<<20)}},
	))
	dir := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	t.Setenv("SANDBOX_RUN_IMAGES", filepath.Join(dir, "images"))
	t.Setenv("SANDBOX_RUN_REGISTRIES_FILE", testregistry.Config(t, map[string]string{"pypi": registry.URL + "/simple/"}))
	body := func(name string) string {
		return runBody(t, map[string]any{"language": "python", "code": "import " + name + "; print('ran')", "deps": []string{name}})
	}
	for _, allowed := range [][]string{nil, {"npm"}} {
		s := startObserved(t, func(s *operator.Settings) { s.Packages = allowed })
		status, _, answer := s.ask(http.MethodPost, wire.PathRun, body("greeting"))
		if status != http.StatusForbidden || !strings.Contains(answer, `"field":"deps"`) || !strings.Contains(answer, "packages of pypi") {
			t.Errorf("%q: %d %s", allowed, status, answer)
		}
		s.stop()
	}
	if asked := registry.Requests(); len(asked) > 0 {
		t.Errorf("%q", asked)
	}

	s := startObserved(t, func(s *operator.Settings) {
		s.Packages, s.PackagesSize, s.Installations = []string{"pypi"}, 48*sandbox.MiB, 1
	})
	store, err := key.Open(filepath.Join(s.dir, "keys.json"))
	must(t, err)
	_, other, err := store.Create(t.Context(), key.New{Name: "other", Scopes: key.Scopes()})
	must(t, err)
	run := func(name string, headers ...string) *executor.Result {
		status, _, answer := s.ask(http.MethodPost, wire.PathRun, body(name), headers...)
		r, err := wire.DecodeResult([]byte(answer))
		if status != http.StatusOK || err != nil {
			t.Fatalf("%d %s", status, answer)
		}
		if strings.Contains(answer, "http://registry.sandbox-run.internal") { // the token follows
			t.Errorf("%s", answer)
		}
		return r
	}
	for i, c := range []struct {
		headers []string
		cached  bool
	}{{nil, false}, {nil, true}, {[]string{"Authorization", "Bearer " + other}, false}, {[]string{"Authorization", "Bearer " + other}, true}} {
		r := run("greeting", c.headers...)
		if string(r.Stdout.Head) != "ran\n" || r.Deps == nil || r.Deps.Cached != c.cached || len(r.Deps.Packages) != 1 {
			t.Errorf("run %d: %q %+v", i, r.Stdout.Head, r.Deps)
		}
	}
	a := s.agent(revisions[1], s.token, nil)
	session := a.good("session_create", args{"language": "python"}).id("session")
	a.contains(a.good("install_packages", args{"session": session, "packages": []string{"greeting"}}), "installed: greeting 1.0")
	a.contains(a.good("session_run", args{"session": session, "code": "import greeting; greeting.WORD"}), "value: 'hello'")
	a.bad("install_packages", args{"session": session, "packages": []string{"--help"}}, "")
	a.good("session_close", args{"session": session})
	if r := run("large"); r.Phase != executor.PhaseInstall || !strings.Contains(string(r.Stderr.Head), "No space left") {
		t.Errorf("%s %s %s", r.Phase, r.Verdict, r.Stderr.Head)
	}
}
