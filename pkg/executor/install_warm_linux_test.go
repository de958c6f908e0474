package executor

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
)

// warmPackages returns two engines with the same layers: one starts every program cold, and the other has a pool.
func warmPackages(t *testing.T, indexes map[string]string) (cold, warm *Executor, p *pool.Pool) {
	t.Helper()
	return warmOver(t, packageEngine(t, indexes))
}

// warmOver is warmPackages with the layers of another engine.
func warmOver(t *testing.T, layers *Executor) (cold, warm *Executor, p *pool.Pool) {
	t.Helper()
	over := func(base *Executor) *Executor {
		o := base.opts
		o.Layers, o.Registries, o.RegistriesFile = layers.opts.Layers, layers.opts.Registries, layers.opts.RegistriesFile
		return New(base.manager, o)
	}
	base, p := pooledEngine(t)
	return over(unpooledEngine(t)), over(base), p
}

// pythonTells prints what a program can see of its packages, and of how they were found.
const pythonTells = `import sys, site, os
before = sorted(m for m in sys.modules if m not in ("_ctypes",))
print(sys.path)
print(before)
print(sorted(sys.path_importer_cache))
print(site.USER_SITE, site.ENABLE_USER_SITE, sorted(os.listdir(site.USER_SITE)), sorted(os.listdir("/opt/sandbox-run/site-packages")))
print(sorted(os.environ.items()), sys.argv, sys.stdout.line_buffering, sys.flags)
`

// TestWarmPackagesSame: a program with a layer does the same in a fork and in a cold start.
func TestWarmPackagesSame(t *testing.T) {
	wheel := func(name string, files map[string]string) testregistry.Wheel {
		return testregistry.Wheel{Name: name, Version: "1.0", Files: files}
	}
	s := testregistry.New(t, testregistry.PyPI(
		wheel("greet", map[string]string{"greet.py": "def hello(): return 'hello'\ndef fails(): raise KeyError('in the package')\n", "parts/one.py": "ONE = 1\n"}),
		wheel("more", map[string]string{"parts/two.py": "TWO = 2\n", "more/__init__.py": "import parts.one, parts.two\n"}),
		wheel("startup", map[string]string{"startup.pth": "import sys; print('of the package', 'greet' in sys.modules); sys.started = True\nstartup_more\n",
			"startup_more/found.py": "WORD = 'found'\n"}),
		wheel("broken", map[string]string{"broken.pth": "import absent_module\n"}),
		wheel("customize", map[string]string{"sitecustomize.py": "print('sitecustomize of the package')\n"}),
		wheel("user", map[string]string{"usercustomize.py": "print('usercustomize of the package')\n"}),
		wheel("json-not", map[string]string{"json/__init__.py": "raise SystemExit('shadowed')\n", "pandas/__init__.py": "WHO = 'of the layer'\n"}),
	))
	cold, warm, p := warmPackages(t, map[string]string{"pypi": s.URL + "/simple/"})
	for name, c := range map[string]struct {
		deps   []string
		code   string
		starts bool // cold in any case
	}{
		"imports":    {deps: []string{"greet", "more"}, code: pythonTells + "import greet; print(greet.hello(), greet.__file__, greet.__cached__)\n"},
		"namespaces": {deps: []string{"greet", "more"}, code: "import more, parts; print(list(parts.__path__), parts.two.TWO + parts.one.ONE)"},
		"metadata":   {deps: []string{"greet", "more"}, code: "import importlib.metadata as m; print(m.version('greet'), sorted(d.name for d in m.distributions()))"},
		"trace":      {deps: []string{"greet", "more"}, code: "import greet\ngreet.fails()\n"},
		"exit":       {deps: []string{"greet", "more"}, code: "import greet, sys, atexit\natexit.register(print, 'end')\nsys.exit(7)\n"},
		"startup":    {deps: []string{"startup"}, code: pythonTells + "import found; print(found.WORD, sys.started)\n"},
		"broken":     {deps: []string{"broken"}, code: pythonTells},
		"user":       {deps: []string{"user"}, code: pythonTells},
		"customize":  {deps: []string{"customize"}, code: pythonTells, starts: true},
		"shadows":    {deps: []string{"json-not"}, code: "import json; print(json.dumps([1]))\nimport pandas; print(pandas.WHO, pandas.__file__)\n"},
		"absent":     {deps: []string{"greet", "more"}, code: "import absent_module\n"},
		"watches":    {deps: []string{"greet", "more"}, code: "import gc, greet; print(gc.isenabled(), gc.get_threshold(), len(gc.get_objects()) > 1000)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "broken" || name == "startup" || name == "watches" {
				testenv.NeedAll(t, "TestWarmPackagesSame/customize")
			}
			req := Request{Language: "python", Code: c.code, Options: LanguageOptions{Deps: c.deps}}
			want, err := cold.Execute(t.Context(), req) // the first one installs
			if err == nil && want.Verdict != sandbox.VerdictInstallError {
				want, err = cold.Execute(t.Context(), req)
			}
			if err != nil || want.Deps == nil {
				t.Fatalf("%v: %s", err, outcome(want))
			}
			have(t, warm, p, req)
			before := p.Stats()
			got, err := warm.Execute(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if after := p.Stats(); (after.Warm == before.Warm) != c.starts {
				t.Errorf("cold: %v, %+v", after.Warm == before.Warm, after)
			}
			if got.Verdict != want.Verdict || got.ExitCode() != want.ExitCode() || string(got.Stdout.Bytes()) != string(want.Stdout.Bytes()) ||
				string(got.Stderr.Bytes()) != string(want.Stderr.Bytes()) || got.Deps == nil || got.Deps.Layer != want.Deps.Layer {
				t.Errorf("cold: %s\nwarm: %s", outcome(want), outcome(got))
			}
			if len(want.Stdout.Bytes())+len(want.Stderr.Bytes()) == 0 {
				t.Error("the program says nothing")
			}
		})
	}
}

