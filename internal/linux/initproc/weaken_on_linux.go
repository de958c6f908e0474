//go:build weaken

package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

var hidepid = map[bool]string{true: "off", false: "invisible"}[weaken.On("no-hidepid")]

// weakenStarted lets others look into the init. It is hidden anew by each program that it has forked, which shares its memory when it
// changes its ids.
func weakenStarted() {
	if weaken.On("init-dumpable") {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
}

// weakenRoot changes mounts of the root that is built: the supervisor has the first of them only.
func weakenRoot() {
	if weaken.On("dev-unsealed") {
		_ = unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	}
}
