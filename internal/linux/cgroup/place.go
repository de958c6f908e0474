//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// looker is the little that detection asks of the file system.
type looker interface {
	exists(path string) bool
	writable(dir string) error // nil when directories can be made in dir
	read(path string) (string, error)
}

type realLooker struct{}

func (realLooker) exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

func (realLooker) writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

func (realLooker) read(path string) (string, error) {
	b, err := os.ReadFile(path) //nolint:gosec // a path below a cgroup mount, built by us
	return string(b), err
}

// placeV2 chooses the v2 directory in which `sandbox-run` is made, and says which controllers it will have there.
// served are the roles that v1 hierarchies already fill.
//
// The rule it works around: a v2 group that hands domain controllers to its children may hold no process itself, and
// our own group holds us. So:
//
//   - hybrid, no controller wanted from v2: our own group (and lazily: see detect). Without controllers the rule does not apply.
//   - otherwise: the nearest ancestor that holds no process (or is the machine's root, which is exempt) and that has the
//     controllers. Nearest, so that as few as possible of the caller's limits are left behind.
//
// SEAM (next milestone): rootless and systemd delegation. A delegated subtree means moving the supervisor into a leaf of
// its own, or asking systemd over D-Bus for a transient scope with Delegate=yes; either yields a directory, which is
// what this function returns. Callers need not change.
func placeV2(mount, own string, served role, look looker) (place string, roles role, why map[role]string) {
	why = map[role]string{}
	var want role
	for _, c := range controllerRoles {
		if c.v2 && served&c.role == 0 {
			want |= c.role
		}
	}
	all, err := look.read(mount + "/cgroup.controllers")
	if err != nil {
		why[roleCore] = fmt.Sprintf("cannot read %s/cgroup.controllers: %v", mount, errno(err))
		return "", 0, why
	}
	want &= wordRoles(all)
	if want == 0 {
		return own, 0, why
	}

	reason := ""
	for dir := own; ; dir = filepath.Dir(dir) {
		has, err := look.read(dir + "/cgroup.controllers")
		switch {
		case err != nil:
			reason = fmt.Sprintf("cannot read %s/cgroup.controllers: %v", dir, errno(err))
		case wordRoles(has)&want&^roleIO != want&^roleIO: // io is nice to have: only a counter
			reason = fmt.Sprintf("%s does not have all controllers (it has %q)", dir, strings.TrimSpace(has))
		case look.exists(dir + "/cgroup.events"): // the machine's root has no such file
			if procs, err := look.read(dir + "/cgroup.procs"); err != nil || strings.TrimSpace(procs) != "" {
				reason = fmt.Sprintf("%s holds processes, so its children can not have controllers", dir)
				break
			}
			fallthrough
		default:
			err := look.writable(dir)
			if err == nil {
				return dir, wordRoles(has) & want, why
			}
			reason = fmt.Sprintf("cannot create groups in %s: %v", dir, err)
		}
		if dir == mount || len(dir) <= len(mount) {
			break
		}
	}
	for _, c := range controllerRoles {
		if want&c.role != 0 {
			why[c.role] = reason
		}
	}
	// Kill and freeze still work below our own group: they are no controllers.
	return own, 0, why
}

func wordRoles(words string) role {
	var roles role
	for _, name := range strings.Fields(words) {
		for _, c := range controllerRoles {
			if c.v2 && c.name == name {
				roles |= c.role
			}
		}
	}
	return roles
}

// errno strips what os wraps around an errno: our messages name the path themselves.
func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