// TestWaitingPackagesSame: where no interpreter can be forked, one waits in each sandbox, and finds the layer as a cold start does.
func TestWaitingPackagesSame(t *testing.T) {
	s := testregistry.New(t, testregistry.PyPI(testregistry.Wheel{Name: "startup", Version: "1.0", Files: map[string]string{
		"startup.pth": "import sys; print('of the package'); sys.started = True\nstartup_more\n", "startup_more/found.py": "WORD = 'found'\n"}}))
	layers := packageEngine(t, map[string]string{"pypi": s.URL + "/simple/"})
	cold, _, _ := warmOver(t, layers)
	b, err := native.New(native.Options{CacheDir: filepath.Join(shared.dir, "disks")})
	if err != nil {
		t.Fatal(err)
	}
	p := pool.New(struct{ sandbox.Backend }{b}, pool.Options{MessageTimeout: 30 * time.Second, ReadyTimeout: 2 * time.Minute})
	m := sandbox.NewManager(p, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	warm := New(m, cold.opts)
	req := Request{Language: "python", Code: pythonTells + "import found; print(found.WORD, sys.started)\n", Options: LanguageOptions{Deps: []string{"startup"}}}
	expectOn(t, layers, req, want{})
	want, err := cold.Execute(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := execute(t, warm, p, req); string(got.Stdout.Bytes()) != string(want.Stdout.Bytes()) || got.Verdict != want.Verdict ||
		!strings.Contains(string(got.Stdout.Bytes()), "found True") {
		t.Errorf("cold: %s\nwaiting: %s", outcome(want), outcome(got))
	}
}

// TestWarmPackagesOfNode: Node waits for its program with a layer, too.
func TestWarmPackagesOfNode(t *testing.T) {
	_, s := npmEngine(t, npmPackages()...)
	cold, warm, p := warmPackages(t, map[string]string{"npm": s.URL})
	for language, code := range map[string]string{
		"javascript": "console.log(require('greet').hello(), require.resolve('greet'), module.paths)",
		"typescript": "import { hello } from 'greet'; console.log(hello() as string, process.argv.length)",
	} {
		req := Request{Language: language, Code: code, Options: LanguageOptions{Deps: []string{"greet"}}}
		if r, err := cold.Execute(t.Context(), req); err != nil || r.Verdict != sandbox.VerdictOK {
			t.Fatal(outcome(r), err)
		}
		want, err := cold.Execute(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if got := execute(t, warm, p, req); string(got.Stdout.Bytes()) != string(want.Stdout.Bytes()) ||
			!strings.HasPrefix(string(got.Stdout.Bytes()), "hello world") {
			t.Errorf("cold: %s\nwarm: %s", outcome(want), outcome(got))
		}
	}
}

// TestPooledPackagesCompiled: programs that are compiled with their packages get pooled sandboxes, too.
func TestPooledPackagesCompiled(t *testing.T) {
	ofGo, _ := goPackages(t, greetModules...)
	s := javaRegistry(t)
	for _, c := range []struct {
		layers *Executor
		req    Request
		said   string
	}{
		{ofGo, Request{Language: "go", Code: greetsGo, Options: LanguageOptions{Deps: []string{"example.com/greet"}}}, "hello"},
		{packageEngine(t, map[string]string{"maven": s.URL + "/"}),
			Request{Language: "java", Code: greetCode, Options: LanguageOptions{Deps: []string{"com.example:greet:1.0"}}}, "hello world"},
	} {
		t.Run(c.req.Language, func(t *testing.T) {
			if c.req.Language == "go" {
				testenv.NeedAll(t, "TestPooledPackagesCompiled/java")
			}
			cold, warm, p := warmOver(t, c.layers)
			want, err := cold.Execute(t.Context(), c.req)
			if err != nil || want.Verdict != sandbox.VerdictOK {
				t.Fatal(outcome(want), err)
			}
			have(t, warm, p, c.req)
			before := p.Stats()
			got, err := warm.Execute(t.Context(), c.req)
			if err != nil {
				t.Fatal(err)
			}
			if after := p.Stats(); after.Hits == before.Hits {
				t.Errorf("no pooled sandbox: %+v", after)
			}
			if out := string(got.Stdout.Bytes()) + string(got.Stderr.Bytes()); out != string(want.Stdout.Bytes())+string(want.Stderr.Bytes()) ||
				!strings.Contains(out, c.said) {
				t.Errorf("cold: %s\nwarm: %s", outcome(want), outcome(got))
			}
		})
	}
}

// packageOfVersion serves one wheel, which changes: its module says which version it is.
type packageOfVersion struct {
	mu   sync.Mutex
	http http.Handler
}

func (v *packageOfVersion) set(version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.http = testregistry.PyPI(testregistry.Wheel{Name: "changes", Version: version, Files: map[string]string{"changes.py": "VERSION = '" + version + "'\n"}})
}

func (v *packageOfVersion) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	h := v.http
	v.mu.Unlock()
	h.ServeHTTP(w, r)
}

const saysVersion = "import changes; print(changes.VERSION)"

// showing counts the processes, other than this one, in whose sandboxes a directory of the host is mounted.
func showing(t *testing.T, dir string) (n int) {
	t.Helper()
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		text, _ := os.ReadFile(table) // the process may have ended
		if strings.Contains(string(text), dir) && !strings.HasPrefix(table, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			n++
		}
	}
	return n
}

// TestWarmPackagesRemoved: pooled sandboxes keep no layer from being removed, none that shows a removed layer serves a run, and none stays.
func TestWarmPackagesRemoved(t *testing.T) {
	v := &packageOfVersion{}
	v.set("1")
	s := testregistry.New(t, v)
	_, warm, p := warmPackages(t, map[string]string{"pypi": s.URL + "/simple/"})
	req := Request{Language: "python", Code: saysVersion, Options: LanguageOptions{Deps: []string{"changes"}}}
	expectOn(t, warm, req, want{stdout: "1\n"})
	run := func(version string) (layer string) {
		t.Helper()
		r := execute(t, warm, p, req)
		if string(r.Stdout.Bytes()) != version+"\n" {
			t.Errorf("want %s: %s", version, outcome(r))
		}
		have(t, warm, p, req)
		return strings.TrimPrefix(r.Deps.Layer, "sha256:")
	}
	gone := func(layer string) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); showing(t, layer) > 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d processes still show %s", showing(t, layer), layer)
			}
		}
	}
	first := run("1")
	if showing(t, first) == 0 {
		t.Fatal("the control: no pooled sandbox shows the layer")
	}
	// Replaced under its key.
	v.set("2")
	again := req
	again.Options.DepsRefresh = true
	expectOn(t, warm, again, want{stdout: "2\n"})
	second := run("2")
	gone(first)
	// Removed while pooled sandboxes show it, and installed again: the same image, the same path, other directories.
	remove := func() {
		t.Helper()
		list, err := warm.opts.Layers.List()
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v %v", list, err)
		}
		if err := warm.opts.Layers.Remove(&list[0]); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	if r := expectOn(t, warm, req, want{stdout: "2\n"}); r.Deps.Cached {
		t.Errorf("%+v", r.Deps)
	}
	if third := run("2"); third != second {
		t.Logf("equal installations have different layers: %s, %s", second, third)
	}
	remove()
	gone(second)
	for _, shape := range p.Stats().Shapes {
		if shape.Failures > 0 {
			t.Errorf("%+v", shape)
		}
	}
}

