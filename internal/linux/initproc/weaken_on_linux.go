//go:build weaken

package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

var (
	dumpable = map[bool]uintptr{true: 1}[weaken.On("init-dumpable")]
	hidepid  = map[bool]string{true: "off", false: "invisible"}[weaken.On("no-hidepid")]
)

// weakenRoot changes mounts of the root that is built: the supervisor has the first of them only.
func weakenRoot() {
	if weaken.On("dev-unsealed") {
		_ = unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	}
}
