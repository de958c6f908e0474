package measure

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/procstate"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// Forbidden is a path where a program's process tries to make a character device with the number 0, which every user may
// make in a writable directory (the kernel calls it a whiteout). Only Landlock refuses it: /dev/shm is a tmpfs that
// every user may write to. The name is random: programs of the same phase could take a known one.
func Forbidden() string { return "/dev/shm/.sandbox-run-probe-" + rand.Text() }

// Program describes the isolation that a program must have.
type Program struct {
	Backend      string
	Asked        sandbox.Isolation // of its sandbox; only enforced controls are measured
	Group        *cgroup.Group     // its cgroup, or nil
	Limits       cgroup.Limits     // that its cgroup enforces; zero is none
	Rlimits      []initproto.Rlimit
	WritableRoot bool
	// Require and Strict are the sandbox's. A program with a weaker isolation is not executed.
	Require sandbox.Tier
	Strict  bool
	// Ready, if it is set, makes the last settings while the process waits to be examined, and returns the limits that are then in force.
	// An error ends the process.
	Ready func() (cgroup.Limits, error)
	// Grade derives the tier of a report that has changed.
	Grade func(*sandbox.Isolation)

	prepared bool
	over     []overrun
	waits    int              // the process whose place was read in advance
	place    *procstate.Place // of it
	found    sandbox.Isolation
}

// namespaces are the controls in the order of procstate.Namespaces.
var namespaces = [len(procstate.Namespaces)]sandbox.Control{
	sandbox.ControlUserNS, sandbox.ControlPidNS, sandbox.ControlMountNS, sandbox.ControlNetNS, sandbox.ControlIPCNS, sandbox.ControlUTSNS,
	sandbox.ControlCgroupNS,
}

// Measurable lists the controls that are measured.
func Measurable() []sandbox.Control {
	return append(sandbox.WallControls(), sandbox.ControlLandlock, sandbox.ControlMemory, sandbox.ControlSwap, sandbox.ControlProcesses,
		sandbox.ControlCPU,
		sandbox.ControlOpenFiles)
}

// findings are missing controls, with the values that were found instead.
type findings []string

func (f *findings) check(iso *sandbox.Isolation, c sandbox.Control, holds bool, format string, args ...any) {
	if !holds && iso.Controls[c] == sandbox.Enforced {
		*f = append(*f, fmt.Sprintf("%s: %s", c, fmt.Sprintf(format, args...)))
	}
}

// Prepare reads the values that the program's process is compared with: the state of this process, and the limits of the
// cgroup, which were set before.
func (p *Program) Prepare() {
	_, _ = procstate.Self()
	if p.Ready != nil {
		return // the limits are not in force yet
	}
	if p.Group != nil {
		p.over = p.overruns()
	}
	p.prepared = true
}

// PrepareFork is Prepare for a fork that waits for its program: it also reads the namespaces and cgroups of the fork,
// which the fork can not change any more. pid is its process id, or 0.
func (p *Program) PrepareFork(pid int) {
	p.Prepare()
	if place, err := procstate.ReadPlace(pid); err == nil {
		p.waits, p.place = pid, &place
	}
}

// Examine measures the program's process. An error names the required controls that are missing.
func (p *Program) Examine(probe *seccomp.Probe) error {
	if p.Ready != nil {
		limits, err := p.Ready()
		if err != nil {
			return err
		}
		p.Limits, p.Ready = limits, nil
	}
	if !p.prepared {
		p.Prepare()
	}
	iso := p.Asked.Clone()
	own, err := procstate.Self()
	var s procstate.State
	if err == nil {
		var known *procstate.Place
		if probe.PID == p.waits {
			known = p.place
		}
		s, err = procstate.Read(probe.PID, known)
	}
	if err != nil {
		iso.Declare("the kernel does not show the program's process: "+err.Error(), "a /proc that shows all processes", Measurable()...)
		return p.settle(iso)
	}
	var missing findings
	missing.check(&iso, sandbox.ControlSeccomp, s.Seccomp == unix.SECCOMP_MODE_FILTER && (s.Filters == 0 || s.Filters > own.Filters),
		"mode %d with %d filters, of which %d are the supervisor's", s.Seccomp, s.Filters, own.Filters)
	missing.check(&iso, sandbox.ControlNoNewPrivs, s.NoNewPrivs, "not set")
	missing.check(&iso, sandbox.ControlCapabilities, s.Capabilities == 0, "%#x", s.Capabilities)
	if s.Hidden != nil {
		iso.Declare("the kernel does not show it: "+s.Hidden.Error(), "",
			append(namespaces[:], sandbox.ControlRoot, sandbox.ControlLandlock, sandbox.ControlOpenFiles)...)
	}
	for n, c := range namespaces {
		missing.check(&iso, c, s.Namespaces[n] != own.Namespaces[n], "it is the supervisor's own")
	}
	r := s.Root
	missing.check(&iso, sandbox.ControlRoot, r.Device != own.Root.Device || r.Inode != own.Root.Inode, "it is the supervisor's own")
	missing.check(&iso, sandbox.ControlRoot, (r.ReadOnly || p.WritableRoot) && r.NoSuid &&
		r.NoDev, "read-only %v, nosuid %v, nodev %v", r.ReadOnly, r.NoSuid, r.NoDev)
	missing.check(&iso, sandbox.ControlLandlock, probe.Tried != 0, "a device could be made in /dev/shm")
	if probe.Tried != unix.EACCES || !r.SharedMemory {
		iso.Declare(fmt.Sprintf("the attempt that only Landlock refuses could not be made: %v", probe.Tried), "", sandbox.ControlLandlock)
	}
	files, processes := p.rlimit(unix.RLIMIT_NOFILE), p.rlimit(unix.RLIMIT_NPROC)
	missing.check(&iso, sandbox.ControlOpenFiles, s.OpenFiles <= files, "%d, %d were asked for", s.OpenFiles, files)
	if p.Limits.Pids == 0 { // no cgroup limits processes
		missing.check(&iso, sandbox.ControlProcesses, s.Processes <= processes, "%d, %d were asked for", s.Processes, processes)
	}
	if p.Group != nil {
		for _, c := range limited {
			missing.check(&iso, c, p.Group.ContainsProcess(s.Cgroups), "the program is not in its cgroup")
		}
		for _, o := range p.over {
			missing.check(&iso, o.control, false, "%s", o.text)
		}
	}
	return p.conclude(iso, missing)
}

