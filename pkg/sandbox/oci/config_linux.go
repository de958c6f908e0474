package oci

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/subid"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// The part of the runtime specification that is used here. The specification's own Go package has a thousand lines for
// this page.
type (
	config struct {
		Version  string  `json:"ociVersion"`
		Process  process `json:"process"`
		Root     root    `json:"root"`
		Hostname string  `json:"hostname,omitempty"`
		Mounts   []mount `json:"mounts"`
		Linux    linux   `json:"linux"`
	}
	process struct {
		Terminal        bool         `json:"terminal"`
		User            user         `json:"user"`
		Args            []string     `json:"args"`
		Env             []string     `json:"env"`
		Cwd             string       `json:"cwd"`
		Capabilities    capabilities `json:"capabilities"`
		Rlimits         []rlimit     `json:"rlimits,omitempty"`
		NoNewPrivileges bool         `json:"noNewPrivileges"`
	}
	user struct {
		UID   int `json:"uid"`
		GID   int `json:"gid"`
		Umask int `json:"umask"`
	}
	// capabilities lists every set, empty where root has made the container: a runtime might have defaults for omitted
	// sets.
	capabilities struct {
		Bounding    []string `json:"bounding"`
		Effective   []string `json:"effective"`
		Inheritable []string `json:"inheritable"`
		Permitted   []string `json:"permitted"`
		Ambient     []string `json:"ambient"`
	}
	rlimit struct {
		Type string `json:"type"`
		Hard uint64 `json:"hard"`
		Soft uint64 `json:"soft"`
	}
	root struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	linux struct {
		UIDMappings   []idMapping    `json:"uidMappings,omitempty"`
		GIDMappings   []idMapping    `json:"gidMappings,omitempty"`
		CgroupsPath   string         `json:"cgroupsPath,omitempty"`
		Namespaces    []namespace    `json:"namespaces"`
		Resources     *resources     `json:"resources,omitempty"`
		Seccomp       *seccompFilter `json:"seccomp,omitempty"`
		MaskedPaths   []string       `json:"maskedPaths,omitempty"`
		ReadonlyPaths []string       `json:"readonlyPaths,omitempty"`
	}
	idMapping struct {
		ContainerID int `json:"containerID"`
		HostID      int `json:"hostID"`
		Size        int `json:"size"`
	}
	namespace struct {
		Type string `json:"type"`
		Path string `json:"path,omitempty"`
	}
	resources struct {
		Devices []deviceRule `json:"devices"`
		Memory  *memory      `json:"memory,omitempty"`
	}
	memory struct {
		Limit int64 `json:"limit"`
	}
	deviceRule struct {
		Allow  bool   `json:"allow"`
		Access string `json:"access"`
	}
	seccompFilter struct {
		DefaultAction   string           `json:"defaultAction"`
		DefaultErrnoRet uint             `json:"defaultErrnoRet"`
		Architectures   []string         `json:"architectures"`
		Syscalls        []seccompSyscall `json:"syscalls"`
	}
	seccompSyscall struct {
		Names    []string     `json:"names"`
		Action   string       `json:"action"`
		ErrnoRet *uint        `json:"errnoRet,omitempty"`
		Args     []seccompArg `json:"args,omitempty"`
	}
	seccompArg struct {
		Index    uint   `json:"index"`
		Value    uint64 `json:"value"`
		ValueTwo uint64 `json:"valueTwo"`
		Op       string `json:"op"`
	}
)

// initDir is the directory of the init in a container. The runtime finds the init along PATH, because an executable
// recognises by its name that it is to be an init.
const initDir = "/.sandbox-run"

// bundlePlan is the input of a bundle.
type bundlePlan struct {
	kind     *kind
	spec     *sandbox.Spec
	init     initUser
	dir      string // of the bundle
	scratch  string // mount point
	cgroup   string // for the init, or empty
	network  string // path of a network namespace
	cgroupNS string // path of a cgroup namespace, or empty for one of its own
	masks    rootfs.Masks
	filter   *seccompFilter
}

// initUser is the identity of a container's init: inside, and outside of it.
type initUser struct {
	uid, gid   int         // inside
	uids, gids []idMapping // of the container, by the runtime's numbers of ids
	caps       []string    // with which it makes programs that have none
	renames    bool        // programs have another name for its one id
	host       int         // its user id on the host
}

// rootInit is the init of a container that root has made: it has the program's id, and no right that the program does
// not have.
func rootInit(u sandbox.User, root, user int) initUser {
	return initUser{
		uid: u.UID, gid: u.GID, host: user, caps: []string{},
		uids: []idMapping{{0, root, 1}, {u.UID, user, 1}}, gids: []idMapping{{0, root, 1}, {u.GID, user, 1}},
	}
}

