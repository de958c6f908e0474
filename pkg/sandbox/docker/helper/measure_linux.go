package helper

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/procstate"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
)

// look names the controls that a program's process is seen to have. It is an error if one is seen to be missing.
func look(pid int, rlimits []initproto.Rlimit) (seen []string, err error) {
	own, err := procstate.Self()
	if err != nil {
		return nil, nil //nolint:nilerr // nothing is seen, which is what the answer says
	}
	s, err := procstate.Read(pid)
	if err != nil {
		return nil, nil //nolint:nilerr // the same
	}
	files := uint64(0)
	for _, l := range rlimits {
		if l.Resource == unix.RLIMIT_NOFILE {
			files = l.Soft
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
			return nil, &spawn.Error{Stage: initproto.StageProbe, Detail: c.control + ": the started program does not have it", Errno: unix.ECANCELED}
		default:
			seen = append(seen, c.control)
		}
	}
	return seen, nil
}
