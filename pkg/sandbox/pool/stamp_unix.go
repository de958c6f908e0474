//go:build unix

package pool

import (
	"fmt"
	"io/fs"
	"strconv"
	"syscall"
)

// identity is a file's number on its file system.
func identity(st fs.FileInfo) string {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%x", s.Dev) + ":" + strconv.FormatUint(s.Ino, 10)
	}
	return ""
}
