package rootfs

import (
	"slices"
	"testing"
)

// Some files of /proc are masked in every sandbox, on every kernel, whether this kernel has them or not, and whatever
// their modes.
func TestCovers(t *testing.T) {
	masks := FindMasks()
	for _, file := range []string{"/proc/kcore", "/proc/sysrq-trigger"} {
		if !slices.Contains(masks.Masked, file) {
			t.Errorf("%s is not masked: %q", file, masks.Masked)
		}
	}
	if !slices.Contains(masks.ReadOnly, "/proc/sys") {
		t.Errorf("/proc/sys is not read-only: %q", masks.ReadOnly)
	}
}
