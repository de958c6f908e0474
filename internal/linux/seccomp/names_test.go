package seccomp

import (
	"slices"
	"testing"
)

// Names agrees with Decide on every call.
func TestNames(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		allowed, refused, err := Names(Policy{}, arch)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := lookup(arch)
		for nr, c := range a.calls {
			if c.name == "" {
				continue
			}
			steps, _ := Policy{}.resolve(c.rule)
			got, _ := Decide(Policy{}, arch, uint32(nr), [6]uint64{})
			if is := slices.Contains(allowed, c.name); steps == nil && is != (got == Allow) {
				t.Errorf("%s %s: %v, and allowed is %v", arch, c.name, got, is)
			}
			if is := slices.Contains(refused, c.name); is != (steps == nil && got == notPermitted) {
				t.Errorf("%s %s: %v, and refused is %v", arch, c.name, got, is)
			}
		}
		for _, name := range []string{"read", "clone", "socket", "prctl"} {
			if !slices.Contains(allowed, name) {
				t.Errorf("%s: %s is not allowed", arch, name)
			}
		}
		for _, name := range []string{"mount", "clone3", "seccomp", "bpf"} {
			if slices.Contains(allowed, name) {
				t.Errorf("%s: %s is allowed", arch, name)
			}
		}
	}
	if _, _, err := Names(Policy{}, "vax"); err == nil {
		t.Error("an unknown architecture is accepted")
	}
}
