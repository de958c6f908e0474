package docker

import (
	"io/fs"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// identify returns the owner and the identity of a file on the machine that the daemon shares with this process.
func identify(info fs.FileInfo) (owner int, ident containerproto.Ident) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), containerproto.Ident{Device: st.Dev, Inode: st.Ino}
	}
	return -1, containerproto.Ident{}
}
