package sandbox

import (
	"os"

	"golang.org/x/sys/unix"
)

// openUnnamed makes a file without a name. Without a directory it takes the first of the usual ones that is no tmpfs: a
// spill file in memory saves none.
func openUnnamed(dir string) (*os.File, error) {
	if dir == "" {
		dir = os.TempDir()
		for _, d := range []string{dir, "/var/tmp"} {
			var st unix.Statfs_t
			if unix.Statfs(d, &st) == nil && st.Type != unix.TMPFS_MAGIC && unix.Access(d, unix.W_OK) == nil {
				dir = d
				break
			}
		}
	}
	if f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR|unix.O_EXCL, 0o600); err == nil {
		return f, nil
	}
	f, err := os.CreateTemp(dir, ".sandbox-run-output-") // a file system without O_TMPFILE
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

func closeUnnamed(f *os.File) { _ = f.Close() }
