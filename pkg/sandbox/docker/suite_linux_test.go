package docker

import (
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

// claims are what a container of either engine has. Not claimed:
//   - roots: images are the only ones; and the host's own root
//   - phases: they share the container's pid namespace and cgroup
//   - disk apart: the scratch is memory
//   - bare, anybody: an engine shows /sys and mounts in its own way, and acts as nobody but the user's owner
func claims(e *engine) sandboxtest.Claims {
	c := sandboxtest.Claims{
		Tier: sandbox.TierContainer, Slack: 2 * time.Second,
		Has: []sandboxtest.Claim{
			sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Kernel, sandboxtest.Volumes, sandboxtest.Writable, sandboxtest.Nobody, sandboxtest.Network, sandboxtest.PTY, sandboxtest.DevTTY, sandboxtest.Freeze,
			sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Disk, sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Files, sandboxtest.Metrics,
		},
	}
	if e.name == "docker" { // Podman's tmpfs knows no number of inodes
		c.Has = append(c.Has, sandboxtest.Inodes)
	}
	return c
}

func TestConformance(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		testenv.NeedAll(t, "TestSmoke")
		// The long variants are for sandboxes that take milliseconds.
		t.Setenv(testenv.AllVariable, "")
		sandboxtest.Run(t, func(t *testing.T) sandbox.Backend { return e.backend(t) }, claims(e))
	})
}
