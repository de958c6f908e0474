package docker

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// tiers are the runtimes that isolate by more than namespaces. All others are containers.
var tiers = []struct {
	part string // of the runtime's name
	tier sandbox.Tier
}{{"runsc", sandbox.TierGVisor}, {"gvisor", sandbox.TierGVisor}, {"kata", sandbox.TierMicroVM}}

// raiseTier gives a container the tier of its runtime, if it has all the controls of a container.
func raiseTier(iso *sandbox.Isolation, runtime string) {
	pids := iso.Controls[sandbox.ControlProcesses]
	if pids == sandbox.Polled { // see verifyLimits
		iso.Controls[sandbox.ControlProcesses] = sandbox.Enforced
	}
	iso.Grade()
	iso.Controls[sandbox.ControlProcesses] = pids
	for _, t := range tiers {
		if strings.Contains(runtime, t.part) && iso.Tier.AtLeast(sandbox.TierContainer) {
			iso.Tier = t.tier
		}
	}
}

// enforceCommon sets the controls that every container has by construction. Programs have a cgroup namespace of their own, whatever
// the container has (Podman has none on cgroups v1): the init makes it, and starts no program without.
func enforceCommon(iso *sandbox.Isolation) {
	iso.Enforce(sandbox.ControlPidNS, sandbox.ControlMountNS, sandbox.ControlNetNS, sandbox.ControlIPCNS, sandbox.ControlUTSNS,
		sandbox.ControlCgroupNS,
		sandbox.ControlSeccomp, sandbox.ControlCapabilities, sandbox.ControlOpenFiles,
		sandbox.ControlWall, sandbox.ControlOutput, sandbox.ControlCleanup)
	iso.Controls[sandbox.ControlCPUTime] = sandbox.Polled // to the millisecond; the kernel counts per process only
	iso.Lack(sandbox.ControlLandlock, sandbox.Absent, "the docker backend applies no Landlock rules", "--backend native")
	iso.Lack(sandbox.ControlMountNS, sandbox.Enforced,
		"volumes and the engine's own mounts are not nosuid and nodev: no_new_privs and the devices cgroup hold instead; the sandbox's own "+
			"cgroups and its helper's name are seen", "--backend native")
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced, "shared with memory: the scratch of a container is memory, and /workspace, /tmp and "+
		"$HOME have the limit each", "--backend native, or ask for --scratch memory")
}

// declareEngine declares the namespaces and the root: only the engine's machine shows whether they are the container's own.
func declareEngine(iso *sandbox.Isolation) {
	iso.Declare("the engine was asked for it; only its machine shows whether it is the container's own", "--backend native",
		sandbox.ControlPidNS, sandbox.ControlMountNS, sandbox.ControlNetNS, sandbox.ControlIPCNS, sandbox.ControlUTSNS, sandbox.ControlRoot)
}

// declaredIsolation is the isolation that a daemon claims.
func (d *daemon) declaredIsolation(runtime string) sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	enforceCommon(&iso)
	iso.Enforce(sandbox.ControlUserNS, sandbox.ControlRoot, sandbox.ControlNoNewPrivs)
	for _, c := range []struct {
		has     bool
		control sandbox.Control
		name    string
	}{
		{d.info.MemoryLimit, sandbox.ControlMemory, "memory"}, {d.info.PidsLimit, sandbox.ControlProcesses, "process"},
		{d.info.CPUCfsQuota || d.podman, sandbox.ControlCPU, "CPU"}, {d.info.SwapLimit, sandbox.ControlSwap, "swap"},
	} {
		if c.has {
			iso.Enforce(c.control)
		} else {
			iso.Lack(c.control, sandbox.Absent, "the daemon says that its kernel has no "+c.name+" limits",
				"docker info says what is missing (cgroup controllers, or delegation where the daemon is rootless)")
		}
	}
	declareEngine(&iso)
	raiseTier(&iso, runtime)
	return iso
}

const tmpfsMagic = 0x01021994