// ordinaryInit is the init of a container that an ordinary user has made, in a runtime helper with these maps. It is
// root of the container, because the cgroups belong to that user, and it has the rights to make a program that has
// neither.
//
// With a kernel of the runtime's own, that kernel is the container's root, and the init has the same ids as under root.
func ordinaryInit(self rootless.Self, id *rootless.Identity, u sandbox.User, kernel bool) (in initUser, helper spawn.Options) {
	host := func(maps []syscall.SysProcIDMap, inside int) int {
		return maps[slices.IndexFunc(maps, func(m syscall.SysProcIDMap) bool { return m.ContainerID == inside })].HostID
	}
	helper = spawn.Options{Map: id.Mapper, KeepGroups: id.KeepGroups}
	in.uids, in.gids = []idMapping{{0, 0, 1}}, []idMapping{{0, 0, 1}}
	one := func(inside, host int) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: inside, HostID: host, Size: 1}
	}
	if kernel {
		in = initUser{uid: u.UID, gid: u.GID, host: host(id.UIDs, u.UID), caps: []string{}}
		in.uids, helper.UIDs = splitMap(id.UIDs, self.UID, self.Grant.UIDs)
		in.gids, helper.GIDs = splitMap(id.GIDs, self.GID, self.Grant.GIDs)
		return in, helper
	}
	if in.renames = id.Stay; in.renames {
		in.host = host(id.UIDs, u.UID)
		helper.UIDs, helper.GIDs = []syscall.SysProcIDMap{one(0, in.host)}, []syscall.SysProcIDMap{one(0, host(id.GIDs, u.GID))}
		if !id.KeepGroups { // newgidmap does not permit it to a user who maps only the own group
			helper.UIDs, helper.GIDs = append(helper.UIDs, one(1, host(id.UIDs, 0))), append(helper.GIDs, one(1, host(id.GIDs, 0)))
		}
		in.caps = []string{"CAP_SETFCAP"} // the kernel requires it for a user namespace that maps root
		return in, helper
	}
	in.host = host(id.UIDs, 0)
	helper.UIDs = []syscall.SysProcIDMap{one(0, in.host), one(1, host(id.UIDs, u.UID))}
	helper.GIDs = []syscall.SysProcIDMap{one(0, host(id.GIDs, 0)), one(1, host(id.GIDs, u.GID))}
	in.uids, in.gids = append(in.uids, idMapping{u.UID, 1, 1}), append(in.gids, idMapping{u.GID, 1, 1})
	in.caps = []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN"} // KILL: programs have another id
	return in, helper
}

// overflowID is the user id that gVisor's kernel takes wherever it runs as root.
const overflowID = 65534

// splitMap splits a map of two ids, one of them the supervisor's own, in two: the map of the container, and the map of
// the runtime helper around it, where the supervisor's id is root. The other id is from a range; so is the overflow id
// of the helper, counted from the other end.
func splitMap(maps []syscall.SysProcIDMap, own int, all subid.Range) (inner []idMapping, outer []syscall.SysProcIDMap) {
	outer = []syscall.SysProcIDMap{{ContainerID: 0, HostID: own, Size: 1}}
	for _, m := range maps {
		n := 0
		if m.HostID != own {
			n = 1
			third := all.First + all.Count - 1 - (m.HostID - all.First)
			if third == m.HostID { // the middle one
				third = all.First
			}
			outer = append(outer, syscall.SysProcIDMap{ContainerID: n, HostID: m.HostID, Size: 1},
				syscall.SysProcIDMap{ContainerID: overflowID, HostID: third, Size: 1})
		}
		inner = append(inner, idMapping{m.ContainerID, n, 1})
	}
	return inner, outer
}

// capabilityNumbers are those that an init may have.
var capabilityNumbers = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_KILL": unix.CAP_KILL, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID,
	"CAP_SETPCAP":   unix.CAP_SETPCAP,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SETFCAP": unix.CAP_SETFCAP,
}

// capabilities is the mask of the init's capabilities, as the kernel shows it.
func (in initUser) capabilities() (set uint64) {
	for _, name := range in.caps {
		set |= 1 << capabilityNumbers[name]
	}
	return set
}

// initCalls are the further calls of such an init, for namespaces and a keyring of the program's own. No program may
// make them.
var initCalls = []string{"unshare", "keyctl"}

