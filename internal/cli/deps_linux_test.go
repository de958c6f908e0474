package cli

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testregistry"
)

// packageUser is a user with a registry and layers of their own.
type packageUser struct {
	t   *testing.T
	dir string
	env []string
}

func newPackageUser(t *testing.T, indexes map[string]string) *packageUser {
	t.Helper()
	dir := t.TempDir()
	return &packageUser{t, dir, append(os.Environ(), "SANDBOX_RUN_REGISTRIES_FILE="+testregistry.Config(t, indexes), "SANDBOX_RUN_SERVER=never",
		"SANDBOX_RUN_IMAGES="+filepath.Join(dir, "images"), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "SANDBOX_RUN_AUDIT_LOG=off")}
}

func (u *packageUser) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(u.t.Context(), filepath.Join(binDir, "sandbox-run"), args...)
	cmd.Env, cmd.Dir = u.env, u.dir
	return cmd
}

// run runs a command to its end.
func (u *packageUser) run(args ...string) (stdout, stderr string, code int) {
	u.t.Helper()
	cmd := u.command(args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	code = exitCode(u.t, cmd.Run())
	// Of the kit, which has no directory for coverage in an installing sandbox.
	return out.String(), strings.ReplaceAll(said.String(), "warning: GOCOVERDIR not set, no coverage data emitted\n", ""), code
}

var greeting = testregistry.Wheel{Name: "greeting", Version: "1.0", Files: map[string]string{"greeting.py": "WORD = 'hello'\n"}}

// TestDeps: a user installs, looks at what is there, locks it, and removes it.
func TestDeps(t *testing.T) {
	needRoot(t)
	s := testregistry.New(t, testregistry.PyPI(greeting))
	u := newPackageUser(t, map[string]string{"pypi": s.URL + "/simple/"})
	program := []string{"--lang", "python", "--code", "import greeting; print(greeting.WORD)"}
	expect := func(args []string, code int, stdout, stderr string) string {
		t.Helper()
		out, said, got := u.run(args...)
		if got != code || !strings.Contains(out, stdout) || !strings.Contains(said, stderr) || stdout == "" && out != "" || stderr == "" && said != "" {
			t.Errorf("%q: %d\n%s%s", args, got, out, said)
		}
		return out
	}
	expect([]string{"deps", "list"}, 0, "no packages are installed", "")
	expect(append([]string{"--deps", "greeting", "--lock", "a.lock"}, program...), 0, "hello\n", "")
	expect(append([]string{"--frozen", "--lock", "a.lock"}, program...), 0, "hello\n", "")
	expect(append([]string{"--frozen", "--lock", "none.lock"}, program...), 2, "", "--lock: none.lock does not exist; try: run it once without --frozen")
	expect(append([]string{"--frozen", "--deps", "greeting"}, program...), 2, "", "--frozen: the program has no lock")
	expect(append([]string{"--deps", "-r x"}, program...), 2, "", `--deps: "-r x" is an option`)
	expect(append([]string{"--deps", "absent"}, program...), 1, "", "install_error: the packages can not be installed")
	expect(append([]string{"--image", "x", "--deps", "greeting"}, program...), 127, "", "image pull x") // there is no such image
	expect([]string{"image", "list"}, 0, "there are no images", "")

	var list []struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(expect([]string{"deps", "list", "--json"}, 0, "greeting", "")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%v %v", err, list)
	}
	id := strings.TrimPrefix(list[1].ID, "sha256:")[:12]
	expect([]string{"deps", "show", id}, 0, "greeting", "")
	if lock, err := os.ReadFile(filepath.Join(u.dir, "a.lock")); err != nil || expect([]string{"deps", "lock", id}, 0, "sha256:", "") == "" || !json.Valid(lock) {
		t.Errorf("%v %s", err, lock)
	}
	expect([]string{"deps", "sbom", id}, 0, `"purl": "pkg:pypi/greeting@1.0"`, "")
	expect([]string{"deps", "doctor", "pypi"}, 0, "answers", "")
	expect([]string{"deps", "doctor", "nuget"}, 2, "", `"nuget" is no registry`)
	expect([]string{"deps", "rm", "ffffffffffff"}, 2, "", "there is none with such an id")
	expect([]string{"deps", "rm", id}, 0, "removed "+id, "")
	expect([]string{"deps", "prune"}, 0, "removed", "")
	expect([]string{"deps", "list"}, 0, "no packages are installed", "")
	s.Close()
	expect([]string{"deps", "doctor", "pypi"}, 1, "refused", "")
	expect(append([]string{"--deps", "greeting"}, program...), 1, "", "registry: 127.0.0.1")
}

// On a terminal, the header follows the installation, because the sandbox of the run is made after it. Without that sandbox there is no
// header, and the summary shows the tier.
func TestInstallOnTerminal(t *testing.T) {
	needRoot(t)
	s := testregistry.New(t, testregistry.PyPI(greeting))
	u := newPackageUser(t, map[string]string{"pypi": s.URL + "/simple/"})
	program := []string{"--lang", "python", "--code", "import greeting; print(greeting.WORD)"}
	for _, test := range []struct {
		deps string
		code int
		want []string // in this order
	}{
		{"greeting", 0, []string{"python 3.", " · tier container (native)\r\n", "hello\r\nsandbox-run: ok  exit 0", "  install "}},
		{"greeting", 0, []string{"python 3.", " · tier container (native)\r\n", "hello\r\nsandbox-run: ok  exit 0", "  install cached\r\n"}},
		{"absent", 1, []string{"No matching distribution", "\r\nsandbox-run: install_error  exit 1", "  tier container (native)\r\n",
			"why: the packages can not be installed"}},
	} {
		screen := newScreen(t)
		screen.env = append(u.env, screen.env...)
		code, shown := screen.run(append([]string{"--deps", test.deps}, program...)...)
		if code != test.code {
			t.Errorf("%s: exit code %d", test.deps, code)
		}
		rest := shown
		for _, w := range test.want {
			var found bool
			if _, rest, found = strings.Cut(rest, w); !found {
				t.Errorf("%s: %q is not in its place in\n%q", test.deps, w, shown)
				break
			}
		}
		if strings.Count(shown, "tier container (native)") != 1 || strings.Count(shown, "  install ") > 1 {
			t.Errorf("%s: a figure is missing or repeated in\n%q", test.deps, shown)
		}
	}
}

// TestInstallKilled: SIGKILL at any moment of an installation leaves no process, and nothing that the next one would take for whole.
func TestInstallKilled(t *testing.T) {
	needRoot(t)
	registry := testregistry.PyPI(greeting)
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond) // so that there are moments between two requests
		registry.ServeHTTP(w, r)
	}))
	u := newPackageUser(t, map[string]string{"pypi": s.URL + "/simple/"})
	program := []string{"--deps-refresh", "--deps", "greeting", "--lang", "python", "--code", "import greeting; print(greeting.WORD)"}
	times := 4
	if testenv.All() {
		times = 40
	}
	began := time.Now()
	if out, said, code := u.run(program...); code != 0 || out != "hello\n" {
		t.Fatalf("%d %s%s", code, out, said)
	}
	took := time.Since(began)
	for range times {
		cmd := u.command(program...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(took))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		u.awaitNoProcess()
	}
	if out, said, code := u.run(program...); code != 0 || out != "hello\n" {
		t.Errorf("%d %s%s", code, out, said)
	}
	if left, err := filepath.Glob(filepath.Join(u.dir, "cache/sandbox-run/deps/layer-*")); err != nil || len(left) > 0 {
		t.Errorf("%q %v", left, err)
	}
	if out, _, _ := u.run("deps", "list"); strings.Count(out, "greeting") != 1 {
		t.Errorf("%s", out)
	}
}

