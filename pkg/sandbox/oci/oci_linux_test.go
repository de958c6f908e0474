package oci

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

// Victims of the crash tests are told by these which runtime to use, and where to keep their disks.
const (
	runtimeVariable = "SANDBOXTEST_RUNTIME"
	cacheVariable   = "SANDBOXTEST_CACHE"
)

func TestMain(m *testing.M) {
	code := sandboxtest.Main(m, func() (sandbox.Backend, error) {
		return New(Options{Runtime: os.Getenv(runtimeVariable), CacheDir: os.Getenv(cacheVariable)})
	})
	if binDir != "" {
		_ = os.RemoveAll(binDir)
	}
	os.Exit(code)
}

var binDir string // made by binaries

// binaries are the command and its init, linked statically: the test binary may need libraries that a root does not have.
var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-oci-")
	if err != nil {
		return "", err
	}
	binDir = dir
	cmd := exec.Command("go", "build", "-tags", "thin", "-o", dir+"/", "../../../cmd/sandbox-run", "../../../cmd/sandbox-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return dir, os.Chmod(dir, 0o755)
})

// newBackend is one with a cache directory of its own, so that loop devices over it are its alone.
func newBackend(t *testing.T, runtime string) (b *Backend, cache string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: this backend has no other way")
	}
	if _, err := exec.LookPath(byName(runtime).file); err != nil {
		t.Skipf("needs %s: %s", runtime, byName(runtime).get)
	}
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDBOX_RUN_INIT", filepath.Join(bin, "sandbox-init"))
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cache = filepath.Join(dir, "cache")
	t.Setenv(runtimeVariable, runtime)
	t.Setenv(cacheVariable, cache)
	b, err = New(Options{Runtime: runtime, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, cache
}

// Each runtime once, with a little of everything. The whole suites are for SANDBOX_RUN_TEST_ALL.
func TestSmoke(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			m := sandbox.NewManager(b, sandbox.Options{})
			ctx := context.Background()
			id, err := m.Create(ctx, sandbox.Spec{Require: byName(runtime).tier})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/in", Mode: 0o644, Data: []byte("put")}}); err != nil {
				t.Fatal(err)
			}
			run := func(script string, stdin string) *sandbox.Result {
				t.Helper()
				res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{Stdin: strings.NewReader(stdin)})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			res := run("id -u; pwd; cat in; cat; echo x > /usr/x || echo refused; echo kept > out; echo err >&2; exit 3", " typed\n")
			if got := string(res.Stdout.Bytes()); got != "1000\n/workspace\nput typed\nrefused\n" || res.Exit.Code != 3 || res.Verdict != sandbox.VerdictNonzeroExit || !strings.Contains(string(res.Stderr.Bytes()), "err\n") {
				t.Errorf("%q, %q, %+v", got, res.Stderr.Bytes(), res.Exit)
			}
			if res.Isolation.Tier != byName(runtime).tier || res.Isolation.Runtime != runtime || res.Metrics.MemoryPeak == 0 {
				t.Errorf("%+v, %+v", res.Isolation, res.Metrics)
			}
			// The scratch goes on, the processes do not; and a signal is the program's own.
			if res = run("cat out; kill -TERM $$", ""); string(res.Stdout.Bytes()) != "kept\n" || res.Verdict != sandbox.VerdictSignaled || res.Exit.Signal != 15 {
				t.Errorf("%q, %s, %+v", res.Stdout.Bytes(), res.Verdict, res.Exit)
			}
			if err := errors.Join(m.Delete(ctx, id), m.Close(), b.Close()); err != nil {
				t.Error(err)
			}
			for _, h := range hierarchies() {
				if left, _ := filepath.Glob(filepath.Join(h.own, groupPrefix+"*")); len(left) > 0 && !livesOn(left) {
					t.Errorf("left: %q", left)
				}
			}
		})
	}
}

// livesOn: they are somebody else's, who lives.
func livesOn(groups []string) bool {
	return !slices.ContainsFunc(groups, func(g string) bool {
		claim, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(g), groupPrefix), "-")
		return !registry.Alive(supervisor.RuntimeDir(), claim)
	})
}

// claims are what each runtime is held to.
func claims(runtime, cache string) sandboxtest.Claims {
	c := sandboxtest.Claims{
		Tier: byName(runtime).tier, ScratchDir: cache,
		Has: []sandboxtest.Claim{
			sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Kernel, sandboxtest.Bare, sandboxtest.Volumes, sandboxtest.Writable, sandboxtest.Anybody, sandboxtest.Roots, sandboxtest.HostRoot, sandboxtest.Nobody, sandboxtest.Network, sandboxtest.PTY, sandboxtest.Freeze,
			sandboxtest.Phases, sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Disk, sandboxtest.Inodes, sandboxtest.DiskApart, sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Metrics, sandboxtest.Files,
		},
	}
	if runtime == "runsc" {
		// Its kernel counts otherwise: the sentry's own memory, threads and time are among what the host sees, there is no
		// limit on processes, and when memory runs out it is the sentry that ends. What writes to volumes has an id of its own.
		// Without a network it still has a loopback.
		c.Has = slices.DeleteFunc(c.Has, func(c sandboxtest.Claim) bool {
			return slices.Contains([]sandboxtest.Claim{sandboxtest.Kernel, sandboxtest.HostRoot, sandboxtest.Writable, sandboxtest.Network, sandboxtest.Metrics, sandboxtest.Processes, sandboxtest.PTY}, c)
		})
	}
	return c
}

func TestConformance(t *testing.T) {
	if !sandboxtest.All() {
		t.Skip("the whole suite is for SANDBOX_RUN_TEST_ALL; TestSmoke is its short form")
	}
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, cache := newBackend(t, runtime)
			sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, claims(runtime, cache))
		})
	}
}

func TestCrash(t *testing.T) {
	if !sandboxtest.All() {
		t.Skip("for SANDBOX_RUN_TEST_ALL")
	}
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			sandboxtest.Crash(t, b, byName(runtime).tier)
		})
	}
}
