package box

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Rlimits are the resource limits of every process. A cgroup counts processes and memory better; these bound the other
// resources. largest is the maximum size of a file; 0 is no limit but the disk's.
func Rlimits(l sandbox.Limits, largest sandbox.Size) []initproto.Rlimit {
	files := uint64(l.OpenFiles)
	const mib = 1 << 20
	limits := []initproto.Rlimit{
		// 1, not 0: a core handler behind a pipe ignores 0 (R10).
		{Resource: unix.RLIMIT_CORE, Soft: 1, Max: 1},
		{Resource: unix.RLIMIT_NOFILE, Soft: files, Max: files},
		{Resource: unix.RLIMIT_MEMLOCK, Soft: 8 * mib, Max: 8 * mib},
		{Resource: unix.RLIMIT_MSGQUEUE, Soft: 819200, Max: 819200},
		{Resource: unix.RLIMIT_SIGPENDING, Soft: 4096, Max: 4096},
		{Resource: unix.RLIMIT_NICE, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_RTPRIO, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_STACK, Soft: 8 * mib, Max: unix.RLIM_INFINITY},
	}
	if largest > 0 {
		limits = append(limits, initproto.Rlimit{Resource: unix.RLIMIT_FSIZE, Soft: uint64(largest), Max: uint64(largest)})
	}
	return limits
}

// Within lowers limits to those of this process: higher ones need a capability that root may not have.
func Within(limits []initproto.Rlimit) []initproto.Rlimit {
	for i := range limits {
		l := &limits[i]
		var own unix.Rlimit
		if unix.Getrlimit(int(l.Resource), &own) == nil {
			l.Max = min(l.Max, own.Max)
			l.Soft = min(l.Soft, l.Max)
		}
	}
	return limits
}

// Rlimits are the resource limits of a process of the phase. They include the number of processes only where no cgroup
// counts it.
func (p *Phase) Rlimits(l sandbox.Limits) []initproto.Rlimit {
	i := p.Instance
	limits := Rlimits(l, i.Spec.VolumeCap())
	if !i.Host.Counts.Pids && i.Host.Self.NProc {
		n := uint64(l.Processes)
		if i.ID.Stay {
			n += uint64(spawn.Threads(p.InitPID)) // the init has the same id
		}
		limits = append(limits, initproto.Rlimit{Resource: unix.RLIMIT_NPROC, Soft: n, Max: n})
	}
	return Within(limits)
}
