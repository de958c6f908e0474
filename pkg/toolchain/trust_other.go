//go:build !unix

package toolchain

import (
	"io/fs"
	"os"
	"strconv"
)

// doubtful checks nothing: only sandboxes on Linux show files of the host.
func doubtful(string, fs.FileInfo, bool) error { return nil }

func executable(string, fs.FileInfo) bool { return true }

func stampOf(p string) string {
	info, err := os.Lstat(p)
	if err != nil {
		return absent
	}
	return strconv.FormatInt(info.Size(), 36) + "." + strconv.FormatInt(info.ModTime().UnixNano(), 36)
}

func identityOf(p string) string {
	info, err := os.Lstat(p)
	if err != nil || !info.IsDir() {
		return absent
	}
	return "=d"
}
