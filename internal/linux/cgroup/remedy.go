//go:build linux

package cgroup

import (
	"fmt"
	"strconv"
)

// What an operator can do where groups can not be made, for doctor. There is one sentence per kind of machine; which one
// it is, is looked at and not guessed.

// remedyContainer is for a tree that is mounted read-only, or mounted so that our own group is not in it.
const remedyContainer = "start the container with a cgroup namespace of its own and with a writable cgroup tree: --cgroupns=private, and /sys/fs/cgroup mounted rw (or --privileged)"

// remedyV1 is for v1 controllers, which no service manager delegates.
func remedyV1(look looker) string {
	if look.euid() == 0 {
		return remedyContainer
	}
	return fmt.Sprintf("as root, for each c of cpu, cpuacct, memory and pids: mkdir /sys/fs/cgroup/$c/u%[1]d && chown -R %[1]d /sys/fs/cgroup/$c/u%[1]d && echo PID-OF-YOUR-SHELL > /sys/fs/cgroup/$c/u%[1]d/cgroup.procs; "+
		"or boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), where systemd delegates", look.euid())
}

// remedyV2 is for a user without a place in the v2 tree, or with one that has only the controllers in has.
func remedyV2(look looker, has role) string {
	uid := strconv.Itoa(look.euid())
	systemd := look.exists("/run/systemd/system")
	manager := systemd && look.exists("/run/user/"+uid+"/systemd/private")
	switch {
	case look.euid() == 0 && systemd:
		return "start it in a group of its own: systemd-run --scope -p Delegate=yes …"
	case look.euid() == 0:
		return "start it in a group of its own, as the container's only process or in a child group; " + remedyContainer
	case systemd && (has != 0 || manager && !managerHasAll(look, uid)):
		return "let systemd delegate the controllers to user managers, as root: mkdir -p /etc/systemd/system/user@.service.d && " +
			`printf '[Service]\nDelegate=cpu memory pids\n' > /etc/systemd/system/user@.service.d/delegate.conf && ` +
			"systemctl daemon-reload && systemctl restart user@" + uid + ".service"
	case manager:
		return "start it in a group of its own: systemd-run --user --scope -p Delegate=yes …"
	case systemd:
		return "this user has no service manager that could delegate a group; log in by a session, or as root: loginctl enable-linger " + uid
	}
	return fmt.Sprintf("as root: mkdir /sys/fs/cgroup/u%[1]s /sys/fs/cgroup/u%[1]s/shell && echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control && "+
		"chown -R %[1]s /sys/fs/cgroup/u%[1]s && echo PID-OF-YOUR-SHELL > /sys/fs/cgroup/u%[1]s/shell/cgroup.procs", uid)
}

// managerHasAll says whether the user's service manager was given every controller a limit needs. It is where systemd
// puts it, as seen from the machine's root.
func managerHasAll(look looker, uid string) bool {
	has, err := look.read("/sys/fs/cgroup/user.slice/user-" + uid + ".slice/user@" + uid + ".service/cgroup.controllers")
	return err != nil || wordRoles(has)&limits == limits
}
