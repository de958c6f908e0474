package attack

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const dirParent, dirPrefix = "/var/tmp", "sandbox-attack-"

// newDir makes a directory of the host, and locks it until this process ends: a later suite recognises the directories of a killed
// one by that.
func newDir() (dir string, lock int, err error) {
	if dir, err = os.MkdirTemp(dirParent, dirPrefix); err != nil {
		return "", -1, err
	}
	if lock, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		if err = unix.Flock(lock, unix.LOCK_SH|unix.LOCK_NB); err == nil {
			err = unix.Fchmod(lock, 0o755)
		}
		if err != nil {
			_ = unix.Close(lock)
		}
	}
	if err != nil {
		_ = os.RemoveAll(dir)
	}
	return dir, lock, err
}

// removeStale removes directories of killed suites: this user's, without a lock.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(dirParent, dirPrefix+"*"))
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // follows no links
		}
		_ = unix.Close(fd)
	}
}
