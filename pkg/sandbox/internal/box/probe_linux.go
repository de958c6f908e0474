package box

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// ProbeDisk reports whether the disk limit is separate from the memory limit.
func (h *Host) ProbeDisk(iso *sandbox.Isolation) {
	if err := scratch.DiskAvailable(h.Options.CacheDir); err != nil {
		addDiskGap(iso, err.Error())
	} else {
		iso.Enforce(sandbox.ControlDisk)
	}
}

// ProbeLandlock reports whether this kernel has Landlock.
func (h *Host) ProbeLandlock(iso *sandbox.Isolation) {
	if abi := rootfs.LandlockABI(); abi < rootfs.MinLandlockABI {
		iso.Lack(sandbox.ControlLandlock, sandbox.Absent,
			fmt.Sprintf("this kernel has Landlock ABI %d; %d is needed", abi, rootfs.MinLandlockABI),
			"use Linux 5.19 or newer with landlock in lsm=")
	} else {
		iso.Enforce(sandbox.ControlLandlock)
	}
}

// ProbeMounts tries the mount calls that a root is made with; both results are "" where the kernel has them.
func (h *Host) ProbeMounts() (reason, remedy string) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
		return "", ""
	}
	if errors.Is(err, unix.EMFILE) {
		return err.Error(), "raise the limit on open files of this process (ulimit -n)"
	}
	return "the kernel refuses the mount calls of Linux 5.12: " + err.Error(),
		"use a newer kernel, or allow open_tree, fsopen, move_mount and mount_setattr"
}

// controllers are the cgroup controllers that enforce limits.
var controllers = []struct {
	controller cgroup.Controller
	name       string
	control    sandbox.Control
	remedy     string
}{
	{cgroup.Memory, "memory", sandbox.ControlMemory, "enable the memory cgroup controller (cgroup_enable=memory) and make it writable"},
	{cgroup.Pids, "pids", sandbox.ControlProcesses, "enable the pids cgroup controller and make it writable"},
	{cgroup.CPU, "cpu", sandbox.ControlCPU, "enable the cpu cgroup controller and make it writable"},
	{cgroup.Swap, "swap", sandbox.ControlSwap, "boot with swapaccount=1, or switch swap off"},
}

// ProbeCgroups reports which limits cgroups enforce, and how the others are enforced. polled: the limit poller can see
// the processes of a sandbox.
func (h *Host) ProbeCgroups(iso *sandbox.Isolation, polled bool) {
	gaps := map[string]cgroup.Gap{}
	for _, gap := range h.Cgroups.Missing() {
		gaps[gap.Control] = gap
	}
	for _, c := range controllers {
		if h.Cgroups.Has(c.controller) {
			iso.Enforce(c.control)
			if peak := gaps["peak"].Reason; c.controller == cgroup.Memory && peak != "" {
				iso.Lack(c.control, sandbox.Enforced, peak, "use Linux 5.19 or newer")
			}
			continue
		}
		gap := gaps[c.name]
		if c.controller == cgroup.Swap && !h.Counts.Memory {
			gap = gaps["memory"] // one cause for both
		}
		if gap.Reason == "" {
			gap.Reason = "no usable cgroup controller"
		}
		if gap.Remedy == "" {
			gap.Remedy = c.remedy
		}
		state, instead := sandbox.Absent, ""
		if polled {
			state, instead = h.Counts.instead(c.controller, h.Self.NProc)
		}
		iso.Lack(c.control, state, gap.Reason+instead, gap.Remedy)
	}
}
