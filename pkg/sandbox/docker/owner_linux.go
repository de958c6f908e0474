package docker

import (
	"io/fs"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// identify says who owns a file and which it is, on the machine that the daemon shares with us.
func identify(info fs.FileInfo) (owner int, ident wire.Ident) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), wire.Ident{Device: st.Dev, Inode: st.Ino}
	}
	return -1, wire.Ident{}
}