// verify compares the helper's measurements with what was asked for.
func verify(d *daemon, want *settings, r *containerproto.Ready) sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	enforceCommon(&iso)
	l := want.Limits
	check := func(control sandbox.Control, holds bool, reason, remedy string) {
		if holds {
			iso.Enforce(control)
		} else {
			iso.Lack(control, sandbox.Absent, reason, remedy)
		}
	}
	check(sandbox.ControlUserNS, r.UserNS, "no user namespace could be made in the container: "+r.Problem,
		"allow user namespaces on the daemon's machine (sysctl kernel.unprivileged_userns_clone=1, "+
			"kernel.apparmor_restrict_unprivileged_userns=0)")
	check(sandbox.ControlPidNS, r.PID == 1, "the helper is not the first process of the container",
		"a runtime that gives containers pid namespaces")
	check(sandbox.ControlRoot, r.ReadOnly, "the container's root is writable", "a runtime that honours ReadonlyRootfs")
	check(sandbox.ControlNoNewPrivs, r.NoNewPrivs, "no_new_privs is not set in the container", "a runtime that honours no-new-privileges")
	only := !slices.ContainsFunc(r.Interfaces, func(name string) bool { return !slices.Contains(quietInterfaces, name) })
	check(sandbox.ControlNetNS, only, "the container has network interfaces: "+strings.Join(r.Interfaces, ", "),
		"a runtime that honours the network mode none")
	if r.Seccomp != 2 {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Enforced,
			"programs have our filter, but the container's helper has none: the daemon takes no profile from us", "a daemon on this machine")
	}
	verifyLimits(d, want, r, &iso, check)
	scratch := len(r.Scratch) > 0
	for _, room := range r.Scratch {
		scratch = scratch && room.Kind == tmpfsMagic && room.NoSuid && room.Bytes > 0 && room.Bytes <= roundUp(int64(l.Disk))
		if room.Inodes > int64(l.Inodes)+1 && !slices.ContainsFunc(iso.Missing,
			func(g sandbox.Gap) bool { return strings.Contains(g.Reason, "inodes") }) {
			iso.Lack(sandbox.ControlDisk, sandbox.Enforced, "the number of inodes is not limited: the engine knows no such option", "Docker Engine")
		}
	}
	if !scratch {
		iso.Lack(sandbox.ControlDisk, sandbox.Absent, fmt.Sprintf("the scratch is not what was asked for: %+v", r.Scratch),
			"a runtime that honours the sizes of tmpfs")
	}
	runtime := want.Runtime
	if !d.runsOtherKernel(r) {
		runtime = "" // whatever its name, the container runs on the machine's kernel
	}
	declareEngine(&iso)
	raiseTier(&iso, runtime)
	return iso
}

// runsOtherKernel reports whether a container runs on another kernel than the daemon's machine. A runtime's name is no proof of it.
func (d *daemon) runsOtherKernel(r *containerproto.Ready) bool {
	return r.Release != "" && d.info.KernelVersion != "" && r.Release != d.info.KernelVersion
}

// quietInterfaces are the loopback, and those that the kernel makes in every network namespace when their modules are loaded: they are
// down.
var quietInterfaces = []string{"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}

const page = 64 << 10 // the largest page size of any architecture

func roundUp(n int64) int64 { return (n + page - 1) / page * page }

// verifyLimits checks the container's cgroup as the helper reads it. A runtime with a kernel of its own shows none; there the limits are
// those of the whole runtime, as the daemon has set them.
func verifyLimits(d *daemon, want *settings, r *containerproto.Ready, iso *sandbox.Isolation,
	check func(sandbox.Control, bool, string, string)) {
	l := want.Limits
	if r.Cgroup == 0 {
		for _, t := range tiers {
			if strings.Contains(want.Runtime, t.part) && d.runsOtherKernel(r) && d.info.MemoryLimit && d.info.PidsLimit && d.info.CPUCfsQuota {
				iso.Enforce(sandbox.ControlMemory, sandbox.ControlCPU)
				iso.Lack(sandbox.ControlProcesses, sandbox.Polled,
					"the runtime's kernel counts no processes: the machine's limit bounds the runtime's own, and a program that reaches it ends the "+
						"sandbox", "another runtime, if that matters more")
				if d.info.SwapLimit {
					iso.Enforce(sandbox.ControlSwap)
				} else {
					iso.Lack(sandbox.ControlSwap, sandbox.Absent, "the kernel does not limit swap", "boot with swapaccount=1, or switch swap off")
				}
				return
			}
		}
		for _, control := range []sandbox.Control{sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU, sandbox.ControlSwap} {
			check(control, false, "the container shows no cgroup in which the limit could be seen", "a daemon whose containers have /sys/fs/cgroup")
		}
		return
	}
	limit := func(control sandbox.Control, name string, got, want int64) {
		check(control, got >= 0 && got <= want, fmt.Sprintf("the container's %s limit is %d, not %d", name, got, want),
			"docker info says what the kernel lacks")
	}
	limit(sandbox.ControlMemory, "memory", r.Memory, int64(l.Memory))
	limit(sandbox.ControlProcesses, "process", r.Pids, int64(l.Processes)+reservedTasks)
	quota := int64(-1)
	if r.CPUQuota > 0 && r.CPUPeriod > 0 {
		quota = int64(math.Round(float64(r.CPUQuota) / float64(r.CPUPeriod) * 1000))
	}
	limit(sandbox.ControlCPU, "CPU", quota, int64(math.Ceil(l.CPUs*1000))+1)
	swap := int64(0) // v2 counts it apart
	if r.Cgroup == 1 {
		swap = int64(l.Memory)
	}
	check(sandbox.ControlSwap, r.Swap >= 0 && r.Swap <= swap, "the kernel does not limit swap", "boot with swapaccount=1, or switch swap off")
}
