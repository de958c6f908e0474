package registry

import "testing"

// FuzzSlot: only the name of a slot is read as that slot. Any other file in the directory is foreign.
func FuzzSlot(f *testing.F) {
	for _, s := range []string{"s0000", "sffff", "sFFFF", "s+001", "s00001", ".new-0123456789abcdef", "s0_00", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, file string) {
		slot, ok := slotOf(file)
		if ok && (slot < 0 || slot >= Slots || name(slot) != file) {
			t.Errorf("%q is the slot %d, whose name is %q", file, slot, name(slot))
		}
	})
}
