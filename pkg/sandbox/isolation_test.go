package sandbox

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTiers(t *testing.T) {
	order := []Tier{TierNone, TierProcess, TierNamespace, TierContainer, TierGVisor, TierMicroVM}
	for i, a := range order {
		for j, b := range order {
			if got := a.AtLeast(b); got != (i >= j) {
				t.Errorf("%s at least %s: %v", a, b, got)
			}
		}
		if _, err := ParseTier(string(a)); (err == nil) != (a != TierNone) {
			t.Errorf("%s: %v", a, err)
		}
		if a.AtLeast("fortress") || Tier("fortress").AtLeast(TierNone) {
			t.Error("an unknown tier is compared")
		}
	}
	if _, err := ParseTier("Container"); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "process, namespace, container, gvisor, microvm") {
		t.Error(err)
	}
}

// No set of controls gets a tier whose controls it does not have.
func TestGrade(t *testing.T) {
	full := NewIsolation("x")
	full.Enforce(AllControls()...)
	full.Grade()
	if full.Tier != TierContainer {
		t.Errorf("everything is %s", full.Tier)
	}
	walls := []Control{"user_namespace", "pid_namespace", "mount_namespace", "network_namespace", "ipc_namespace", "uts_namespace",
		"cgroup_namespace", "private_root", "seccomp", "no_new_privileges", "no_capabilities"}
	limits := []Control{"memory", "pids", "cpus"}
	for _, c := range AllControls() {
		for _, state := range []ControlState{Absent, Polled, Declared} {
			iso := full.Clone()
			iso.Lack(c, state, "because", "")
			iso.Grade()
			want := TierContainer
			switch {
			case state == Declared: // enough for a tier, and never for --strict
				if iso.Check(TierContainer, true) == nil {
					t.Errorf("%s is declared, and --strict takes it", c)
				}
			case slices.Contains(walls, c), slices.Contains(limits, c) && state == Absent:
				want = TierNone
			case slices.Contains(limits, c):
				want = TierNamespace
			}
			if iso.Tier != want {
				t.Errorf("without %s (%s) it is %s, want %s", c, state, iso.Tier, want)
			}
			if full.Controls[c] != Enforced || len(full.Missing) != 0 {
				t.Fatal("a clone shares its maps")
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		iso := NewIsolation("x")
		for _, c := range AllControls() {
			iso.Controls[c] = rapid.SampledFrom([]ControlState{Enforced, Declared, Polled, Absent}).Draw(t, string(c))
		}
		iso.Grade()
		for _, c := range walls {
			if iso.Tier != TierNone && iso.Controls[c] != Enforced && iso.Controls[c] != Declared {
				t.Fatalf("%s without %s", iso.Tier, c)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	iso := NewIsolation("x")
	if err := iso.Check("", false); err == nil {
		t.Error("a report without a grade passes the check")
	}
	iso.Tier = TierNone
	if err := iso.Check(TierNone, false); err == nil {
		t.Error("none is let through")
	}
	iso.Tier = TierContainer
	for _, c := range []struct {
		require Tier
		strict  bool
		gap, ok bool
	}{
		{"", false, true, true}, {"", true, false, true}, {"", true, true, false}, {TierProcess, false, true, true},
		{TierGVisor, false, false, false}, {"fortress", false, false, false},
	} {
		iso.Missing = nil
		if c.gap {
			iso.Missing = []Gap{{Control: ControlLandlock, State: Absent}}
		}
		if err := iso.Check(c.require, c.strict); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if n := len(AllControls()); n != 22 || n != len(NewIsolation("x").Controls) {
		t.Errorf("%d controls, %d of them in a report", n, len(NewIsolation("x").Controls))
	}
}
