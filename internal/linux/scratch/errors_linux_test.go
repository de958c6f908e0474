package scratch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
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

// A failed mount reports the file system's own message, and a failed disk leaves no device.
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
			_, err = mountLoop(f, nil) // zeroes are no file system
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

// The kernel writes to the host's disk as late as possible, so the test fills the disk explicitly.
func TestHostFull(t *testing.T) {
	needDisk(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	o := Options{Bytes: mib, Inodes: 100, CacheDir: dir}
	make := func() error {
		s, err := Disk(o)
		if err != nil {
			return err
		}
		return s.Close()
	}
	if err := make(); err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= blockSize; size /= 2 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(size)), bytes.Repeat([]byte{1}, size), 0o600); err != nil &&
			!errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := make(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the host's disk is full: free some space") {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, strconv.Itoa(1<<20))); err != nil {
		t.Fatal(err)
	}
	if err := make(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	noLoops(t, dir)
}

// A disk with few writes does not use the host's disk: no block of the file behind it is ever allocated.
func TestStaysInMemory(t *testing.T) {
	dir := needDisk(t)
	c, err := cacheDirs.get(dir)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := c.template(8*mib, 100)
	if err != nil {
		t.Fatal(err)
	}
	backing, err := c.unnamed()
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	if err := backing.Truncate(int64(tmpl.size)); err != nil {
		t.Fatal(err)
	}
	s, err := mountLoop(backing, tmpl.copyTo)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Mkdir("a", 0o700, 0, 0); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(backing.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	// The mount itself writes only little at once.
	if used := uint64(st.Blocks) * 512; used >= tmpl.used() {
		t.Errorf("%d bytes are on the host's disk, and the template has %d", used, tmpl.used())
	}
}
