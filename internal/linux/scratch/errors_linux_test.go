package scratch

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnprivileged(t *testing.T) {
	dir := needDisk(t)
	out, err := command(t, "unprivileged", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"available: no scratch on disk: mounting an ext4 needs root, this is uid 65534; run as root",
		"disk: scratch: open cache directory " + dir + ": permission denied",
		"memory: scratch: mount tmpfs: fsopen: operation not permitted; mounting needs CAP_SYS_ADMIN",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// A failed mount says what the file system had against it, and a failed disk leaves no device.
func TestMountErrors(t *testing.T) {
	dir := needDisk(t)
	for want, try := range map[string]func() error{
		"fsopen: no such device":     func() error { _, err := mount("no such fs", nil); return err },
		"Unknown parameter 'colour'": func() error { _, err := mount("tmpfs", []option{{"colour", "red"}}); return err },
		"fsconfig size=much":         func() error { _, err := mount("tmpfs", []option{{"size", "much"}}); return err },
		"as ext4: fsconfig create": func() error {
			c, err := cacheDirs.get(dir)
			if err != nil {
				return err
			}
			f, err := c.unnamed()
			if err != nil {
				return err
			}
			defer f.Close()
			if err := f.Truncate(mib); err != nil {
				return err
			}
			_, err = mountLoop(f) // zeroes are no file system
			return err
		},
		"mkfs.ext4 of 1 blocks": func() error {
			c, err := cacheDirs.get(dir)
			if err != nil {
				return err
			}
			mkfs, err := findMkfs()
			if err != nil {
				return err
			}
			_, _, err = c.format(mkfs, 1, 10)
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, _, err := attachLoop(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("a loop device over nothing: %v", err)
	}
	noLoops(t, dir)
}
