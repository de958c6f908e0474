//go:build unix

package app

import (
	"fmt"
	"os"
	"syscall"
)

// identity returns what os.SameFile compares.
func identity(st os.FileInfo) string {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
	}
	return st.Name()
}
