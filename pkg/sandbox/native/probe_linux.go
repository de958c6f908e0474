package native

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Probe reports the controls that this machine can enforce. It starts nothing; only Create proves that a sandbox works.
func (b *Backend) Probe(context.Context) sandbox.Isolation { return b.look().Clone() }

func (b *Backend) probe() sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	b.probeNamespaces(&iso)
	b.probeFilters(&iso)
	b.host.ProbeCgroups(&iso, true)
	b.host.ProbeDisk(&iso)
	iso.Enforce(sandbox.ControlOpenFiles, sandbox.ControlWall, sandbox.ControlOutput, sandbox.ControlCleanup)
	iso.Controls[sandbox.ControlCPUTime] = sandbox.Polled // to the millisecond; the kernel counts per process only
	iso.Grade()
	return iso
}

// namespaces lists the namespaces of a sandbox, with the file that shows that the kernel has them.
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
	if !b.host.Self.Privileged {
		iso.Enforce(sandbox.ControlRoot) // the mount helper has made a mount
		if reason, remedy := b.host.Self.OneID(); reason != "" {
			iso.Lack(sandbox.ControlUserNS, sandbox.Enforced, reason, remedy)
		}
		return
	}
	if reason, remedy := b.host.ProbeMounts(); reason != "" {
		iso.Lack(sandbox.ControlRoot, sandbox.Absent, reason, remedy)
	} else {
		iso.Enforce(sandbox.ControlRoot)
	}
}

func (b *Backend) probeFilters(iso *sandbox.Isolation) {
	iso.Enforce(sandbox.ControlNoNewPrivs, sandbox.ControlCapabilities)
	if _, err := b.host.Filter(b.policy(false, false)); err != nil {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Absent, err.Error(), "use a supported architecture")
	} else if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		iso.Lack(sandbox.ControlSeccomp, sandbox.Absent, "this kernel has no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER")
	} else {
		iso.Enforce(sandbox.ControlSeccomp)
	}
	b.host.ProbeLandlock(iso)
}

// obstacle returns the reason why sandboxes can not be made here at all, and the remedy; "" if they can.
func (b *Backend) obstacle() (reason, remedy string) {
	return b.host.Self.Obstacle(func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		_, err := b.mountHelperLocked()
		return err
	})
}
