package executor

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// shared is a real engine, over the native backend, for all tests that need nothing special.
var shared struct {
	once    sync.Once
	err     error
	dir     string
	backend *native.Backend
	manager *sandbox.Manager
	*Executor
}

func runTests(m *testing.M) int {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		_ = os.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	code := m.Run()
	if shared.manager != nil {
		if err := cmp.Or(shared.manager.Close(), shared.backend.Close()); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			code = max(code, 1)
		}
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// realEngine is the shared engine; a test that needs it can not run without root.
func realEngine(t testing.TB) *Executor {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the native backend makes namespaces and cgroups as root")
	}
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("/var/tmp", "executor-test-"); shared.err != nil {
			return
		}
		if shared.backend, shared.err = native.New(native.Options{CacheDir: filepath.Join(shared.dir, "disks")}); shared.err != nil {
			return
		}
		var kit string
		if kit, shared.err = kitpath.Find(); shared.err != nil {
			return
		}
		shared.manager = sandbox.NewManager(shared.backend, sandbox.Options{})
		shared.Executor = New(shared.manager, Options{
			Toolchains: &toolchain.Finder{Store: filepath.Join(shared.dir, "toolchains")},
			Cache:      &Cache{Dir: filepath.Join(shared.dir, "compiled")},
			Kit:        kit,
			WarmDir:    filepath.Join(shared.dir, "warm"),
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.Executor
}

// want is what must become of a program.
type want struct {
	verdict sandbox.Verdict // "" is ok
	exit    int
	stdout  string   // all of it
	has     []string // on standard output
	said    []string // on standard error
	silent  bool     // nothing on standard error
	files   map[string]string
}

// expect runs a program and holds what became of it against what must have.
func expect(t *testing.T, req Request, w want) *Result {
	t.Helper()
	return expectOn(t, realEngine(t), req, w)
}

func expectOn(t *testing.T, e *Executor, req Request, w want) *Result {
	t.Helper()
	r, err := e.Execute(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := string(r.Stdout.Bytes()), string(r.Stderr.Bytes())
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\nverdict %s, exit %+v, notes %q\nstdout: %s\nstderr: %s", append(args, r.Verdict, r.Exit, r.Notes, short(stdout), short(stderr))...)
	}
	if v := cmp.Or(w.verdict, sandbox.VerdictOK); r.Verdict != v {
		fail("verdict %s instead of %s", r.Verdict, v)
	}
	if w.verdict == sandbox.VerdictNonzeroExit && w.exit == 0 {
		w.exit = 1
	}
	if r.Exit.Code != w.exit && w.verdict != sandbox.VerdictCompileError && w.verdict != sandbox.VerdictMemoryLimit {
		fail("exit code %d instead of %d", r.Exit.Code, w.exit)
	}
	if w.stdout != "" && stdout != w.stdout {
		fail("stdout is not %q", w.stdout)
	}
	for _, s := range w.has {
		if !strings.Contains(stdout, s) {
			fail("stdout lacks %q", s)
		}
	}
	for _, s := range w.said {
		if !strings.Contains(stderr, s) {
			fail("stderr lacks %q", s)
		}
	}
	if w.silent && stderr != "" {
		fail("something was said")
	}
	for name, text := range w.files {
		i := slices.IndexFunc(r.Files, func(f OutputFile) bool { return f.Path == name })
		if i < 0 {
			fail("file %s did not come back", name)
		} else if string(r.Files[i].Data) != text {
			fail("file %s is %q instead of %q", name, r.Files[i].Data, text)
		}
	}
	for _, n := range r.Notes {
		if strings.HasPrefix(n, CleanupNote) {
			fail("not cleaned up")
		}
	}
	return r
}

func short(s string) string {
	const most = 3000
	if len(s) > most {
		return s[:most/2] + "\n…\n" + s[len(s)-most/2:]
	}
	return s
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }
