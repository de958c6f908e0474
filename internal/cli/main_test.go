package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

var update = flag.Bool("update", false, "write the golden files of the help texts")

// binDir holds the executables under test: those of SANDBOX_RUN_TEST_BIN, which count coverage, or
// fresh ones.
var binDir string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if worker := flag.Lookup("test.fuzzworker"); worker != nil && worker.Value.String() == "true" {
		return m.Run() // fuzz targets need no executables
	}
	if binDir = os.Getenv("SANDBOX_RUN_TEST_BIN"); binDir == "" && !testing.Short() {
		dir, err := os.MkdirTemp("", "sandbox-run-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		// Tests that run as another user execute files in it.
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binDir = dir
	}
	// Variables of the user must not change the tests. Those of the test scripts stay.
	for _, entry := range os.Environ() {
		if name, _, _ := cutVariable(entry); name != "" && !strings.HasPrefix(name, environmentStem+"TEST_") {
			os.Unsetenv(name)
		}
	}
	// The go command of some tests keeps its cache, so that it does not compile everything again.
	if cache, err := os.UserCacheDir(); err == nil && os.Getenv("GOCACHE") == "" {
		os.Setenv("GOCACHE", filepath.Join(cache, "go-build"))
	}
	// Tests do not write to the user's logs and caches. They share a cache of toolchains.
	own, err := os.MkdirTemp("", "sandbox-run-test-user-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(own)
	for _, name := range []string{"XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", app.ImagesVariable} {
		os.Setenv(name, filepath.Join(own, name))
	}
	cache := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "sandbox-run")
	if warm := testenv.WarmDir(""); warm != "" {
		if err := errors.Join(os.MkdirAll(cache, 0o755), os.Symlink(warm, filepath.Join(cache, "warm"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	// Tests do not use the user's local server.
	os.Setenv(wire.SocketVariable, filepath.Join(own, "none.sock"))
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// build makes the executables as `make build` does, so that tests measure the start-up of the real executables.
func build(dir string) error {
	packages := []string{
		"build", "-trimpath", "-ldflags", "-s -w", "-tags", "thin", "-o", dir + "/",
		"../../cmd/sandbox-run", "../../cmd/sandbox-rund", "../../cmd/sandbox-kit",
	}
	if runtime.GOOS == "linux" {
		packages = append(packages, "../../cmd/sandbox-init")
	}
	cmd := exec.Command("go", packages...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

func cutVariable(entry string) (name, value string, ours bool) {
	for i := range entry {
		if entry[i] == '=' && i > 0 {
			name, value = entry[:i], entry[i+1:]
			break
		}
	}
	if len(name) <= len(environmentStem) || name[:len(environmentStem)] != environmentStem {
		return "", "", false
	}
	return name, value, true
}

// binary returns the path of the executable under test.
func binary(t testing.TB) string {
	testenv.NeedSystem(t)
	return filepath.Join(binDir, CommandName)
}

// needRoot skips a test without root.
func needRoot(t *testing.T) {
	t.Helper()
	testenv.NeedRoot(t)
}

// TestScript runs testdata/script/*.txtar against the real executable and the real backends.
//
//	exits CODE COMMAND…   like exec, and checks that the exit code is CODE
//	signs RECEIPT RUN     signs a receipt of result.json and body.json with the key in $XDG_STATE_HOME
//	appends N | api       appends the entries of N runs, or of a server, to the audit log in $XDG_STATE_HOME
//	holds NAME            uses a workspace of $XDG_DATA_HOME until the script ends
//	registry              starts an image registry, and sets $REGISTRY to its HOST:PORT
//	offers NAME DIR…      adds an image to the registry, with a layer for each directory
//	uses NAME             uses an image until the script ends
//	archives DIR FILE     makes an archive of a directory
//	stores                copies the images test/box and test/python into $SANDBOX_RUN_IMAGES
//	[root]                true for root on Linux: the native backend works
func TestScript(t *testing.T) {
	testenv.NeedSystem(t)
	testscript.Run(t, scripts(nil, "testdata/script"))
}

// scripts returns the parameters for the scripts of a directory, or for some files. setup may be nil.
func scripts(setup func(*testscript.Env) error, dir string, files ...string) testscript.Params {
	return testscript.Params{
		Dir: dir, Files: files,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", binDir+string(os.PathListSeparator)+os.Getenv("PATH"))
			for _, name := range []string{"HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"} {
				env.Setenv(name, os.Getenv(name))
			}
			for _, name := range []string{"XDG_STATE_HOME", "XDG_DATA_HOME", app.ImagesVariable} {
				env.Setenv(name, filepath.Join(env.WorkDir, name))
			}
			if dir := os.Getenv("GOCOVERDIR"); dir != "" {
				env.Setenv("GOCOVERDIR", dir)
			}
			env.Setenv(wire.SocketVariable, os.Getenv(wire.SocketVariable))
			if setup != nil {
				return setup(env)
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "root" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return runtime.GOOS == "linux" && os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"appends":  appendEntries,
			"signs":    signReceipt,
			"holds":    holdWorkspace,
			"registry": startRegistry,
			"offers":   offerImage,
			"archives": archiveDirectory,
			"uses":     useImage,
			"stores":   storeImages,
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE COMMAND…")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					var exit *exec.ExitError
					if !errors.As(err, &exit) {
						ts.Fatalf("%v", err)
					}
					got = exit.ExitCode()
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	}
}

// TestHelp compares the help texts with the golden files; -update writes these.
func TestHelp(t *testing.T) {
	for name, args := range map[string][]string{
		"root": {"--help"}, "exec": {"exec", "-h"}, "doctor": {"doctor", "--help"}, "gc": {"help", "gc"}, "version": {"version", "-h"},
		"languages": {"languages", "-h"}, "completion": {"completion", "-h"}, "man": {"man", "-h"}, "page": {"man"},
		"audit": {"audit", "-h"}, "audit-tail": {"audit", "tail", "-h"}, "audit-query": {"help", "audit", "query"},
		"audit-verify": {"audit", "verify", "-h"},
		"audit-prune":  {"audit", "prune", "-h"},
		"receipt":      {"receipt", "-h"}, "receipt-verify": {"receipt", "verify", "-h"},
		"deps": {"deps", "-h"}, "deps-list": {"deps", "list", "-h"}, "deps-show": {"deps", "show", "-h"}, "deps-lock": {"deps", "lock", "-h"},
		"deps-sbom": {"deps", "sbom", "-h"}, "deps-rm": {"deps", "rm", "-h"}, "deps-prune": {"deps", "prune", "-h"},
		"deps-doctor": {"deps", "doctor", "-h"},
		"workspace":   {"workspace", "-h"}, "workspace-list": {"workspace", "list", "-h"}, "workspace-show": {"workspace", "show", "-h"},
		"workspace-rm": {"workspace", "rm", "--help"},
		"template":     {"template", "-h"}, "template_new": {"template", "new", "--help"},
		"image": {"image", "-h"}, "image-pull": {"image", "pull", "-h"}, "image-update": {"image", "update", "-h"},
		"image-build":      {"image", "build", "-h"},
		"image-dockerfile": {"image", "dockerfile", "-h"}, "image-import": {"image", "import", "-h"}, "image-export": {"image", "export", "-h"},
		"image-list": {"image", "ls", "-h"}, "image-inspect": {"help", "image", "inspect"}, "image-tag": {"image", "tag", "-h"},
		"image-rm": {"image", "rm", "-h"}, "image-prune": {"image", "prune", "-h"},
		"repl": {"repl", "-h"}, "session": {"session", "-h"}, "session-create": {"session", "create", "-h"},
		"session-exec": {"session", "exec", "-h"}, "session-attach": {"session", "attach", "-h"}, "session-list": {"session", "list", "-h"},
		"session-files": {"session", "files", "-h"}, "session-cp": {"session", "cp", "-h"}, "session-fork": {"help", "session", "fork"},
		"session-interrupt": {"session", "interrupt", "-h"}, "session-restart": {"session", "restart", "-h"},
		"session-close": {"session", "close", "-h"},
		"mcp":           {"mcp", "-h"}, "mcp-config": {"mcp", "config", "-h"},
		"serve": {"serve", "-h"}, "key": {"key", "-h"}, "key-create": {"key", "create", "-h"}, "key-list": {"key", "list", "-h"},
		"key-show": {"key", "show", "-h"}, "key-rotate": {"key", "rotate", "-h"}, "key-rm": {"help", "key", "rm"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := exec.Command(binary(t), args...).Output()
			if err != nil {
				t.Fatal(err)
			}
			if full, err := exec.Command(filepath.Join(binDir, fullName), args...).Output(); err != nil || string(full) != string(got) {
				t.Errorf("the full executable says (%v):\n%s", err, full)
			}
			golden := filepath.Join("testdata", "help", name+".txt")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("help of %s is not %s (go test -update writes it):\n%s", name, golden, got)
			}
		})
	}
}
