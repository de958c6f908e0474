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

// doubtful says who besides us and the administrator may change what lies at p. A directory that everybody may write to is
// no harm on the way (dir and passed) if it is sticky, as /tmp is: what others put there does not belong to us.
func doubtful(p string, info fs.FileInfo, dir bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if owner := int(st.Uid); owner != 0 && owner != os.Geteuid() && owner != rootOwner() {
		return fmt.Errorf("%s belongs to another user (%d)", p, owner)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // its mode means nothing
	}
	switch mode := info.Mode(); {
	case mode&0o002 != 0 && !(dir && mode&fs.ModeSticky != 0):
		return fmt.Errorf("%s is writable by everybody", p)
	case mode&0o020 != 0 && st.Uid != 0 && int(st.Uid) != rootOwner() && int(st.Gid) != os.Getegid() && mode&fs.ModeSticky == 0:
		// A group the administrator gave a directory of theirs is their choice.
		return fmt.Errorf("%s is writable by the group %d", p, st.Gid)
	}
	return nil
}

// rootOwner owns the root directory: the administrator, under whatever id a user namespace shows them.
func rootOwner() int {
	var st unix.Stat_t
	if unix.Stat("/", &st) != nil {
		return 0
	}
	return int(st.Uid)
}

func executable(p string, _ fs.FileInfo) bool { return unix.Access(p, unix.X_OK) == nil }

// stampOf is what changes when the file at p is replaced or written to; "-" when there is none. A link is not followed.
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

// identityOf is what changes when the directory at p is another one, or another's; what is in it may change.
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
