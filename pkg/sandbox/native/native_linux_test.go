package native

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m)) }

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the native backend makes namespaces and cgroups as root")
	}
}

// cacheDir is a private one, so that loop devices over it are ours alone.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "cache")
}

func newBackend(t testing.TB, o Options) *Backend {
	t.Helper()
	needRoot(t)
	if o.CacheDir == "" {
		o.CacheDir = cacheDir(t)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	needRoot(t)
	dir := cacheDir(t)
	sandboxtest.Run(t, func(t *testing.T) sandbox.Backend { return newBackend(t, Options{CacheDir: dir}) }, sandboxtest.Claims{
		Tier: sandbox.TierContainer, ScratchDir: dir,
		Has: []sandboxtest.Claim{
			sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Volumes, sandboxtest.Roots, sandboxtest.Network, sandboxtest.PTY, sandboxtest.Freeze,
			sandboxtest.Phases, sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Disk, sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Metrics,
		},
	})
}
