package docker

import (
	"os"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

// claims are what a container of either engine has. Not claimed:
//   - roots: images are the only ones; and the host's own root
//   - phases: they share the container's pid namespace and cgroup
//   - disk apart: the scratch is memory
func claims() sandboxtest.Claims {
	return sandboxtest.Claims{
		Tier: sandbox.TierContainer,
		Has: []sandboxtest.Claim{
			sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Volumes, sandboxtest.Nobody, sandboxtest.Network, sandboxtest.PTY, sandboxtest.Freeze,
			sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Disk, sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Files, sandboxtest.Metrics,
		},
	}
}

func TestConformance(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		if os.Getenv("X") == "" && !sandboxtest.All() {
			t.Skip("the whole suite runs in make test-all")
		}
		sandboxtest.Run(t, func(t *testing.T) sandbox.Backend { return e.backend(t) }, claims())
	})
}
