//go:build linux

package cgroup

import (
	"fmt"
	"strconv"
)

// The remedies that doctor prints where groups can not be made: one sentence per kind of machine, chosen by inspection.

// remedyContainer is for a tree that is mounted read-only, or mounted so that this process's own group is not in it.
const remedyContainer = "start the container with a cgroup namespace of its own and with a writable cgroup tree: " +
	"--cgroupns=private, and /sys/fs/cgroup mounted rw (or --privileged)"

// remedyV1 is for v1 controllers, which service managers do not delegate.
func remedyV1(host hostFiles) string {
	if host.euid() == 0 {
		return remedyContainer
	}
	return fmt.Sprintf("as root, for each c of cpu, cpuacct, memory and pids: mkdir /sys/fs/cgroup/$c/u%[1]d && chown -R %[1]d "+
		"/sys/fs/cgroup/$c/u%[1]d && echo PID-OF-YOUR-SHELL > /sys/fs/cgroup/$c/u%[1]d/cgroup.procs; "+
		"or boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), where systemd delegates", host.euid())
}

// remedyV2 is for a user without a writable group in the v2 tree, or with one that has only the controllers in has.
func remedyV2(host hostFiles, has role) string {
	uid := strconv.Itoa(host.euid())
	systemd := host.exists("/run/systemd/system")
	manager := systemd && host.exists("/run/user/"+uid+"/systemd/private")
	switch {
	case host.euid() == 0 && systemd:
		return "start it in a group of its own: systemd-run --scope -p Delegate=yes …"
	case host.euid() == 0:
		return "start it in a group of its own, as the container's only process or in a child group; " + remedyContainer
	case systemd && (has != 0 || manager && !managerHasAll(host, uid)):
		return "let systemd delegate the controllers to user managers, as root: mkdir -p /etc/systemd/system/user@.service.d && " +
			`printf '[Service]\nDelegate=cpu memory pids\n' > /etc/systemd/system/user@.service.d/delegate.conf && ` +
			"systemctl daemon-reload && systemctl restart user@" + uid + ".service"
	case manager:
		return "start it in a group of its own: systemd-run --user --scope -p Delegate=yes …"
	case systemd:
		return "this user has no service manager that could delegate a group; log in by a session, or as root: loginctl enable-linger " + uid
	}
	return fmt.Sprintf("as root: mkdir /sys/fs/cgroup/u%[1]s /sys/fs/cgroup/u%[1]s/shell && echo '+cpu +memory +pids' > "+
		"/sys/fs/cgroup/cgroup.subtree_control && "+
		"chown -R %[1]s /sys/fs/cgroup/u%[1]s && echo PID-OF-YOUR-SHELL > /sys/fs/cgroup/u%[1]s/shell/cgroup.procs", uid)
}

// managerHasAll reports whether the user's service manager has every controller that a limit needs. It reads the path that
// systemd uses, as seen from the machine's root.
func managerHasAll(host hostFiles, uid string) bool {
	has, err := host.read("/sys/fs/cgroup/user.slice/user-" + uid + ".slice/user@" + uid + ".service/cgroup.controllers")
	return err != nil || wordRoles(has)&limits == limits
}
