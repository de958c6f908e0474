package quota

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's sizes are in the numbers of the ioctls, and in its headers.
func TestLayout(t *testing.T) {
	for _, request := range []uintptr{getAttribute, setAttribute} {
		if n := unsafe.Sizeof(attributes{}); n != request>>16&0x3fff {
			t.Errorf("struct fsxattr has %d bytes", n)
		}
	}
	if n := unsafe.Sizeof(ifDqblk{}); n != 72 {
		t.Errorf("struct if_dqblk has %d bytes", n)
	}
	if n := unsafe.Sizeof(quotaState{}); n != 160 {
		t.Errorf("struct fs_quota_statv has %d bytes", n)
	}
}

// What works is shown by pkg/workspace (TestQuota), on file systems that it makes.
func TestNoQuotas(t *testing.T) {
	for _, path := range []string{"/proc", "/dev/shm"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		fd := int(f.Fd())
		if err := Check(fd); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", path, err)
		}
		if _, _, err := Read(fd, 1<<30); err == nil {
			t.Errorf("%s: a quota can be read", path)
		}
		if err := SetLimits(fd, 1<<30, Amount{1 << 20, 1}); err == nil {
			t.Errorf("%s: a quota can be set", path)
		}
		_ = f.Close()
	}
	if _, _, err := Project(-1); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
	if err := SetProject(-1, 1<<30, false); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}