// The names in a bundle.
const (
	rootfsDir = "rootfs"
	shmDir    = "shm"
)

// bundleParts is the content of a bundle beside its root, and the sources of the rest. Root's mount thread, or a runtime
// helper, puts it in place.
type bundleParts struct {
	Dir     string `json:"dir"`     // of the bundle
	Scratch string `json:"scratch"` // its mount point
	// paths of the scratch's parts, by name: in the scratch, or copies in the bundle with volumes in them
	Parts   map[string]string `json:"parts"`
	Shm     uint64            `json:"shm"`     // size of /dev/shm; 0 if the runtime makes it
	Targets []target          `json:"targets"` // of the volumes, in the order in which they are mounted
	Config  []byte            `json:"config"`
}

// target is the place of a volume.
type target struct {
	Path     string `json:"path"`            // inside
	Apart    string `json:"apart,omitempty"` // its place in the bundle, if it is a mount of the runtime's own
	File     bool   `json:"file,omitempty"`
	Writable bool   `json:"writable,omitempty"`
}

// around is the innermost separate target that contains a path; nil is none.
func around(targets []target, p string) *target {
	for n, t := range slices.Backward(targets) {
		if t.Apart != "" && strings.HasPrefix(p, t.Path+"/") {
			return &targets[n]
		}
	}
	return nil
}

// bundleParts plans a bundle.
func (b *bundlePlan) bundleParts(volumes []volume) (*bundleParts, error) {
	f := &bundleParts{Dir: b.dir, Scratch: b.scratch, Parts: map[string]string{}}
	for _, p := range files.Parts {
		f.Parts[p.Name] = filepath.Join(b.scratch, p.Name)
	}
	for n, v := range volumes {
		t := target{Path: v.Target, File: v.isFile, Writable: v.Writable}
		if inScratch, ok := files.Beneath(v.Target); ok {
			part, _, _ := strings.Cut(inScratch, "/")
			f.Parts[part] = filepath.Join(b.dir, part)
		} else if b.kind.kernel && around(f.Targets, t.Path) == nil {
			// gVisor may cache the root's files, because no other process changes them.
			t.Apart = filepath.Join(b.dir, "v"+strconv.Itoa(n))
		}
		f.Targets = append(f.Targets, t)
	}
	// runc gives a file system in memory the mode of the directory it is mounted on, not the requested mode.
	if !b.kind.devices {
		f.Shm = shmSize(b.spec)
	}
	var err error
	f.Config, err = b.render(f)
	return f, err
}

