//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"runtime"
	"slices"
	"testing"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The tables in the tree are what the moby library and tighten.go make today.
func TestTablesAreCurrent(t *testing.T) {
	for _, target := range targets {
		want, err := render(target)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile("../" + target.file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what gen writes; run go generate in internal/linux/seccomp and review the difference", target.file)
		}
	}
}

// A misspelt name in tighten.go would refuse nothing, silently.
func TestTightenNamesExist(t *testing.T) {
	known := map[string]bool{}
	for _, target := range targets {
		calls, err := numbers(target.arch)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range calls {
			known[name] = true
		}
	}
	names := slices.Concat(refused, absent, slices.Collect(maps.Keys(byArguments)))
	slices.Sort(names)
	for i, name := range names {
		if !known[name] {
			t.Errorf("tighten.go: no architecture has a call %q", name)
		}
		if i > 0 && names[i-1] == name {
			t.Errorf("tighten.go: %q is listed twice", name)
		}
	}
}

// The evaluation of moby's conditions here agrees with moby's own on the
// architecture that moby was compiled for.
func TestProfileAgreesWithMoby(t *testing.T) {
	if !slices.ContainsFunc(targets, func(x target) bool { return x.arch == runtime.GOARCH }) {
		t.Skipf("no table for %s", runtime.GOARCH)
	}
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	theirs, err := moby.GetDefaultProfile(spec)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := profile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range theirs.Syscalls {
		for _, name := range c.Names {
			seen[name] = true
			if ours[name] == baseRefused {
				t.Errorf("moby lists %s, this profile does not", name)
			}
		}
	}
	for name := range ours {
		if !seen[name] {
			t.Errorf("this profile lists %s, moby does not", name)
		}
	}
}
