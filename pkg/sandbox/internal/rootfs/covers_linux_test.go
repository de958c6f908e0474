package rootfs

import (
	"slices"
	"testing"
)

// Some files of /proc are covered in every sandbox, on every kernel: whether this one has them, or for whom, does not matter.
func TestCovers(t *testing.T) {
	covers := LookAtProc()
	for _, file := range []string{"/proc/kcore", "/proc/sysrq-trigger"} {
		if !slices.Contains(covers.Masked, file) {
			t.Errorf("%s is not masked: %q", file, covers.Masked)
		}
	}
	if !slices.Contains(covers.ReadOnly, "/proc/sys") {
		t.Errorf("/proc/sys is not read-only: %q", covers.ReadOnly)
	}
}
