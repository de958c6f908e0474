package seccomp

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// allows reports whether a call passes.
func (f *Profile) allows(name string, args [6]uint64) bool {
	return slices.ContainsFunc(f.Allowed, func(a Allowance) bool {
		return slices.Contains(a.Names, name) && !slices.ContainsFunc(a.When, func(c Condition) bool { return args[c.Arg]&c.Mask != c.Value })
	})
}

// A profile never refuses what its policy allows, and refuses what the policy refuses whatever the arguments.
func TestProfile(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range []Policy{{}, {DenySetID: true}, {DenyUncounted: true, DenyAffinity: true}} {
			f, err := NewProfile(p, arch, "seccomp")
			if err != nil {
				t.Fatal(err)
			}
			a, _ := lookup(arch)
			random := rand.New(rand.NewPCG(1, 2))
			allowed, refused := 0, 0
			for nr, c := range a.calls {
				if c.name == "" || c.name == "seccomp" {
					continue
				}
				steps, act := p.resolve(c.rule)
				if steps == nil && (act == Allow) != f.allows(c.name, [6]uint64{}) {
					t.Errorf("%s: %s: the policy says %v, the profile %v", arch, c.name, act, act != Allow)
				}
				if steps == nil && act == notPermitted != slices.Contains(f.Refused, c.name) {
					t.Errorf("%s: %s is refused otherwise than the policy says", arch, c.name)
				}
				for range 2000 {
					var args [6]uint64
					for i := range args {
						// Small numbers and single bits: what rules speak of.
						args[i] = random.Uint64N(300) << random.Uint64N(24)
						if random.Uint64N(8) == 0 {
							args[i] |= random.Uint64() << 32
						}
					}
					got, err := Decide(p, arch, uint32(nr), args)
					if err != nil {
						t.Fatal(err)
					}
					if passes := f.allows(c.name, args); got == Allow && !passes {
						t.Fatalf("%s: %s(%x) is allowed, and the profile refuses it", arch, c.name, args)
					} else if passes {
						allowed++
					} else {
						refused++
					}
				}
			}
			if !f.allows("seccomp", [6]uint64{}) || allowed == 0 || refused == 0 {
				t.Errorf("%s: %d allowed, %d refused", arch, allowed, refused)
			}
			for _, w := range f.Allowed {
				for i, c := range w.When {
					if slices.ContainsFunc(w.When[:i], func(d Condition) bool { return d.Arg == c.Arg }) {
						t.Errorf("%v: two conditions on one argument: %+v", w.Names, w.When)
					}
				}
			}
		}
	}
	// The rules that a profile can express hold.
	f, err := NewProfile(Policy{}, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   [6]uint64
		passes bool
	}{
		{"clone", [6]uint64{17}, true}, {"clone", [6]uint64{0x10000000}, false},
		{"socket", [6]uint64{1, 1, 0}, true}, {"socket", [6]uint64{38, 5, 0}, false}, {"socket", [6]uint64{2, 3, 1}, false},
		{"socket", [6]uint64{1<<32 | 40, 1, 0}, false},
		{"mount", [6]uint64{}, false}, {"clone3", [6]uint64{}, false}, {"seccomp", [6]uint64{}, false}, {"read", [6]uint64{}, true},
	} {
		if got := f.allows(c.name, c.args); got != c.passes {
			t.Errorf("%s(%x): %v", c.name, c.args, got)
		}
	}
	// The profile allows calls that a listener is notified of. It refuses calls that fail with ENOSYS or quietly.
	if f, err = NewProfile(Policy{Notify: true}, "amd64"); err != nil {
		t.Fatal(err)
	}
	for name, passes := range map[string]bool{"mount": true, "read": true, "clone3": false, "io_uring_setup": false} {
		if got := f.allows(name, [6]uint64{}); got != passes {
			t.Errorf("notified: %s: %v", name, got)
		}
	}
	if _, err := NewProfile(Policy{}, "vax"); err == nil {
		t.Error("a profile for a vax")
	}
}
