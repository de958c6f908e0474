//go:build linux

package cgroup

import (
	"fmt"
	"slices"
	"strings"
)

// role is one use of a hierarchy; a hierarchy can serve several (v1 mounts "cpu,cpuacct" together).
type role uint8

const (
	roleCPU     role = 1 << iota
	roleCPUAcct      // read CPU time: v1 cpuacct, or the base cpu.stat of any v2 group
	roleMemory
	rolePids
	roleIO   // v2 only: v1 blkio counts nothing without a throttle rule
	roleCore // v2 core files: cgroup.kill, cgroup.events, the base cpu.stat
)

// controllerRoles is the one table of names the kernel uses in mount options and in cgroup.controllers.
var controllerRoles = []struct {
	name string
	role role
	v2   bool // exists as a controller in v2
}{
	{"cpu", roleCPU, true},
	{"cpuacct", roleCPUAcct, false},
	{"memory", roleMemory, true},
	{"pids", rolePids, true},
	{"io", roleIO, true},
}

// hierarchy is one mounted cgroup tree and the directory in it that this package uses.
type hierarchy struct {
	label     string // for messages: "memory", "cpu,cpuacct", "v2"
	v2        bool
	roles     role   // what this package uses it for
	place     string // the directory `sandbox-run` is made in; nothing else in it is ever made or removed
	at        int    // place, held open (O_PATH); -1 once closed
	mount     string // mount point: the highest visible directory of this hierarchy
	own       string // the directory of the cgroup that holds this process
	memsw     bool   // v1 memory: memory.memsw.limit_in_bytes exists
	moveFirst bool   // v2: place is this process's own group: it moves to a leaf before the children can have controllers
	enable    string // v2: what is written to cgroup.subtree_control on the way down, "+cpu +memory +pids"; "" for none
}

// cgroupMount is a line of mountinfo that is a cgroup file system.
type cgroupMount struct {
	point    string
	root     string // the directory of the cgroup file system that is mounted here: not "/" in a container
	v2       bool
	options  []string // v1: controllers (and name=…)
	readOnly bool
}

// parseMountinfo keeps the cgroup lines of /proc/self/mountinfo. It skips lines that it can not read: the file lists
// every mount of the machine, and an odd line of another mount must not disable limits.
func parseMountinfo(text string) []cgroupMount {
	var mounts []cgroupMount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /point rw,noatime [optional…] - fstype source superoptions
		head, tail, found := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		if !found || !strings.HasPrefix(tail, "cgroup") {
			continue
		}
		before, after := strings.Fields(head), strings.Fields(tail)
		if len(before) < 6 || len(after) < 3 || (after[0] != "cgroup" && after[0] != "cgroup2") {
			continue
		}
		super := strings.Split(after[2], ",")
		mounts = append(mounts, cgroupMount{
			root:     unescape(before[3]),
			point:    unescape(before[4]),
			v2:       after[0] == "cgroup2",
			options:  super,
			readOnly: slices.Contains(strings.Split(before[5], ","), "ro") || slices.Contains(super, "ro"),
		})
	}
	return mounts
}

// unescape undoes mountinfo's octal escapes (space, tab, newline, backslash).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(c byte) bool { return c >= '0' && c <= '7' }

// ownCgroup is /proc/self/cgroup: v1 paths by controller name, and the v2 path.
type ownCgroup struct {
	v1    map[string]string
	v2    string
	hasV2 bool
}

func parseOwnCgroup(text string) ownCgroup {
	own := ownCgroup{v1: map[string]string{}}
	for line := range strings.Lines(text) {
		// 4:memory:/process_api/1e97  ·  0::/  (a path may hold colons, so cut only twice)
		id, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 {
			continue
		}
		if id == "0" && names == "" {
			own.v2, own.hasV2 = path, true
			continue
		}
		for name := range strings.SplitSeq(names, ",") {
			own.v1[name] = path
		}
	}
	return own
}

// within maps a cgroup path to the directory that shows it through a mount. It fails when the path lies outside what
// is mounted, as for a process outside its cgroup namespace's root ("/../x"): making groups at the mount point instead
// would leave the caller's limits.
func (m cgroupMount) within(path string) (string, bool) {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "", false
	}
	rest := path
	if m.root != "/" {
		var ok bool
		if rest, ok = strings.CutPrefix(path, m.root); !ok || (rest != "" && rest[0] != '/') {
			return "", false
		}
	}
	return strings.TrimSuffix(m.point, "/") + strings.TrimSuffix(rest, "/"), true
}

// layout is the result of detection, before permissions are checked.
type layout struct {
	hierarchies []hierarchy
	version     string
	missing     []Gap
}

