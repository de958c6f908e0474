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

// looker is the little that detection asks of the file system. Permissions are asked of the kernel, with our effective
// ids, and never concluded from who we are: root may lack them (a read-only or foreign tree), and others may have them.
type looker interface {
	exists(path string) bool
	writable(dir string) error  // nil when directories can be made in dir
	openable(path string) error // nil when the file can be opened for writing, which is tried
	read(path string) (string, error)
	subdirs(dir string) []string
	euid() int
	pid() int
}

type realLooker struct{}

func (realLooker) exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

func (realLooker) writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

func (realLooker) openable(path string) error {
	fd, err := openRetry(unix.AT_FDCWD, path, unix.O_WRONLY)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func (realLooker) read(path string) (string, error) {
	b, err := os.ReadFile(path) //nolint:gosec // a path below a cgroup mount, built by us
	return string(b), err
}

func (realLooker) subdirs(dir string) []string {
	names, _ := subdirs(unix.AT_FDCWD, dir) // only to explain something
	return names
}

func (realLooker) euid() int { return os.Geteuid() }
func (realLooker) pid() int  { return os.Getpid() }

// placing is where `sandbox-run` is made in the v2 tree, and what can be had there.
type placing struct {
	dir    string // "" for nowhere
	roles  role   // the controllers it will have
	settle bool   // dir is our own group: we have to leave it for a leaf first
	why    map[role]trouble
}

// trouble is why something can not be had, and what to do about it.
type trouble struct{ reason, remedy string }

// limits are the controllers a limit needs. io is nice to have: only a counter.
const limits = roleCPU | roleMemory | rolePids

// placeV2 chooses the v2 directory in which `sandbox-run` is made, and says which controllers it will have there.
// served are the roles that v1 hierarchies already fill.
//
// The rule it works around: a v2 group that hands domain controllers to its children may hold no process itself, and
// our own group holds us. So:
//
//   - hybrid, no controller wanted from v2: our own group (and lazily: see detect). Without controllers the rule does not apply.
//   - settling allowed, and our own group is ours to write and holds nobody else: our own group, which we leave for a
//     leaf (see settle).
//   - otherwise: the nearest ancestor that holds no process (or is the machine's root, which is exempt), that is ours to
//     write and that has the controllers, all of them or, failing that, the most. Nearest, so that as few as possible of
//     the caller's limits are left behind.
//
// Only ancestors will do: whoever moves a process, root excepted, must be allowed to write to the cgroup.procs of the
// nearest group above both where it was and where it goes. From outside a delegated subtree nothing can be moved in.
func placeV2(mount, own string, served role, settling bool, look looker) placing {
	p := placing{why: map[role]trouble{}}
	var want role
	for _, c := range controllerRoles {
		if c.v2 && served&c.role == 0 {
			want |= c.role
		}
	}
	all, err := look.read(mount + "/cgroup.controllers")
	if err != nil {
		p.why[roleCore] = trouble{reason: fmt.Sprintf("cannot read %s/cgroup.controllers: %v", mount, errno(err))}
		return p
	}
	want &= wordRoles(all)

	reason := ""
	for dir := own; want != 0; dir = filepath.Dir(dir) {
		if !oursInside(mount, dir) {
			roles, alone, why := suits(dir, want, settling && dir == own, look)
			if why != "" {
				reason = why
			} else if p.dir == "" || better(roles, p.roles) {
				p.dir, p.roles, p.settle = dir, roles, alone
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
		t := trouble{reason: reason, remedy: remedyV2(look, p.roles)}
		if p.dir != "" {
			t.reason = p.dir + " does not have it"
		} else if outside := delegatedElsewhere(mount, own, look); outside != "" {
			t.reason = fmt.Sprintf("%s is this user's, but this process is in %s, outside of it, and only root may move a process from there; above it: %s",
				outside, own, reason)
		}
		for _, c := range controllerRoles {
			if lacking&c.role != 0 {
				p.why[c.role] = t
			}
		}
	}
	if p.dir == "" {
		// Kill still works below our own group: it is no controller.
		if err := look.writable(own); err != nil {
			p.why[roleCore] = trouble{fmt.Sprintf("cannot create groups in %s: %v", own, err), remedyV2(look, 0)}
			return p
		}
		p.dir = own
	}
	return p
}

// better says whether a place with the controllers a is worth going further up for than one with b.
func better(a, b role) bool {
	return bits.OnesCount8(uint8(a&limits)) > bits.OnesCount8(uint8(b&limits))
}

// suits says which of the wanted controllers children of dir can have, or why none. alone means that this is so once
// this process has left it.
func suits(dir string, want role, settling bool, look looker) (roles role, alone bool, why string) {
	has, err := look.read(dir + "/cgroup.controllers")
	if err != nil {
		return 0, false, fmt.Sprintf("cannot read %s/cgroup.controllers: %v", dir, errno(err))
	}
	if roles = wordRoles(has) & want; roles&limits == 0 && want&limits != 0 {
		return 0, false, fmt.Sprintf("%s has none of the controllers (it has %q)", dir, strings.TrimSpace(has))
	}
	if look.exists(dir + "/cgroup.events") { // the machine's root has no such file, and is exempt
		procs, err := look.read(dir + "/cgroup.procs")
		if err != nil || strings.TrimSpace(procs) != "" {
			alone = settling && strings.TrimSpace(procs) == strconv.Itoa(look.pid())
			if !alone {
				return 0, false, fmt.Sprintf("%s holds processes, so its children can not have controllers", dir)
			}
		}
	}
	if kind, err := look.read(dir + "/cgroup.type"); err == nil && strings.TrimSpace(kind) != "domain" {
		return 0, false, fmt.Sprintf("%s is of the type %q, which has no memory controller", dir, strings.TrimSpace(kind))
	}
	if err := look.writable(dir); err != nil {
		return 0, false, fmt.Sprintf("cannot create groups in %s: %v", dir, err)
	}
	for _, file := range []string{"/cgroup.subtree_control", "/cgroup.procs"} {
		if err := look.openable(dir + file); err != nil {
			return 0, false, fmt.Sprintf("groups can be made in %s, but not used: cannot write to %s%s: %v", dir, dir, file, err)
		}
	}
	return roles, alone, ""
}

// oursInside says whether dir is a `sandbox-run` directory or the leaf that a process settled in: we may have been
// started by a process that had settled, and then what is above them is what we look for.
func oursInside(mount, dir string) bool {
	if dir == mount {
		return false
	}
	parent, name := filepath.Split(dir)
	return name == rootName || name == leafName && filepath.Base(parent) == rootName
}

// delegatedElsewhere names a group that is this user's to write but not above us: beside us or beside a group above us,
// as systemd's user@1000.service is for a process of a login session.
func delegatedElsewhere(mount, own string, look looker) string {
	if look.euid() == 0 {
		return ""
	}
	for dir := own; len(dir) >= len(mount); dir = filepath.Dir(dir) {
		for _, name := range look.subdirs(dir) {
			beside := dir + "/" + name
			has, err := look.read(beside + "/cgroup.controllers")
			if err == nil && wordRoles(has)&limits != 0 && beside != own && !strings.HasPrefix(own, beside+"/") &&
				look.writable(beside) == nil && look.openable(beside+"/cgroup.procs") == nil {
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

// errno strips what os wraps around an errno: our messages name the path themselves.
func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
