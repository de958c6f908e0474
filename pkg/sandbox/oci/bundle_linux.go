package oci

import (
	"encoding/json"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// The part of the runtime specification that is used here. Its own Go package would do, and says in a thousand lines what these
// say in a page.
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
	// capabilities are all empty, and said to be: a runtime might have defaults for what is left out.
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

// initDir is where a container has its init. It is found along PATH, because its name is what tells an executable that it is
// to be one.
const initDir = "/.sandbox-run"

// blueprint is what a bundle is made from.
type blueprint struct {
	kind    *kind
	spec    *sandbox.Spec
	ids     ids
	dir     string            // of the bundle
	scratch string            // where it is mounted
	parts   map[string]string // where those of the scratch are, by name
	shm     string            // where it is mounted; empty if the runtime makes it
	cgroup  string            // for the init, or empty
	network string            // path of a network namespace
	groups  string            // path of a cgroup namespace, or empty for one of its own
	covers  rootfs.Covers
	filter  *seccompFilter
}

// ids are who a sandbox's root and user are outside.
type ids struct{ root, user int }

// rootfsDir is where a bundle has its root.
const rootfsDir = "rootfs"

func (b *blueprint) render() ([]byte, error) {
	none := []string{}
	c := config{
		Version: "1.0.2", Hostname: b.spec.Hostname,
		Process: process{
			User: user{UID: b.spec.User.UID, GID: b.spec.User.GID, Umask: 0o022}, Args: []string{spawn.Name}, Env: append(spawn.Environ(), "PATH="+initDir), Cwd: "/",
			Capabilities: capabilities{none, none, none, none, none}, NoNewPrivileges: true, Rlimits: rlimits(b.spec.Limits),
		},
		// The root's mounts are read-only as they are. gVisor would make them so once more, and in a user namespace it may not.
		Root: root{Path: rootfsDir, Readonly: !b.spec.WritableRoot && !b.kind.kernel},
		Linux: linux{
			UIDMappings: []idMapping{{0, b.ids.root, 1}, {b.spec.User.UID, b.ids.user, 1}},
			GIDMappings: []idMapping{{0, b.ids.root, 1}, {b.spec.User.GID, b.ids.user, 1}},
			CgroupsPath: b.cgroup,
			Namespaces:  []namespace{{Type: "user"}, {Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"}, {Type: "network", Path: b.network}, {Type: "cgroup", Path: b.groups}},
			MaskedPaths: append(b.covers.Masked, b.covers.Hidden...), ReadonlyPaths: b.covers.ReadOnly,
			Seccomp: b.filter, Resources: &resources{Devices: []deviceRule{{Allow: false, Access: "rwm"}}},
		},
	}
	if b.kind.stdin {
		c.Process.Env = append(c.Process.Env, spawn.ControlVariable+"=0")
	}
	c.Mounts = []mount{{"/proc", "proc", "proc", []string{"nosuid", "nodev", "noexec", "hidepid=2"}}}
	if b.kind.devices {
		c.Mounts[0].Options = []string{"nosuid", "nodev", "noexec"}
		// It would add a sysfs, if there were nothing in its place.
		c.Mounts = append(c.Mounts, mount{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "noexec", "mode=755"}}, mount{"/sys", "tmpfs", "tmpfs", []string{"ro", "nosuid", "nodev", "noexec", "mode=555"}})
	} else {
		// A bind says that /dev is complete: there are no further devices, and the ones that are there were made by number.
		c.Mounts = append(c.Mounts, mount{"/dev", "bind", b.dir + "/" + rootfsDir + "/dev", []string{"rbind", "ro", "nosuid", "noexec"}})
	}
	if b.shm != "" {
		c.Mounts = append(c.Mounts, mount{"/dev/shm", "bind", b.shm, []string{"bind", "rw", "nosuid", "nodev", "noexec"}})
	} else {
		c.Mounts = append(c.Mounts, mount{"/dev/shm", "tmpfs", "shm", []string{"nosuid", "nodev", "noexec", "mode=1777", "size=" + shmSize(b.spec)}})
	}
	c.Mounts = append(c.Mounts,
		mount{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"}})
	for _, p := range files.Parts {
		c.Mounts = append(c.Mounts, mount{p.At, "bind", b.parts[p.Name], []string{"rbind", "rw", "nosuid", "nodev"}})
	}
	return json.Marshal(c)
}

func shmSize(spec *sandbox.Spec) string { return strconv.FormatUint(uint64(spec.Limits.Memory)/2, 10) }

// rlimitNames are those that are set, as the specification calls them.
var rlimitNames = map[uint32]string{
	unix.RLIMIT_CORE: "RLIMIT_CORE", unix.RLIMIT_NOFILE: "RLIMIT_NOFILE", unix.RLIMIT_MEMLOCK: "RLIMIT_MEMLOCK", unix.RLIMIT_MSGQUEUE: "RLIMIT_MSGQUEUE",
	unix.RLIMIT_SIGPENDING: "RLIMIT_SIGPENDING", unix.RLIMIT_NICE: "RLIMIT_NICE", unix.RLIMIT_RTPRIO: "RLIMIT_RTPRIO", unix.RLIMIT_STACK: "RLIMIT_STACK",
}

// rlimits of the init. Programs lower them further, each to its own; so the number of files is not limited here beyond what we
// have ourselves.
func rlimits(l sandbox.Limits) (list []rlimit) {
	all := launch.Rlimits(l)
	for i := range all {
		if all[i].Resource == unix.RLIMIT_NOFILE {
			all[i] = initproto.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		}
	}
	for _, r := range launch.Within(all) {
		list = append(list, rlimit{rlimitNames[r.Resource], r.Max, r.Soft})
	}
	return list
}

// newFilter is the system-call policy as runtimes want it. The init needs two calls more than programs may have: to put the
// policy's own program on top of this, and to look for paths without following links.
func newFilter(p seccomp.Policy) (*seccompFilter, error) {
	profile, err := seccomp.NewProfile(p, "", "seccomp", "openat2")
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

// said is the end of what a runtime printed, in a line.
func said(text []byte) string {
	const most = 600
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	out := strings.Join(lines[max(0, len(lines)-4):], "; ")
	if len(out) > most {
		out = "…" + out[len(out)-most:]
	}
	return out
}