// rlimit is the requested soft limit; 0 is none.
func (p *Program) rlimit(resource uint32) uint64 {
	for _, l := range p.Rlimits {
		if l.Resource == resource {
			return l.Soft
		}
	}
	return 0
}

// conclude keeps a report without missing controls.
func (p *Program) conclude(iso sandbox.Isolation, missing findings) error {
	if len(missing) > 0 {
		return &sandbox.Error{Backend: p.Backend, Op: "measure the started program", Stage: "isolation", Hint: "sandbox-run doctor",
			Err: errors.New(strings.Join(slices.Compact(missing), "; "))}
	}
	return p.settle(iso)
}

// Failure is the error of a start for the caller.
func (p *Program) Failure(err error) error {
	if told := new(*sandbox.Error); errors.As(err, told) || errors.Is(err, sandbox.ErrRefused) {
		return err
	}
	if e := new(*spawn.Error); p.Strict && errors.As(err, e) && (*e).Stage == initproto.StageProbe && errors.Is((*e).Errno, unix.EOPNOTSUPP) {
		if iso := p.Isolation(false); iso.Check(p.Require, true) != nil {
			return iso.Check(p.Require, true)
		}
	}
	return faults.Start(p.Backend, err)
}

// ExamineLimits is Examine for a program that the host does not see: only the limits around it are read back.
func (p *Program) ExamineLimits() error {
	iso := p.Asked.Clone()
	var missing findings
	if p.Group != nil {
		for _, o := range p.overruns() {
			missing.check(&iso, o.control, false, "%s", o.text)
		}
	}
	return p.conclude(iso, missing)
}

// limited are the controls that a cgroup enforces.
var limited = []sandbox.Control{sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU, sandbox.ControlSwap}

// settle keeps a report. An error says that it is not enough for --strict.
func (p *Program) settle(iso sandbox.Isolation) error {
	p.Grade(&iso)
	p.found = iso
	if !p.Strict {
		return nil
	}
	return iso.Check(p.Require, true)
}

// Isolation is the measured isolation. For a program that was not measured, examined is false and the requested controls
// are declared.
func (p *Program) Isolation(examined bool) sandbox.Isolation {
	if !examined {
		iso := p.Asked.Clone()
		iso.Declare("the program was not looked at: it ended before, or the kernel has no listener for its filter", "use Linux 5.9 or newer",
			Measurable()...)
		_ = p.settle(iso) // the caller checks
	}
	return p.found
}

// overrun is a limit that differs from the requested one.
type overrun struct {
	control sandbox.Control
	text    string
}

// overruns reads the limits back from the kernel, which may have rounded them down.
func (p *Program) overruns() (list []overrun) {
	now, swap, err := p.Group.ReadLimits()
	if err != nil {
		for _, c := range limited {
			list = append(list, overrun{c, err.Error()})
		}
		return list
	}
	check := func(c sandbox.Control, want, got float64, show func(float64) any) {
		switch {
		case want == 0 || got > 0 && got <= want:
		case got == 0:
			list = append(list, overrun{c, fmt.Sprintf("there is no limit, %v was asked for", show(want))})
		default:
			list = append(list, overrun{c, fmt.Sprintf("the limit is %v, %v was asked for", show(got), show(want))})
		}
	}
	number := func(n float64) any { return n }
	const least = 0.01 // of a processor: the kernel's minimum
	check(sandbox.ControlMemory, float64(p.Limits.Memory), float64(now.Memory), func(n float64) any { return sandbox.Size(n) })
	check(sandbox.ControlProcesses, float64(p.Limits.Pids), float64(now.Pids), number)
	cpus := p.Limits.CPU
	if cpus > 0 {
		cpus = max(cpus+0.5e-5, least) // it is set in steps
	}
	check(sandbox.ControlCPU, cpus, now.CPU, number)
	if p.Limits.Memory > 0 && !swap {
		list = append(list, overrun{sandbox.ControlSwap, "swap is not limited"})
	}
	return list
}
