//go:build unix

package toolchain

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// doubtful returns an error that names the user who can change the file at p, other than the caller and root. dir is set for a directory
// on the way to a file. Such a directory may be writable by all users if it is sticky, as /tmp is: files that other users add belong to
// them, and are refused for their owner.
func doubtful(p string, info fs.FileInfo, dir bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if owner := int(st.Uid); owner != 0 && owner != os.Geteuid() && owner != rootOwner() {
		return fmt.Errorf("%s belongs to another user (%d)", p, owner)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // the mode of a link has no meaning
	}
	switch mode := info.Mode(); {
	case mode&0o002 != 0 && !(dir && mode&fs.ModeSticky != 0):
		return fmt.Errorf("%s is writable by everybody", p)
	case mode&0o020 != 0 && st.Uid != 0 && int(st.Uid) != rootOwner() && int(st.Gid) != os.Getegid() && mode&fs.ModeSticky == 0:
		// Files of root may be writable by a group, which the administrator chose.
		return fmt.Errorf("%s is writable by the group %d", p, st.Gid)
	}
	return nil
}

// rootOwner returns the owner of the root directory: the id that root of the host has in this user namespace.
func rootOwner() int {
	var st unix.Stat_t
	if unix.Stat("/", &st) != nil {
		return 0
	}
	return int(st.Uid)
}

func executable(p string, _ fs.FileInfo) bool { return unix.Access(p, unix.X_OK) == nil }

// stampOf returns a text that changes when the file at p is replaced or written to; "-" without a file. It does not follow a link.
func stampOf(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return absent
	}
	buf := make([]byte, 0, 64)
	for _, n := range []int64{int64(st.Ino), st.Size, int64(st.Mode), st.Mtim.Nano(), st.Ctim.Nano()} {
		buf = append(strconv.AppendInt(buf, n, 36), '.')
	}
	return string(buf)
}

// identityOf returns a text that changes when the directory at p is replaced or gets another owner or mode, but not with its content.
func identityOf(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return absent
	}
	buf := append(make([]byte, 0, 48), '=')
	for _, n := range []uint64{st.Ino, uint64(st.Mode), uint64(st.Uid), uint64(st.Gid)} {
		buf = append(strconv.AppendUint(buf, n, 36), '.')
	}
	return string(buf)
}
