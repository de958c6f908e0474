package rootless

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Obstacle returns the reason why sandboxes can not be made here at all, and the remedy; "" if they can. Without root,
// only an attempt shows that: start starts a mount helper, which is needed anyway.
func (w Self) Obstacle(start func() error) (reason, remedy string) {
	if readNumber("/proc/sys/user/max_user_namespaces") == 0 {
		return "user namespaces are switched off (user.max_user_namespaces is 0)", "as root: sysctl user.max_user_namespaces=15000"
	}
	if w.Privileged {
		return "", ""
	}
	if err := start(); err != nil {
		return explain(err)
	}
	if covers := procCoveredBy(); covers != "" {
		return "parts of /proc are covered (" + covers + "), as in a container: the kernel then lets only root mount one that shows all",
			"run the container with --security-opt systempaths=unconfined (Docker) or --security-opt unmask=ALL (Podman)"
	}
	return "", ""
}

// procCoveredBy names a mount that covers a part of /proc; "" if none matters: the kernel ignores mounts on directories
// that exist for that purpose.
func procCoveredBy() string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], "/proc/") && fields[4] != "/proc/sys/fs/binfmt_misc" && fields[4] != "/proc/fs/nfsd" {
			return fields[4]
		}
	}
	return ""
}

// explain determines which mechanism forbids ordinary users a user namespace here.
func explain(err error) (reason, remedy string) {
	var errno unix.Errno
	errors.As(err, &errno)
	switch {
	case readNumber("/proc/sys/kernel/unprivileged_userns_clone") == 0:
		return "only root may make user namespaces (kernel.unprivileged_userns_clone is 0)",
			"as root: sysctl kernel.unprivileged_userns_clone=1; or run as root"
	case readNumber("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1 && (errno == unix.EPERM || errno == unix.EACCES):
		return "AppArmor leaves ordinary users' user namespaces without rights (kernel.apparmor_restrict_unprivileged_userns is 1)",
			"as root: install an AppArmor profile that grants userns to sandbox-run (docs/OPERATING.md has one), or sysctl " +
				"kernel.apparmor_restrict_unprivileged_userns=0; or run as root"
	case errno == unix.ENOSPC:
		return "this user has as many user namespaces as user.max_user_namespaces allows, or they are nested too deeply",
			"as root: sysctl user.max_user_namespaces=15000"
	case errno == unix.EPERM && inContainer():
		return "the container around this process forbids user namespaces or mounts (" + err.Error() + ")",
			"run the container with a seccomp profile that allows clone, unshare and mount, such as --security-opt seccomp=unconfined, " +
				"and with --security-opt systempaths=unconfined; or give it CAP_SYS_ADMIN"
	case errno == unix.EPERM || errno == unix.EACCES:
		return "the kernel refuses this user a user namespace that can mount (" + err.Error() + ")",
			"run as root, or outside of whatever restricts this process (a container, a seccomp filter, an LSM)"
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return "this kernel lacks what sandboxes without root need (" + err.Error() + ")", "use Linux 5.12 or newer, with user namespaces"
	}
	return err.Error(), "sandbox-run doctor as root shows what root would get"
}

// inContainer guesses whether this process is in a container, for a better remedy.
func inContainer() bool {
	for _, f := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Lstat(f); err == nil {
			return true
		}
	}
	filtered, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return os.Getenv("container") != "" || err == nil && filtered != 0
}

// OneID describes the host ids of a sandbox of a user without subordinate ids; "" for other users.
func (w Self) OneID() (reason, remedy string) {
	if w.Privileged || w.Grant != nil {
		return "", ""
	}
	return fmt.Sprintf("one id only: to the host the program is the user who started it (uid %d), with their groups: %v", w.UID, w.NoGrant),
		"install uidmap, and as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
}

// Settings are parameters of a sandbox's own user namespace. As root every sandbox has an id of its own for the kernel's
// counters. Otherwise the kernel's counters per user also count for the user who started the sandbox, and the sandbox
// must not exhaust them (R6).
func (w Self) Settings() []initproto.Setting {
	if w.Privileged {
		return nil
	}
	return []initproto.Setting{
		{Name: "user/max_inotify_instances", Value: "32"}, {Name: "user/max_inotify_watches", Value: "8192"},
		{Name: "user/max_fanotify_groups", Value: "0"}, {Name: "user/max_fanotify_marks", Value: "0"},
	}
}
