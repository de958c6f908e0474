package helper

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/procstate"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
)

// measurement lists the controls that a program's process is measured to have.
type measurement struct {
	rlimits []initproto.Rlimit
	seen    []string
}

// Prepare reads the state of this process, once.
func (l *measurement) Prepare() { _, _ = procstate.Self() }

// Examine fails if a control is missing.
func (l *measurement) Examine(probe *seccomp.Probe) error {
	own, err := procstate.Self()
	if err != nil {
		return nil //nolint:nilerr // nothing could be measured, and the answer lists nothing
	}
	s, err := procstate.Read(probe.PID, nil)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	files := uint64(0)
	for _, r := range l.rlimits {
		if r.Resource == unix.RLIMIT_NOFILE {
			files = r.Soft
		}
	}
	for _, c := range []struct {
		control      string // as in package sandbox, which is not linked here
		shown, holds bool
	}{
		{"seccomp", true, s.Seccomp == unix.SECCOMP_MODE_FILTER && (s.Filters == 0 || s.Filters > own.Filters)},
		{"no_new_privileges", true, s.NoNewPrivs},
		{"no_capabilities", true, s.Capabilities == 0},
		{"open_files", files > 0, s.OpenFiles <= files},
		{"user_namespace", s.Hidden == nil, s.Namespaces[0] != own.Namespaces[0]},
		{"cgroup_namespace", s.Hidden == nil, s.Namespaces[len(s.Namespaces)-1] != own.Namespaces[len(s.Namespaces)-1]},
	} {
		switch {
		case !c.shown:
		case !c.holds:
			l.seen = nil
			return &spawn.Error{Stage: initproto.StageProbe, Detail: c.control + ": the started program does not have it", Errno: unix.ECANCELED}
		default:
			l.seen = append(l.seen, c.control)
		}
	}
	return nil
}
