//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostFiles is the access to the file system that detection needs. The kernel answers about permissions, for this process's
// effective ids. They are never concluded from the user id: root may lack them (a read-only or foreign tree), other users
// may have them.
type hostFiles interface {
	exists(path string) bool
	writable(dir string) error  // nil when directories can be made in dir
	openable(path string) error // nil when the file can be opened for writing: it is opened
	read(path string) (string, error)
	subdirs(dir string) []string
	euid() int
	pid() int
}

type realFiles struct{}

func (realFiles) exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

func (realFiles) writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

func (realFiles) openable(path string) error {
	fd, err := openRetry(unix.AT_FDCWD, path, unix.O_WRONLY)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func (realFiles) read(path string) (string, error) {
	b, err := os.ReadFile(path) //nolint:gosec // a path below a cgroup mount, built by us
	return string(b), err
}

func (realFiles) subdirs(dir string) []string {
	names, _ := subdirs(unix.AT_FDCWD, dir) // used for explanations only
	return names
}

func (realFiles) euid() int { return os.Geteuid() }
func (realFiles) pid() int  { return os.Getpid() }

// placing is the directory of `sandbox-run` in the v2 tree and the controllers there.
type placing struct {
	dir       string // "" for nowhere
	roles     role   // the controllers it will have
	moveFirst bool   // dir is this process's own group: it has to move to a leaf first
	why       map[role]trouble
}

// trouble is the reason why a controller is missing, and the remedy.
type trouble struct{ reason, remedy string }

// limits are the controllers that limits need. io is optional: it only counts.
const limits = roleCPU | roleMemory | rolePids

// placeV2 chooses the v2 directory in which `sandbox-run` is made, and says which controllers it will have there.
// served are the roles that v1 hierarchies already fill.
//
// The kernel's rule: a v2 group that hands domain controllers to its children may hold no process itself, and
// this process's own group holds this process. So placeV2 chooses:
//
//   - hybrid, no controller needed from v2: the own group (made on demand: see detect). Without controllers the rule does
//     not apply.
//   - Options.MoveToLeaf is set, the own group is writable and holds no other process: the own group; the process then moves
//     to a leaf (see moveToLeaf).
//   - otherwise: the nearest ancestor that holds no process (or is the machine's root, which is exempt), that is
//     writable and that has all the controllers or, failing that, the most. The nearest keeps most of
//     the caller's limits in force.
//
// Only ancestors are possible: without root, moving a process requires write access to the cgroup.procs of the
// nearest group above its old and its new group. No process can be moved into a delegated subtree from outside.
func placeV2(mount, own string, served role, moving bool, host hostFiles) placing {
	p := placing{why: map[role]trouble{}}
	var want role
	for _, c := range controllerRoles {
		if c.v2 && served&c.role == 0 {
			want |= c.role
		}
	}
	all, err := host.read(mount + "/cgroup.controllers")
	if err != nil {
		p.why[roleCore] = trouble{reason: fmt.Sprintf("cannot read %s/cgroup.controllers: %v", mount, errno(err))}
		return p
	}
	want &= wordRoles(all)

	reason := ""
	for dir := own; want != 0; dir = filepath.Dir(dir) {
		if !oursInside(mount, dir) {
			roles, alone, why := checkPlace(dir, want, moving && dir == own, host)
			if why != "" {
				reason = why
			} else if p.dir == "" || hasMoreControllers(roles, p.roles) {
				p.dir, p.roles, p.moveFirst = dir, roles, alone
			}
			if p.dir != "" && p.roles&limits == want&limits {
				break
			}
		}
		if dir == mount || len(dir) <= len(mount) {
			break
		}
	}
	if lacking := want &^ p.roles &^ roleIO; lacking != 0 {
		t := trouble{reason: reason, remedy: remedyV2(host, p.roles)}
		if p.dir != "" {
			t.reason = p.dir + " does not have it"
		} else if outside := delegatedElsewhere(mount, own, host); outside != "" {
			t.reason = fmt.Sprintf("%s is this user's, but this process is in %s, outside of it, "+
				"and only root may move a process from there; above it: %s",
				outside, own, reason)
		}
		for _, c := range controllerRoles {
			if lacking&c.role != 0 {
				p.why[c.role] = t
			}
		}
	}
	if p.dir == "" {
		// cgroup.kill works below the own group: it is no controller.
		if err := host.writable(own); err != nil {
			p.why[roleCore] = trouble{fmt.Sprintf("cannot create groups in %s: %v", own, err), remedyV2(host, 0)}
			return p
		}
		p.dir = own
	}
	return p
}

// hasMoreControllers reports whether a place with the controllers a is preferable to a nearer place with b.
func hasMoreControllers(a, b role) bool {
	return bits.OnesCount8(uint8(a&limits)) > bits.OnesCount8(uint8(b&limits))
}

// checkPlace returns the wanted controllers that children of dir can have, or the reason why there are none. alone means that
// this process has to leave dir first.
func checkPlace(dir string, want role, moving bool, host hostFiles) (roles role, alone bool, why string) {
	has, err := host.read(dir + "/cgroup.controllers")
	if err != nil {
		return 0, false, fmt.Sprintf("cannot read %s/cgroup.controllers: %v", dir, errno(err))
	}
	if roles = wordRoles(has) & want; roles&limits == 0 && want&limits != 0 {
		return 0, false, fmt.Sprintf("%s has none of the controllers (it has %q)", dir, strings.TrimSpace(has))
	}
	if host.exists(dir + "/cgroup.events") { // the machine's root has no such file, and is exempt
		procs, err := host.read(dir + "/cgroup.procs")
		if err != nil || strings.TrimSpace(procs) != "" {
			alone = moving && strings.TrimSpace(procs) == strconv.Itoa(host.pid())
			if !alone {
				return 0, false, fmt.Sprintf("%s holds processes, so its children can not have controllers", dir)
			}
		}
	}
	if kind, err := host.read(dir + "/cgroup.type"); err == nil && strings.TrimSpace(kind) != "domain" {
		return 0, false, fmt.Sprintf("%s is of the type %q, which has no memory controller", dir, strings.TrimSpace(kind))
	}
	if err := host.writable(dir); err != nil {
		return 0, false, fmt.Sprintf("cannot create groups in %s: %v", dir, err)
	}
	for _, file := range []string{"/cgroup.subtree_control", "/cgroup.procs"} {
		if err := host.openable(dir + file); err != nil {
			return 0, false, fmt.Sprintf("groups can be made in %s, but not used: cannot write to %s%s: %v", dir, dir, file, err)
		}
	}
	return roles, alone, ""
}

// oursInside reports whether dir is a `sandbox-run` directory or its leaf: the process that started this one may have moved
// there, and then placeV2 looks above them.
func oursInside(mount, dir string) bool {
	if dir == mount {
		return false
	}
	parent, name := filepath.Split(dir)
	return name == rootName || name == leafName && filepath.Base(parent) == rootName
}

// delegatedElsewhere names a group that this user may write but that is not above this process: a sibling of its group or of
// a group above it, as systemd's user@1000.service is for a process of a login session.
func delegatedElsewhere(mount, own string, host hostFiles) string {
	if host.euid() == 0 {
		return ""
	}
	for dir := own; len(dir) >= len(mount); dir = filepath.Dir(dir) {
		for _, name := range host.subdirs(dir) {
			beside := dir + "/" + name
			has, err := host.read(beside + "/cgroup.controllers")
			if err == nil && wordRoles(has)&limits != 0 && beside != own && !strings.HasPrefix(own, beside+"/") &&
				host.writable(beside) == nil && host.openable(beside+"/cgroup.procs") == nil {
				return beside
			}
		}
		if dir == mount {
			break
		}
	}
	return ""
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

// errno strips what package os wraps around an errno: this package's messages name the path themselves.
func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
