package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

var everyPolicy = []Policy{
	{}, {DenySetID: true}, {DenyUncounted: true}, {DenyAffinity: true}, {DenyAllocate: true},
	{DenySetID: true, DenyUncounted: true, DenyAffinity: true, DenyAllocate: true},
	{Zygote: true}, {Notify: true}, {DenySetID: true, Notify: true},
	{DenySetID: true, DenyUncounted: true, DenyAffinity: true, DenyAllocate: true, Notify: true},
}

// plain is a notification, or a refusal of a zygote's, as the errno it stands for, and any other action as it is.
func plain(a Action) Action {
	if a&actionMask == retNotify || a&actionMask == retTrace {
		return retErrno | a&^actionMask
	}
	return a
}

func program(t testing.TB, p Policy, arch string) []byte {
	t.Helper()
	prog, err := Compile(p, arch)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

func numberOf(arch, name string) int {
	a, _ := lookup(arch)
	return slices.IndexFunc(a.calls, func(c call) bool { return c.name == name })
}

func decode(prog []byte) []bpf.RawInstruction {
	var out []bpf.RawInstruction
	for b := range slices.Chunk(prog, InstructionSize) {
		out = append(out, bpf.RawInstruction{
			Op: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:]),
		})
	}
	return out
}

// machine runs a program on x/net/bpf's virtual machine, a second opinion on
// what the instructions mean.
type machine struct{ vm *bpf.VM }

func newMachine(t testing.TB, prog []byte) machine {
	t.Helper()
	ins, ok := bpf.Disassemble(decode(prog))
	if !ok {
		t.Fatal("program holds instructions x/net/bpf does not know")
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	return machine{vm}
}

func (m machine) run(t testing.TB, arch, nr uint32, args [6]uint64) Action {
	t.Helper()
	// That machine loads words in network order; halves stay in the order of
	// a little-endian kernel.
	var data [64]byte
	binary.BigEndian.PutUint32(data[offNr:], nr)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offArgs+8*i+4:], uint32(a>>32))
	}
	ret, err := m.vm.Run(data[:])
	if err != nil {
		t.Fatal(err)
	}
	return Action(uint32(ret))
}

func simulate(t testing.TB, prog []byte, arch, nr uint32, args [6]uint64) Action {
	t.Helper()
	return newMachine(t, prog).run(t, arch, nr, args)
}

func TestForeignArchitectureIsKilled(t *testing.T) {
	audit := map[string]uint32{
		"x86_64": 0xc000003e, "i386": 0x40000003, "aarch64": 0xc00000b7, "arm": 0x40000028, "zero": 0, "ones": 0xffffffff,
	}
	for arch, native := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		prog := program(t, Policy{}, arch)
		getpid := uint32(numberOf(arch, "getpid"))
		for name, value := range audit {
			want := KillProcess
			if name == native {
				want = Allow
			}
			for _, nr := range []uint32{getpid, 20 /* getpid of i386 and arm */} {
				if got := simulate(t, prog, value, nr, [6]uint64{}); got != want {
					t.Errorf("%s filter, call of %s: %v, want %v", arch, name, got, want)
				}
			}
		}
	}
}

func TestUnknownNumbersDoNotExist(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		a, _ := lookup(arch)
		m := newMachine(t, program(t, Policy{}, arch))
		for _, nr := range []uint32{uint32(len(a.calls)), 512, 547, 1000, 0x3fffffff, 0x40000000, 0x40000000 + 39, 0x40000000 + 520, 0x7fffffff,
			0x80000000, 0xffffffff} {
			if got := m.run(t, a.audit, nr, [6]uint64{}); got != noSys {
				t.Errorf("%s: call %#x: %v, want ENOSYS", arch, nr, got)
			}
		}
		for nr := range uint32(len(a.calls)) { // every call under the x32 bit
			if got := m.run(t, a.audit, nr|0x40000000, [6]uint64{}); got != noSys {
				t.Errorf("%s: x32 call %d: %v, want ENOSYS", arch, nr, got)
			}
		}
	}
}

// The kernel answers a call from a bitmap, without running the filter, if
// the filter allows it by looking at arch and nr alone. This follows
// seccomp_is_const_allow instruction by instruction.
func TestAllowedCallsReachTheBitmap(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		a, _ := lookup(arch)
		for _, p := range everyPolicy {
			prog := decode(program(t, p, arch))
			deepest := 0
			for nr, c := range a.calls {
				constant, depth := constAllow(prog, a.audit, uint32(nr))
				steps, act := p.resolve(c.rule)
				if want := steps == nil && act == Allow; constant != want {
					t.Errorf("%s %+v: %s constant-allowed is %v, want %v", arch, p, c.name, constant, want)
				}
				deepest = max(deepest, depth)
			}
			t.Logf("%s %+v: %d instructions, at most %d of them run before an answer or a look at arguments", arch, p, len(prog), deepest)
			if deepest > 16 {
				t.Errorf("%s %+v: search is %d instructions deep", arch, p, deepest)
			}
		}
	}
}

