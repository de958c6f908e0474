package executor

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
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
	if pooled.manager != nil {
		if err := cmp.Or(pooled.manager.Close(), pooled.pool.Close()); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			code = max(code, 1)
		}
	}
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
	testenv.NeedSystem(t)
	if os.Geteuid() != 0 && os.Getenv(plainVariable) == "" {
		t.Skip("needs root, which runs it as an ordinary user as well (TestOrdinaryUser)")
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
			WarmDir:    testenv.WarmDir(filepath.Join(shared.dir, "warm")),
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
	if os.Geteuid() != 0 {
		req.Policy.Require = sandbox.TierNamespace // an ordinary user has no delegated cgroup here
	}
	if w.verdict != sandbox.VerdictTimeLimit {
		// A busy machine may take longer than the defaults.
		req.Limits.Wall = cmp.Or(req.Limits.Wall, 10*time.Minute)
		req.CompileLimits.Wall = cmp.Or(req.CompileLimits.Wall, 10*time.Minute)
	}
	r, err := e.Execute(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := string(r.Stdout.Bytes()), string(r.Stderr.Bytes())
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\nverdict %s, exit %+v, notes %q\nstdout: %s\nstderr: %s",
			append(args, r.Verdict, r.Exit, r.Notes, short(stdout), short(stderr))...)
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

// plainVariable is set in the environment of tests that run as an ordinary user, and plainUID is in a range that distributions leave alone.
const (
	plainVariable = "SANDBOX_RUN_TEST_PLAIN"
	plainUID      = 61235
)

// TestOrdinaryUser runs the matrix (make test: an interpreter, a shell and a tool of ours) without privileges and without cgroups, in a
// copy of this very binary. PostgreSQL is not in it: a server needs shared memory, which that tier refuses. Nor is Rust, which mostly
// lies in the home of the user who installed it.
func TestOrdinaryUser(t *testing.T) {
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "executor-plain-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	home, binary := filepath.Join(dir, "home"), filepath.Join(dir, "executor.test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.Chmod(dir, 0o755), os.WriteFile(binary, self, 0o755), os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS("testdata")),
		os.Mkdir(home, 0o700), os.Lchown(home, plainUID, plainUID),
	)
	if err != nil {
		t.Fatal(err)
	}
	tests := "TestPython|TestShell|TestSQLite|TestRestrictedCommands|TestNoPostgres"
	if testenv.All() {
		tests += "|TestGo|TestJava|TestJavaScript|TestTypeScript|TestZsh|TestCustomLanguages"
	}
	cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", strconv.Itoa(plainUID), "--regid", strconv.Itoa(plainUID), "--clear-groups",
		binary, "-test.run", "^("+tests+")$", "-test.v", "-test.timeout", "50m")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + home, "TMPDIR=" + home, plainVariable + "=1",
		"CI=" + os.Getenv("CI"), testenv.AllVariable + "=" + os.Getenv(testenv.AllVariable), "SANDBOX_RUN_INIT=" + os.Getenv("SANDBOX_RUN_INIT")}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestPython/") {
		var failed []string
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "=== RUN") && !strings.Contains(line, "--- PASS") {
				failed = append(failed, line)
			}
		}
		t.Errorf("%v\n%s", err, strings.Join(failed, ""))
	}
}

// Where there can be no server, that is said.
func TestNoPostgres(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("of TestOrdinaryUser: with root there can be one")
	}
	_, err := realEngine(t).Execute(t.Context(), Request{Language: "postgres", Code: "select 1",
		Policy: Policy{Require: sandbox.TierNamespace}})
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "shared memory") {
		t.Errorf("%v", err)
	}
}
