package docker

import (
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// expect are the abilities of a container of either engine. Missing:
//   - roots: images are the only ones; and the host's own root
//   - phases: they share the container's pid namespace and cgroup
//   - disk apart: the scratch is memory
//   - bare, other owners: an engine shows /sys and mounts in its own way, and acts as no other user than the volume's owner
func expect(e *engine) conformance.Expectations {
	c := conformance.Expectations{
		Tier: sandbox.TierContainer, Slack: 2 * time.Second,
		Has: []conformance.Expectation{
			conformance.Programs, conformance.Isolated, conformance.Kernel, conformance.Volumes, conformance.Writable, conformance.UniqueIDs,
			conformance.Network, conformance.PTY, conformance.DevTTY,
			conformance.Memory, conformance.Processes, conformance.Disk, conformance.OpenFiles, conformance.CPUTime, conformance.Files,
			conformance.Metrics,
		},
	}
	if e.name == "docker" { // Podman's tmpfs knows no number of inodes
		c.Has = append(c.Has, conformance.Inodes)
	}
	return c
}

func TestConformance(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		testenv.NeedAll(t, "TestSmoke")
		// The long variants are for sandboxes that take milliseconds.
		t.Setenv(testenv.AllVariable, "")
		conformance.Run(t, func(t *testing.T) sandbox.Backend { return e.backend(t) }, expect(e))
	})
}
