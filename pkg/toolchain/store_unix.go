//go:build unix

package toolchain

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// readOwn reads a file, and refuses one that other users can write to: sandboxes show the mounts in it, and the executor runs its
// programs.
func readOwn(p string, most int) ([]byte, error) {
	// O_NONBLOCK: do not wait for the writer of a FIFO.
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Size > int64(most) {
		return nil, fmt.Errorf("%s: owner %d, mode %o, %d bytes: not ours alone", p, st.Uid, st.Mode, st.Size)
	}
	data := make([]byte, st.Size)
	for read := 0; read < len(data); {
		n, err := unix.Read(fd, data[read:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return data[:read], nil
		}
		read += max(n, 0)
	}
	return data, nil
}
