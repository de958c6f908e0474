package scratch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnavailable is wrapped by the errors of DiskAvailable.
var ErrUnavailable = errors.New("no scratch on disk")

// DiskAvailable returns nil, or the reason why Disk can not work here with that cache directory (DefaultCacheDir when
// empty), with the remedy. It changes nothing and is cheap; a missing directory is no obstacle, as Disk makes it.
func DiskAvailable(path string) error {
	if path == "" {
		path = DefaultCacheDir
	}
	no := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrUnavailable, fmt.Sprintf(format, args...))
	}
	if uid := unix.Geteuid(); uid != 0 {
		return no("mounting an ext4 needs root, this is uid %d; run as root, or accept a scratch of memory", uid)
	}
	if err := unix.Access(loopControl, unix.W_OK); err != nil {
		return no("%s: %v; load the module (modprobe loop) or, in a container, pass the device in", loopControl, err)
	}
	// This refuses the root of a user namespace, or of a container without the capability.
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	switch {
	case errors.Is(err, unix.ENODEV):
		return no("the kernel has no ext4; load the module (modprobe ext4)")
	case errors.Is(err, unix.ENOSYS):
		return no("the kernel has no fsopen; it needs Linux 5.8 or later")
	case errors.Is(err, unix.EPERM):
		return no("mounting is not permitted here; CAP_SYS_ADMIN in the first user namespace is needed")
	case err != nil:
		return no("fsopen ext4: %v", err)
	}
	_ = unix.Close(fs)
	if _, err := findMkfs(); err != nil {
		// Existing image files would still work, but only for their sizes.
		return no("%v", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist): // Disk makes the directory
	case err != nil:
		return no("%v", err)
	case !info.IsDir():
		return no("%s is not a directory; remove it or name another cache directory", path)
	default:
		d, err := openCacheDir(path)
		if err != nil {
			return no("%v", err)
		}
		defer d.Close()
		f, err := (&cacheDir{path: path, at: d}).unnamed()
		if err != nil {
			return no("%v", err)
		}
		_ = f.Close()
	}
	return nil
}

// findMkfs searches the system's directories before PATH: root's PATH may begin with another user's directory, and often
// lacks sbin.
func findMkfs() (string, error) {
	for _, name := range []string{"mkfs.ext4", "mke2fs"} {
		for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
			if unix.Access(dir+name, unix.X_OK) == nil {
				return dir + name, nil
			}
		}
		if path, err := exec.LookPath(name); err == nil && strings.HasPrefix(path, "/") {
			return path, nil
		}
	}
	return "", fmt.Errorf("scratch: mkfs.ext4: %w in /usr/sbin, /sbin or PATH; install e2fsprogs", exec.ErrNotFound)
}
