package oci

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Probe reports the expected isolation of a sandbox. It starts no container: verify checks the isolation of each
// container when it is made.
func (b *Backend) Probe(context.Context) sandbox.Isolation { return b.look().Clone() }

func (b *Backend) probe() sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	iso.Runtime = b.runtime.name
	reason, remedy := b.obstacle()
	walls := sandbox.WallControls()
	for _, c := range walls {
		if reason != "" {
			iso.Lack(c, sandbox.Absent, reason, remedy)
		} else {
			iso.Enforce(c)
		}
	}
	if b.runtime.kernel && reason == "" {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Declared, b.runtime.name+
			"'s kernel does not show the host what its programs have; refused calls are not counted", "--runtime runc, if that matters more")
		iso.Declare(b.runtime.name+"'s kernel does not show the host what its programs have", "--runtime runc, if that matters more", walls...)
	}
	if one, remedy := b.host.Self.OneID(); one != "" && reason == "" {
		iso.Lack(sandbox.ControlUserNS, sandbox.Enforced, one, remedy)
	}
	b.probeLandlock(&iso)
	b.probeCgroups(&iso)
	b.host.ProbeDisk(&iso)
	if iso.Enforce(sandbox.ControlOpenFiles); b.runtime.kernel {
		iso.Declare(b.runtime.name+"'s kernel does not show the host what its programs have", "--runtime runc, if that matters more",
			sandbox.ControlOpenFiles)
	}
	iso.Enforce(sandbox.ControlWall, sandbox.ControlOutput, sandbox.ControlCleanup)
	iso.Controls[sandbox.ControlCPUTime] = sandbox.Polled
	b.grade(&iso)
	return iso
}

// grade derives the tier from the controls. A kernel of the runtime's own gets its tier only with every control of a
// container, and with every limit that it can enforce.
func (b *Backend) grade(iso *sandbox.Isolation) {
	pids := iso.Controls[sandbox.ControlProcesses]
	if b.runtime.kernel && pids == sandbox.Polled {
		iso.Controls[sandbox.ControlProcesses] = sandbox.Enforced // see probeCgroups
	}
	iso.Grade()
	iso.Controls[sandbox.ControlProcesses] = pids
	if iso.Tier == sandbox.TierContainer {
		iso.Tier = b.runtime.tier
	}
}

// findObstacle returns the reason why no container is possible.
func (b *Backend) findObstacle() (reason, remedy string) {
	r := b.runtime
	if r.check(context.Background(), b.host.Options.CacheDir); r.reason != "" {
		return r.reason, r.remedy
	}
	if v := b.host.Cgroups.Version(); r.unified && v != "v2" {
		return fmt.Sprintf("%s needs cgroups v2, and this machine has %s ones", r.name, v),
			"boot with systemd.unified_cgroup_hierarchy=1, or use --runtime runc"
	}
	if !b.host.Self.Privileged {
		if r.rooted != "" {
			return r.name + " needs root: " + r.rooted, "run as root, or use --runtime runc or --backend native, which do without"
		}
		if one, more := b.host.Self.OneID(); one != "" && r.kernel {
			return fmt.Sprintf("%s's kernel is root of its container, and the program is not: a user without root needs a second id "+
				"for that: %v", r.name, b.host.Self.NoGrant), more + "; or use --runtime runc"
		}
		if r.kernel && min(b.host.Self.Grant.UIDs.Count, b.host.Self.Grant.GIDs.Count) < 3 {
			return fmt.Sprintf("%s needs three subordinate ids of a user without root, and there are %d", r.name,
					min(b.host.Self.Grant.UIDs.Count, b.host.Self.Grant.GIDs.Count)),
				"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; or use --runtime runc"
		}
		if b.host.Counts.Short() && r.kernel {
			return fmt.Sprintf("nothing but a cgroup limits what %s's kernel takes, and this user has none that limits memory, "+
				"processes and processors: %s", r.name, b.cgroupGaps()), "delegate one (docs/OPERATING.md), run as root, or use --runtime runc"
		}
		return b.host.Self.Obstacle(func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.startHelperLocked()
		})
	}
	return b.host.ProbeMounts()
}

// cgroupGaps lists the reasons why cgroups do not limit.
func (b *Backend) cgroupGaps() string {
	var reasons []string
	for _, gap := range b.host.Cgroups.Missing() {
		if gap.Reason != "" && !slices.Contains(reasons, gap.Reason) {
			reasons = append(reasons, gap.Reason)
		}
	}
	return strings.Join(reasons, "; ")
}

func (b *Backend) probeLandlock(iso *sandbox.Isolation) {
	if !b.runtime.kernel {
		b.host.ProbeLandlock(iso)
		return
	}
	iso.Lack(sandbox.ControlLandlock, sandbox.Absent, b.runtime.name+"'s kernel has no Landlock",
		"--runtime runc, if that is worth more than a kernel in between")
}

func (b *Backend) probeCgroups(iso *sandbox.Isolation) {
	b.host.ProbeCgroups(iso, !b.host.Self.Privileged && !b.runtime.kernel) // the host does not see the processes of that kernel
	if b.runtime.kernel && iso.Controls[sandbox.ControlProcesses] == sandbox.Enforced {
		iso.Lack(sandbox.ControlProcesses, sandbox.Polled,
			b.runtime.name+" counts no processes: the host's limit bounds what serves them, and a program that reaches it ends the sandbox",
			"--runtime runc, if that matters more")
	}
}
