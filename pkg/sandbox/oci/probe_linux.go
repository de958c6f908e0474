package oci

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// Probe says what a sandbox should have here. It looks, and starts no container: what one has really got is found out when it
// is made (verify).
func (b *Backend) Probe(context.Context) sandbox.Isolation { return b.look().Clone() }

// walls are what a container consists of.
var walls = []sandbox.Control{
	sandbox.ControlUserNS, sandbox.ControlPidNS, sandbox.ControlMountNS, sandbox.ControlNetNS, sandbox.ControlIPCNS, sandbox.ControlUTSNS, sandbox.ControlCgroupNS,
	sandbox.ControlRoot, sandbox.ControlSeccomp, sandbox.ControlNoNewPrivs, sandbox.ControlCapabilities,
}

func (b *Backend) probe() sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	iso.Runtime = b.runtime.name
	reason, remedy := b.lacking()
	for _, c := range walls {
		if reason != "" {
			iso.Lack(c, sandbox.Absent, reason, remedy)
		} else {
			iso.Enforce(c)
		}
	}
	if b.runtime.kernel && reason == "" {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Declared, b.runtime.name+"'s kernel does not show the host what its programs have; refused calls are not counted", "--runtime runc, if that matters more")
		iso.Declare(b.runtime.name+"'s kernel does not show the host what its programs have", "--runtime runc, if that matters more", walls...)
	}
	if one, remedy := b.self.OneID(); one != "" && reason == "" {
		iso.Lack(sandbox.ControlUserNS, sandbox.Enforced, one, remedy)
	}
	b.probeLandlock(&iso)
	b.probeCgroups(&iso)
	if err := scratch.DiskAvailable(b.opts.CacheDir); err != nil {
		lackDisk(&iso, err.Error())
	} else {
		iso.Enforce(sandbox.ControlDisk)
	}
	if iso.Enforce(sandbox.ControlOpenFiles); b.runtime.kernel {
		iso.Declare(b.runtime.name+"'s kernel does not show the host what its programs have", "--runtime runc, if that matters more", sandbox.ControlOpenFiles)
	}
	iso.Enforce(sandbox.ControlWall, sandbox.ControlOutput, sandbox.ControlCleanup)
	iso.Controls[sandbox.ControlCPUTime] = sandbox.Polled
	b.grade(&iso)
	return iso
}

// grade derives the tier from the controls. A kernel in between is worth its own tier only when every wall of a container and
// every limit that it can keep is there, too.
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

// obstacle finds out what stands in the way of any container.
func (b *Backend) obstacle() (reason, remedy string) {
	r := b.runtime
	if r.check(context.Background(), b.opts.CacheDir); r.reason != "" {
		return r.reason, r.remedy
	}
	if v := b.cgroups.Version(); r.unified && v != "v2" {
		return fmt.Sprintf("%s needs cgroups v2, and this machine has %s ones", r.name, v), "boot with systemd.unified_cgroup_hierarchy=1, or use --runtime runc"
	}
	if !b.self.Privileged {
		if r.rooted != "" {
			return r.name + " needs root: " + r.rooted, "run as root, or use --runtime runc or --backend native, which do without"
		}
		if one, more := b.self.OneID(); one != "" && r.kernel {
			return fmt.Sprintf("%s's kernel is root of its container, and the program is not: a user without root needs a second id for that: %v", r.name, b.self.NoGrant), more + "; or use --runtime runc"
		}
		if r.kernel && min(b.self.Grant.UIDs.Count, b.self.Grant.GIDs.Count) < 3 {
			return fmt.Sprintf("%s needs three subordinate ids of a user without root, and there are %d", r.name, min(b.self.Grant.UIDs.Count, b.self.Grant.GIDs.Count)), "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; or use --runtime runc"
		}
		if b.counts.Short() && r.kernel {
			return fmt.Sprintf("nothing but a cgroup limits what %s's kernel takes, and this user has none that limits memory, processes and processors: %s", r.name, b.lacks()), "delegate one (docs/OPERATING.md), run as root, or use --runtime runc"
		}
		return b.self.Obstacle(func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.stewardLocked()
		})
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return "the kernel refuses the mount calls of Linux 5.12: " + err.Error(), "use a newer kernel, or allow open_tree, fsopen, move_mount and mount_setattr"
	}
	_ = unix.Close(fd)
	return "", ""
}

// lacks are the reasons why cgroups do not limit.
func (b *Backend) lacks() string {
	var reasons []string
	for _, gap := range b.cgroups.Missing() {
		if gap.Reason != "" && !slices.Contains(reasons, gap.Reason) {
			reasons = append(reasons, gap.Reason)
		}
	}
	return strings.Join(reasons, "; ")
}

func (b *Backend) probeLandlock(iso *sandbox.Isolation) {
	switch abi := rootfs.LandlockABI(); {
	case b.runtime.kernel:
		iso.Lack(sandbox.ControlLandlock, sandbox.Absent, b.runtime.name+"'s kernel has no Landlock", "--runtime runc, if that is worth more than a kernel in between")
	case abi < rootfs.MinLandlockABI:
		iso.Lack(sandbox.ControlLandlock, sandbox.Absent, fmt.Sprintf("this kernel has Landlock ABI %d; %d is needed", abi, rootfs.MinLandlockABI), "use Linux 5.19 or newer with landlock in lsm=")
	default:
		iso.Enforce(sandbox.ControlLandlock)
	}
}

// lackDisk: the disk limit holds, and takes from the memory limit.
func lackDisk(iso *sandbox.Isolation, why string) {
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced, "shared with memory: "+why, "see the reason, or ask for --scratch memory")
}

func (b *Backend) probeCgroups(iso *sandbox.Isolation) {
	gaps := map[string]cgroup.Gap{}
	for _, gap := range b.cgroups.Missing() {
		gaps[gap.Control] = gap
	}
	for _, c := range []struct {
		controller cgroup.Controller
		name       string
		control    sandbox.Control
	}{
		{cgroup.Memory, "memory", sandbox.ControlMemory}, {cgroup.Pids, "pids", sandbox.ControlProcesses},
		{cgroup.CPU, "cpu", sandbox.ControlCPU}, {cgroup.Swap, "swap", sandbox.ControlSwap},
	} {
		if b.cgroups.Has(c.controller) {
			iso.Enforce(c.control)
			continue
		}
		gap := gaps[c.name]
		if c.controller == cgroup.Swap && !b.counts.Memory {
			gap = gaps["memory"] // one thing, and one reason
		}
		if gap.Reason == "" {
			gap.Reason = "no usable cgroup controller"
		}
		if gap.Remedy == "" {
			gap.Remedy = "enable the cgroup controller and make it writable"
		}
		state, instead := sandbox.Absent, ""
		if !b.self.Privileged && !b.runtime.kernel { // whose processes are not seen
			state, instead = b.counts.Instead(c.controller, b.self.NProc)
		}
		iso.Lack(c.control, state, gap.Reason+instead, gap.Remedy)
	}
	if b.runtime.kernel && iso.Controls[sandbox.ControlProcesses] == sandbox.Enforced {
		iso.Lack(sandbox.ControlProcesses, sandbox.Polled, fmt.Sprintf("%s counts no processes: the host's limit bounds what serves them, and whoever reaches it ends the sandbox", b.runtime.name), "--runtime runc, if that matters more")
	}
}