// awaitNoProcess waits until no process has the user's environment.
func (u *packageUser) awaitNoProcess() {
	u.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := ""
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range files {
			text, _ := os.ReadFile(f)
			if bytes.Contains(text, []byte("SANDBOX_RUN_IMAGES="+u.dir)) {
				left = f
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(end) {
			u.t.Fatalf("%s is still there", left)
		}
	}
}

// TestUselessLock: a file of --lock that says nothing is refused, and one that can not be written whole is not left.
func TestUselessLock(t *testing.T) {
	needRoot(t)
	s := testregistry.New(t, testregistry.PyPI(greeting))
	u := newPackageUser(t, map[string]string{"pypi": s.URL + "/simple/"})
	if err := os.WriteFile(filepath.Join(u.dir, "empty.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {"--deps", "greeting"}, {"--frozen"}} {
		out, said, code := u.run(append([]string{"--lang", "python", "--code", "print(1)", "--lock", "empty.lock"}, more...)...)
		if code != 2 || out != "" || !strings.Contains(said, "empty.lock is empty") {
			t.Errorf("%v: %d %s%s", more, code, out, said)
		}
	}
	small := filepath.Join(u.dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=4k"); err != nil {
		t.Skip(err)
	}
	defer func() { _ = unix.Unmount(small, 0) }()
	if err := os.WriteFile(filepath.Join(small, "other"), make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	_, said, code := u.run("--lang", "python", "--code", "import greeting", "--deps", "greeting", "--lock", "small/packages.lock")
	if _, err := os.Lstat(filepath.Join(small, "packages.lock")); code == 0 || !os.IsNotExist(err) || !strings.Contains(said, "no space left") {
		t.Errorf("%d %v %s", code, err, said)
	}
}

// TestProgressEscapes: the names of packages, which a lock or a manifest may choose, are no commands for a terminal.
func TestProgressEscapes(t *testing.T) {
	s := newScreen(t)
	p := &Progress{To: s.slave}
	p.Start("installing \x1b]0;evil\x07")
	s.waitFor(`| installing \x1b]0;evil\x07, 1s`)
	p.End()
}