func (b *bundlePlan) render(f *bundleParts) ([]byte, error) {
	all := b.init.caps
	c := config{
		Version: "1.0.2", Hostname: b.spec.Hostname,
		Process: process{
			User: user{UID: b.init.uid, GID: b.init.gid, Umask: 0o022}, Args: []string{spawn.Name},
			Env: append(spawn.Environ(), "PATH="+initDir), Cwd: "/",
			Capabilities: capabilities{all, all, all, all, all}, NoNewPrivileges: true, Rlimits: initRlimits(b.spec.Limits),
		},
		// The root's mounts are read-only already. gVisor would remount them, which a user namespace does not permit.
		Root: root{Path: rootfsDir, Readonly: !b.spec.WritableRoot && !b.kind.kernel},
		Linux: linux{
			UIDMappings: b.init.uids,
			GIDMappings: b.init.gids,
			CgroupsPath: b.cgroup,
			Namespaces: []namespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"},
				{Type: "network", Path: b.network}, {Type: "cgroup", Path: b.cgroupNS}},
			MaskedPaths: slices.Concat(b.masks.Masked, b.masks.Hidden), ReadonlyPaths: b.masks.ReadOnly,
			Seccomp: b.filter, Resources: &resources{Devices: []deviceRule{{Allow: false, Access: "rwm"}}},
		},
	}
	if b.cgroup != "" {
		c.Linux.Resources.Memory = &memory{initMemory}
	}
	if b.kind.stdin {
		c.Process.Env = append(c.Process.Env, spawn.ControlVariable+"=0")
	}
	c.Mounts = []mount{{"/proc", "proc", "proc", []string{"nosuid", "nodev", "noexec", "hidepid=2"}}}
	if b.kind.devices {
		c.Mounts[0].Options = []string{"nosuid", "nodev", "noexec"}
		// The runtime would add a sysfs if the place were empty.
		c.Mounts = append(c.Mounts, mount{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "noexec", "mode=755"}},
			mount{"/sys", "tmpfs", "tmpfs", []string{"ro", "nosuid", "nodev", "noexec", "mode=555"}})
	} else {
		// A bind mount tells the runtime that /dev is complete: it adds no devices, and the present ones were made by
		// number.
		c.Mounts = append(c.Mounts, mount{"/dev", "bind", b.dir + "/" + rootfsDir + "/dev", []string{"rbind", "ro", "nosuid", "noexec"}})
	}
	if f.Shm > 0 {
		c.Mounts = append(c.Mounts, mount{"/dev/shm", "bind", filepath.Join(b.dir, shmDir), []string{"bind", "rw", "nosuid", "nodev", "noexec"}})
	} else {
		c.Mounts = append(c.Mounts, mount{"/dev/shm", "tmpfs", "shm",
			[]string{"nosuid", "nodev", "noexec", "mode=1777", "size=" + strconv.FormatUint(shmSize(b.spec), 10)}})
	}
	c.Mounts = append(c.Mounts,
		mount{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"}})
	for _, p := range files.Parts {
		c.Mounts = append(c.Mounts, mount{p.At, "bind", f.Parts[p.Name], []string{"rbind", "rw", "nosuid", "nodev"}})
	}
	for _, t := range f.Targets {
		if t.Apart == "" {
			continue
		}
		access := "ro"
		if t.Writable {
			access = "rw"
		}
		c.Mounts = append(c.Mounts, mount{t.Path, "bind", t.Apart, []string{"rbind", access, "nosuid", "nodev"}})
	}
	return json.Marshal(c)
}

// initMemory is for the init, in a cgroup beside the program's, and before that for the runtime's own init, which reads
// files of the root: about ten times their need.
const initMemory = 256 << 20

func shmSize(spec *sandbox.Spec) uint64 { return uint64(spec.Limits.Memory) / 2 }

// rlimitNames are the limits that are set, by the specification's names.
var rlimitNames = map[uint32]string{
	unix.RLIMIT_CORE: "RLIMIT_CORE", unix.RLIMIT_NOFILE: "RLIMIT_NOFILE", unix.RLIMIT_MEMLOCK: "RLIMIT_MEMLOCK",
	unix.RLIMIT_MSGQUEUE:   "RLIMIT_MSGQUEUE",
	unix.RLIMIT_SIGPENDING: "RLIMIT_SIGPENDING", unix.RLIMIT_NICE: "RLIMIT_NICE", unix.RLIMIT_RTPRIO: "RLIMIT_RTPRIO",
	unix.RLIMIT_STACK: "RLIMIT_STACK",
}

// initRlimits are the limits of the init. Each program lowers them to its own; so the number of files is only limited to
// the supervisor's own.
func initRlimits(l sandbox.Limits) (list []rlimit) {
	all := box.Rlimits(l, 0)
	for i := range all {
		if all[i].Resource == unix.RLIMIT_NOFILE {
			all[i] = initproto.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		}
	}
	for _, r := range box.Within(all) {
		list = append(list, rlimit{rlimitNames[r.Resource], r.Max, r.Soft})
	}
	return list
}

// newFilter is the system-call policy in the form of the specification. The init needs two more calls than programs: to
// add the policy's own filter to this one, and to look up paths without following links; also lists more of that kind.
func newFilter(p seccomp.Policy, also ...string) (*seccompFilter, error) {
	profile, err := seccomp.NewProfile(p, "", append([]string{"seccomp", "openat2"}, also...)...)
	if err != nil {
		return nil, err
	}
	eperm := uint(unix.EPERM)
	f := &seccompFilter{
		DefaultAction: "SCMP_ACT_ERRNO", DefaultErrnoRet: uint(profile.Default), Architectures: []string{profile.Arch},
		Syscalls: []seccompSyscall{{Names: profile.Refused, Action: "SCMP_ACT_ERRNO", ErrnoRet: &eperm}},
	}
	for _, a := range profile.Allowed {
		s := seccompSyscall{Names: a.Names, Action: "SCMP_ACT_ALLOW"}
		for _, c := range a.When {
			s.Args = append(s.Args, seccompArg{Index: c.Arg, Value: c.Mask, ValueTwo: c.Value, Op: "SCMP_CMP_MASKED_EQ"})
		}
		f.Syscalls = append(f.Syscalls, s)
	}
	return f, nil
}

// lastLines is the end of a runtime's output, in one line.
func lastLines(text []byte) string {
	const most = 600
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	out := strings.Join(lines[max(0, len(lines)-4):], "; ")
	if len(out) > most {
		out = "…" + out[len(out)-most:]
	}
	return out
}