// detect turns the two files of /proc into the hierarchies that this package uses. It reads the file system only through
// host, so that tests can describe any machine. moving says that the caller may move to a leaf.
func detect(mountinfo, selfCgroup string, moving bool, host hostFiles) layout {
	own := parseOwnCgroup(selfCgroup)
	var l layout
	var served role
	var v2 *hierarchy
	anyV1 := false

	// visible finds this process's own group in one mount, or says why it can not.
	visible := func(m cgroupMount, label string, path string, known bool) (string, trouble) {
		switch dir, visible := m.within(path); {
		case !known:
			return "", trouble{reason: fmt.Sprintf("%s is mounted at %s, but /proc/self/cgroup does not say which group this process is in",
				label, m.point)}
		case !visible:
			return "", trouble{fmt.Sprintf("this process's own group %q is not visible below %s", path, m.point), remedyContainer}
		case m.readOnly:
			return "", trouble{fmt.Sprintf("cgroup tree %s is read-only", m.point), remedyContainer}
		default:
			return dir, trouble{}
		}
	}

	reasons := map[role]trouble{}
	for _, m := range parseMountinfo(mountinfo) {
		if m.v2 {
			if v2 != nil {
				continue
			}
			dir, why := visible(m, "the v2 tree", own.v2, own.hasV2)
			if why.reason != "" {
				reasons[roleCore] = why
				continue
			}
			v2 = &hierarchy{label: "v2", v2: true, at: -1, roles: roleCore, mount: m.point, own: dir}
			continue
		}
		var roles role
		var names []string
		path, known := "", false
		for _, c := range controllerRoles {
			if c.role != roleIO && slices.Contains(m.options, c.name) {
				roles |= c.role
				names = append(names, c.name)
				path, known = own.v1[c.name], own.v1[c.name] != ""
			}
		}
		if roles == 0 {
			continue // name=systemd, freezer, devices, …: unused here
		}
		anyV1 = true
		label := strings.Join(names, ",")
		if served&roles != 0 {
			continue // the same hierarchy mounted a second time
		}
		dir, why := visible(m, "controller "+label, path, known)
		if why.reason == "" {
			// Each controller has a tree of its own, with its own permissions.
			if err := host.writable(dir); err != nil {
				why = trouble{fmt.Sprintf("cannot create groups in %s: %v", dir, err), remedyV1(host)}
			}
		}
		if why.reason != "" {
			for _, c := range controllerRoles {
				if roles&c.role != 0 {
					reasons[c.role] = why
				}
			}
			continue
		}
		served |= roles
		l.hierarchies = append(l.hierarchies, hierarchy{
			label: label, roles: roles, mount: m.point, own: dir, place: dir, at: -1,
			memsw: roles&roleMemory != 0 && host.exists(dir+"/memory.memsw.limit_in_bytes"),
		})
	}

	switch {
	case anyV1 && (v2 != nil || reasons[roleCore].reason != ""):
		l.version = "hybrid"
	case anyV1:
		l.version = "v1"
	case v2 != nil || reasons[roleCore].reason != "":
		l.version = "v2"
	default:
		l.version = "none"
	}

	if v2 != nil {
		// A v2 tree is joined with one write to cgroup.procs, and that waits for an RCU grace period: up to 11 ms (see
		// JoinFiles). So where v1 has the limits and the CPU time, a run stays out of the v2 tree. Counters of bytes read and
		// written do not justify the wait.
		var p placing
		apart := false
		if served&roleCPUAcct != 0 {
			p = placeV2(v2.mount, v2.own, served|roleIO, false, host)
			apart = p.dir != "" && p.roles == 0
		}
		if apart {
			p.dir = ""
			reasons[roleCore] = trouble{reason: "a run takes no part in the v2 tree of a hybrid machine: processes are killed one by one"}
		} else {
			p = placeV2(v2.mount, v2.own, served, moving && !anyV1, host)
		}
		for r, t := range p.why {
			if reasons[r].reason == "" {
				reasons[r] = t
			}
		}
		if p.dir != "" {
			v2.place = p.dir
			v2.roles |= p.roles
			v2.moveFirst = p.moveFirst
			served |= p.roles | roleCore
			for _, c := range controllerRoles {
				if c.v2 && p.roles&c.role != 0 {
					v2.enable = strings.TrimSpace(v2.enable + " +" + c.name)
				}
			}
			if host.exists(v2.own + "/cpu.stat") {
				// The base cpu.stat counts CPU time in every v2 group, controller or not. So when the tree is joined anyway,
				// a v1 cpuacct mount is left out: one directory less to make, join and drop per run.
				v2.roles |= roleCPUAcct
				kept := l.hierarchies[:0]
				for _, h := range l.hierarchies {
					if h.roles &^= roleCPUAcct; h.roles != 0 {
						kept = append(kept, h)
					}
				}
				l.hierarchies = kept
			}
			l.hierarchies = append(l.hierarchies, *v2)
		}
	}

	for _, want := range []struct {
		role role
		name string
	}{{roleMemory, "memory"}, {rolePids, "pids"}, {roleCPU, "cpu"}} {
		if served&want.role == 0 {
			t := reasons[want.role]
			if t.reason == "" && l.version == "v2" {
				t = reasons[roleCore] // the tree that has it can not be used
			}
			if t.reason == "" {
				t.reason = "controller " + want.name + " is not mounted"
			}
			l.missing = append(l.missing, Gap{want.name, t.reason, t.remedy})
		}
	}
	if served&roleCore == 0 {
		t := reasons[roleCore]
		if t.reason == "" {
			t.reason = "no v2 tree is mounted: processes are killed one by one"
		}
		l.missing = append(l.missing, Gap{"kill", t.reason, t.remedy})
	}
	return l
}
