package native

import (
	"context"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// Probe says what this machine can enforce. It looks, and starts nothing; that a sandbox really
// comes up is proven by creating one.
func (b *Backend) Probe(context.Context) sandbox.Isolation { return b.look().Clone() }

func (b *Backend) probe() sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	b.probeNamespaces(&iso)
	b.probeFilters(&iso)
	b.probeCgroups(&iso)
	if err := scratch.DiskAvailable(b.opts.CacheDir); err != nil {
		lackDisk(&iso, err.Error())
	} else {
		iso.Enforce(sandbox.ControlDisk)
	}
	iso.Enforce(sandbox.ControlOpenFiles, sandbox.ControlWall, sandbox.ControlOutput, sandbox.ControlCleanup)
	iso.Controls[sandbox.ControlCPUTime] = sandbox.Polled // to the millisecond; the kernel counts per process only
	iso.Grade()
	return iso
}

// namespaces that a sandbox consists of, by the file that shows the kernel has them.
var namespaces = []struct {
	file    string
	control sandbox.Control
}{
	{"user", sandbox.ControlUserNS}, {"pid", sandbox.ControlPidNS}, {"mnt", sandbox.ControlMountNS}, {"net", sandbox.ControlNetNS},
	{"ipc", sandbox.ControlIPCNS}, {"uts", sandbox.ControlUTSNS}, {"cgroup", sandbox.ControlCgroupNS},
}

func (b *Backend) probeNamespaces(iso *sandbox.Isolation) {
	reason, remedy := b.obstacle()
	for _, ns := range namespaces {
		if reason != "" {
			iso.Lack(ns.control, sandbox.Absent, reason, remedy)
		} else if _, err := os.Lstat("/proc/self/ns/" + ns.file); err != nil {
			iso.Lack(ns.control, sandbox.Absent, "this kernel has no "+ns.file+" namespaces", "use a kernel that has")
		} else {
			iso.Enforce(ns.control)
		}
	}
	if reason != "" {
		iso.Lack(sandbox.ControlRoot, sandbox.Absent, reason, remedy)
		return
	}
	if !b.self.Privileged {
		iso.Enforce(sandbox.ControlRoot) // the steward has mounted
		if reason, remedy := b.self.OneID(); reason != "" {
			iso.Lack(sandbox.ControlUserNS, sandbox.Enforced, reason, remedy)
		}
		return
	}
	if fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC); errors.Is(err, unix.EMFILE) {
		iso.Lack(sandbox.ControlRoot, sandbox.Absent, err.Error(), "raise the limit on open files of this process (ulimit -n)")
	} else if err != nil {
		iso.Lack(sandbox.ControlRoot, sandbox.Absent, "the kernel refuses the mount calls of Linux 5.12: "+err.Error(), "use a newer kernel, or allow open_tree, fsopen, move_mount and mount_setattr")
	} else {
		_ = unix.Close(fd)
		iso.Enforce(sandbox.ControlRoot)
	}
}

// lackDisk: the disk limit holds, and takes from the memory limit.
func lackDisk(iso *sandbox.Isolation, why string) {
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced, "shared with memory: "+why, "see the reason, or ask for --scratch memory")
}

func (b *Backend) probeFilters(iso *sandbox.Isolation) {
	iso.Enforce(sandbox.ControlNoNewPrivs, sandbox.ControlCapabilities)
	if _, err := b.filter(b.policy(false, false)); err != nil {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Absent, err.Error(), "use a supported architecture")
	} else if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Absent, "this kernel has no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER")
	} else {
		iso.Enforce(sandbox.ControlSeccomp)
	}
	if abi := rootfs.LandlockABI(); abi < rootfs.MinLandlockABI {
		iso.Lack(sandbox.ControlLandlock, sandbox.Absent, "this kernel has Landlock ABI "+strconv.Itoa(abi)+"; "+strconv.Itoa(rootfs.MinLandlockABI)+" is needed", "use Linux 5.19 or newer with landlock in lsm=")
	} else {
		iso.Enforce(sandbox.ControlLandlock)
	}
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
		remedy     string
	}{
		{cgroup.Memory, "memory", sandbox.ControlMemory, "enable the memory cgroup controller (cgroup_enable=memory) and make it writable"},
		{cgroup.Pids, "pids", sandbox.ControlProcesses, "enable the pids cgroup controller and make it writable"},
		{cgroup.CPU, "cpu", sandbox.ControlCPU, "enable the cpu cgroup controller and make it writable"},
		{cgroup.Swap, "swap", sandbox.ControlSwap, "boot with swapaccount=1, or switch swap off"},
	} {
		if b.cgroups.Has(c.controller) {
			iso.Enforce(c.control)
			if peak := gaps["peak"].Reason; c.controller == cgroup.Memory && peak != "" {
				iso.Lack(c.control, sandbox.Enforced, peak, "use Linux 5.19 or newer")
			}
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
			gap.Remedy = c.remedy
		}
		state, instead := b.counts.Instead(c.controller, b.self.NProc)
		iso.Lack(c.control, state, gap.Reason+instead, gap.Remedy)
	}
}

// obstacle says why sandboxes can not be made here at all, and what would change that; "" when they can.
func (b *Backend) obstacle() (reason, remedy string) {
	return b.self.Obstacle(func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		_, err := b.workshopLocked()
		return err
	})
}
