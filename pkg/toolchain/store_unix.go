//go:build unix

package toolchain

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openOwn opens a file of ours that nobody else may write to: its mounts are shown in sandboxes and its programs run.
func openOwn(p string) (*os.File, error) {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = fmt.Errorf("%s: owner %d, mode %o: not ours alone", p, st.Uid, st.Mode)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
