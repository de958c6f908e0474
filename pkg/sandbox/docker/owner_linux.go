package docker

import (
	"io/fs"
	"syscall"
)

// ownerOf is who owns a file on the machine that the daemon shares with us.
func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
