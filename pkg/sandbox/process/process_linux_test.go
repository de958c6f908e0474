package process

import (
	"os"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m)) }

func newBackend(t testing.TB) *Backend {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: cgroups of its own")
	}
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) sandbox.Backend { return newBackend(t) }, sandboxtest.Claims{
		Tier: sandbox.TierProcess,
		Has:  []sandboxtest.Claim{sandboxtest.Programs, sandboxtest.PTY, sandboxtest.Memory, sandboxtest.Processes, sandboxtest.OpenFiles, sandboxtest.CPUTime},
	})
}
