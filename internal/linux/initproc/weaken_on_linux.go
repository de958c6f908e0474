//go:build weaken

package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

var hidepid = map[bool]string{true: "off", false: "invisible"}[weaken.On("no-hidepid")]

// weakenStarted lets other processes inspect the init. Each forked program hides it anew, because it shares the init's
// memory when it changes its ids.
func weakenStarted() {
	if weaken.On("init-dumpable") {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
}

// weakenRoot changes mounts of the new root: the supervisor has only the first of them.
func weakenRoot() {
	if weaken.On("dev-unsealed") {
		_ = unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	}
}
