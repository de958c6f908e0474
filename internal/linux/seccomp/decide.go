package seccomp

import (
	"fmt"
	"runtime"
	"slices"
)

// call is one row of an architecture's table, at the index of its number.
type call struct {
	name string
	rule rule
}

// architecture is what the kernel calls an ABI: seccomp_data.arch and its numbers.
type architecture struct {
	audit      uint32 // AUDIT_ARCH_*
	calls      []call
	libseccomp string // its name there
}

// lookup accepts GOARCH names; "" is the architecture this program runs on.
func lookup(arch string) (architecture, error) {
	if arch == "" {
		arch = runtime.GOARCH
	}
	switch arch {
	case "amd64":
		return architecture{audit: 0xc000003e, libseccomp: "SCMP_ARCH_X86_64", calls: callsX8664[:]}, nil
	case "arm64":
		return architecture{audit: 0xc00000b7, libseccomp: "SCMP_ARCH_AARCH64", calls: callsAArch64[:]}, nil
	}
	return architecture{}, fmt.Errorf("seccomp: no system-call table for architecture %q (have amd64, arm64)", arch)
}

// Decide returns the action of the program Compile(p, arch) for system call nr,
// entered by arch's native ABI, by reading the table instead of running BPF.
func Decide(p Policy, arch string, nr uint32, args [6]uint64) (Action, error) {
	a, err := lookup(arch)
	if err != nil {
		return KillProcess, err
	}
	r := ruleAbsent
	if uint64(nr) < uint64(len(a.calls)) {
		r = p.ruleOf(a.calls[nr])
	}
	steps, act := p.resolve(r)
	if steps == nil {
		return act, nil
	}
	for _, s := range steps {
		arg := args[s.arg]
		if s.high {
			arg >>= 32
		}
		if s.holds(uint32(arg)) {
			return s.then, nil
		}
	}
	return Allow, nil
}

func (s step) holds(half uint32) bool {
	v := half & s.mask
	switch s.op {
	case opAny:
		return v != 0
	case opNone:
		return v == 0
	case opIn:
		return slices.Contains(s.set, v)
	case opNotIn:
		return !slices.Contains(s.set, v)
	}
	return false
}

// Name returns the name of system call nr of arch's native ABI, or "" if the
// number is not assigned to one this package knows.
func Name(arch string, nr uint32) string {
	a, err := lookup(arch)
	if err != nil || uint64(nr) >= uint64(len(a.calls)) {
		return ""
	}
	return a.calls[nr].name
}