// TestWarmPackagesOfTenants: two tenants asked for the same and got different packages. No pooled sandbox of one serves the other.
func TestWarmPackagesOfTenants(t *testing.T) {
	v := &packageOfVersion{}
	s := testregistry.New(t, v)
	_, warm, p := warmPackages(t, map[string]string{"pypi": s.URL + "/simple/"})
	request := func(tenant string) Request {
		return Request{Language: "python", Code: saysVersion, Asker: Asker{Key: tenant}, Options: LanguageOptions{Deps: []string{"changes"}}}
	}
	tenants := []string{"one", "two"}
	for _, tenant := range tenants {
		v.set("1+" + tenant)
		expectOn(t, warm, request(tenant), want{stdout: "1+" + tenant + "\n"})
	}
	for range 3 { // the control: each gets its own, from a process that waited
		for _, tenant := range tenants {
			if r := execute(t, warm, p, request(tenant)); string(r.Stdout.Bytes()) != "1+"+tenant+"\n" {
				t.Errorf("%s: %s", tenant, outcome(r))
			}
		}
	}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			tenant := tenants[i%2]
			r, err := warm.Execute(t.Context(), request(tenant))
			if err != nil || string(r.Stdout.Bytes()) != "1+"+tenant+"\n" {
				t.Errorf("%s: %s %v", tenant, outcome(r), err)
			}
		})
	}
	all.Wait()
	// A program can change nothing in the layer that the next one sees, and finds no other one.
	hostile := request("one")
	hostile.Code = "import changes, glob, os\nfor path in (changes.__file__, changes.__cached__, os.path.dirname(changes.__file__) + '/new.py'):\n" +
		"    try: open(path, 'w').write('VERSION = 0'); print('written')\n    except OSError as e: print(e.errno)\n" +
		"print(sorted(n for n in os.listdir('/opt/sandbox-run') if 'site' in n), glob.glob('/var/lib/sandbox-run*'))\n"
	if r := execute(t, warm, p, hostile); string(r.Stdout.Bytes()) != "30\n30\n30\n['site-packages'] []\n" {
		t.Error(outcome(r))
	}
}