func constAllow(prog []bpf.RawInstruction, arch, nr uint32) (bool, int) {
	var acc uint32
	for pc, n := 0, 1; ; pc, n = pc+1, n+1 {
		in := prog[pc]
		branch := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Op {
		case opLoad:
			switch in.K {
			case offNr:
				acc = nr
			case offArch:
				acc = arch
			default:
				return false, n // looks at an argument
			}
		case opReturn:
			return Action(in.K) == Allow, n
		case opJump:
			pc += int(in.K)
		case opJumpEq:
			branch(acc == in.K)
		case opJumpGe:
			branch(acc >= in.K)
		case opJumpSet:
			branch(acc&in.K != 0)
		case opAnd:
			acc &= in.K
		default:
			return false, n
		}
	}
}

// Every number against every argument that its rule mentions, and its neighbours, two at a time; and against all that others mention,
// where all tests run two at a time as well.
func TestProgramAgreesWithTable(t *testing.T) {
	whole := testenv.All()
	mentioned := func(steps []step) (values []uint64) {
		for _, s := range steps {
			for _, v := range append([]uint32{s.mask, 0}, s.set...) {
				values = append(values, uint64(v), uint64(v)+1, uint64(v)|1<<32, uint64(v)|1<<63, uint64(v^0x800))
			}
		}
		slices.Sort(values)
		return slices.Compact(values)
	}
	var everywhere []step
	for r := range ruleCount {
		for _, p := range everyPolicy {
			steps, _ := p.resolve(r)
			everywhere = append(everywhere, steps...)
		}
	}
	all := mentioned(everywhere)
	for _, arch := range []string{"amd64", "arm64"} {
		a, _ := lookup(arch)
		for _, p := range everyPolicy {
			m := newMachine(t, program(t, p, arch))
			check := func(nr uint32, args [6]uint64) {
				want, _ := Decide(p, arch, nr, args)
				if got := plain(m.run(t, a.audit, nr, args)); got != want {
					t.Fatalf("%s %+v: call %d %#x: program says %v, table %v", arch, p, nr, args, got, want)
				}
			}
			pairs := func(nr uint32, some, others []uint64) {
				for _, v := range some {
					for _, w := range others {
						check(nr, [6]uint64{v, w, 0, 0})
						check(nr, [6]uint64{2, 1, v, w})
						check(nr, [6]uint64{1, v, w, 0})
					}
				}
			}
			for nr := range uint32(len(a.calls) + 64) {
				check(nr, [6]uint64{})
				if uint64(nr) >= uint64(len(a.calls)) {
					continue
				}
				steps, _ := p.resolve(a.calls[nr].rule)
				switch {
				case steps == nil:
				case whole:
					pairs(nr, all, all)
				default:
					own := mentioned(steps)
					pairs(nr, own, own)
					pairs(nr, all, []uint64{0})
					pairs(nr, []uint64{0}, all)
				}
			}
		}
	}
}

func FuzzProgramAgreesWithTable(f *testing.F) {
	type key struct {
		p    Policy
		arch string
	}
	machines := map[key]machine{}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range everyPolicy {
			machines[key{p, arch}] = newMachine(f, program(f, p, arch))
		}
	}
	f.Add(uint32(41), uint64(2), uint64(3), uint64(0), uint64(0))
	f.Add(uint32(56), uint64(0x10000011), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(16), uint64(0), uint64(1<<32|0x5412), uint64(0), uint64(0))
	f.Add(uint32(257), uint64(0), uint64(0), uint64(0x41), uint64(0o4755))
	f.Add(uint32(0x40000027), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, nr uint32, a0, a1, a2, a3 uint64) {
		args := [6]uint64{a0, a1, a2, a3, ^a0, ^a1}
		for k, m := range machines {
			a, _ := lookup(k.arch)
			// Most 32-bit numbers are no call: look at a real one as well.
			for _, n := range []uint32{nr, nr % uint32(len(a.calls)+1)} {
				want, err := Decide(k.p, k.arch, n, args)
				if err != nil {
					t.Fatal(err)
				}
				if got := plain(m.run(t, a.audit, n, args)); got != want {
					t.Fatalf("%+v: call %d %#x: program says %v, table %v", k, n, args, got, want)
				}
			}
		}
	})
}

func TestUnknownArchitectureIsAnError(t *testing.T) {
	if prog, err := Compile(Policy{}, "riscv64"); err == nil || prog != nil {
		t.Errorf("Compile for riscv64: %d bytes, error %v", len(prog), err)
	}
	if act, err := Decide(Policy{}, "riscv64", 0, [6]uint64{}); err == nil || act == Allow {
		t.Errorf("Decide for riscv64: %v, error %v", act, err)
	}
}

func TestName(t *testing.T) {
	if got := Name("amd64", 165); got != "mount" {
		t.Errorf("amd64 165 is %q", got)
	}
	if got := Name("arm64", 40); got != "mount" {
		t.Errorf("arm64 40 is %q", got)
	}
	for _, nr := range []uint32{400, 1 << 30, 0xffffffff} {
		if got := Name("amd64", nr); got != "" {
			t.Errorf("amd64 %d is %q, want no name", nr, got)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, p := range everyPolicy {
		b.Run(fmt.Sprintf("%+v", p), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Compile(p, "amd64"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
