package docker

import (
	"testing"

	"github.com/moby/moby/api/types/system"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// The tier depends on the helper's measurements, never on a runtime's name.
func TestVerify(t *testing.T) {
	const host, guest = "6.1.0-host", "4.4.0"
	limits := sandbox.Limits{Memory: 64 * sandbox.MiB, Processes: 10, CPUs: 1, Disk: sandbox.MiB, Inodes: 100}
	for name, c := range map[string]struct {
		runtime string
		change  func(*containerproto.Ready)
		tier    sandbox.Tier
		lacks   sandbox.Control
	}{
		"as asked for": {"", func(*containerproto.Ready) {}, sandbox.TierContainer, ""},
		"gVisor": {"runsc", func(r *containerproto.Ready) { r.Release, r.Cgroup = guest, 0 }, sandbox.TierGVisor,
			sandbox.ControlProcesses},
		"called gVisor, the host's kernel": {"runsc", func(*containerproto.Ready) {}, sandbox.TierContainer, ""},
		"called gVisor, nothing is seen":   {"runsc", func(r *containerproto.Ready) { r.Cgroup = 0 }, sandbox.TierNone, sandbox.ControlMemory},
		"called gVisor, says nothing":      {"runsc", func(r *containerproto.Ready) { r.Release = "" }, sandbox.TierContainer, ""},
		"kata":                             {"kata", func(r *containerproto.Ready) { r.Release = guest }, sandbox.TierMicroVM, ""},
		"called kata, the host's kernel":   {"kata", func(*containerproto.Ready) {}, sandbox.TierContainer, ""},
		"no user namespace":                {"", func(r *containerproto.Ready) { r.UserNS = false }, sandbox.TierNone, sandbox.ControlUserNS},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{info: system.Info{KernelVersion: host, MemoryLimit: true, PidsLimit: true, CPUCfsQuota: true, SwapLimit: true}}
			r := &containerproto.Ready{
				PID: 1, UserNS: true, NoNewPrivs: true, Seccomp: 2, ReadOnly: true, Interfaces: []string{"lo"}, Cgroup: 2, Release: host,
				Memory: int64(limits.Memory), Pids: int64(limits.Processes) + reservedTasks, CPUQuota: 100, CPUPeriod: 100,
				Scratch: []containerproto.Room{{At: "/tmp", Kind: tmpfsMagic, NoSuid: true, Bytes: int64(limits.Disk), Inodes: 100}},
			}
			c.change(r)
			iso := verify(d, &settings{Limits: limits, Runtime: c.runtime}, r)
			if c.tier == sandbox.TierNone { // whatever is left, it is no container
				if iso.Tier.AtLeast(sandbox.TierContainer) {
					t.Errorf("tier %s", iso.Tier)
				}
			} else if iso.Tier != c.tier {
				t.Errorf("tier %s, want %s: %+v", iso.Tier, c.tier, iso.Missing)
			}
			if c.lacks != "" && iso.Controls[c.lacks] == sandbox.Enforced {
				t.Errorf("%s is said to be enforced", c.lacks)
			}
		})
	}
}
