package seccomp

import (
	"encoding/binary"
	"fmt"
)

// The classic BPF this package emits, and no more: the kernel finds out which
// calls are always allowed (and then skips the filter for them) by interpreting
// loads of arch and nr, these jumps and RET only. See seccomp_is_const_allow.
const (
	opLoad    = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opAnd     = 0x54 // BPF_ALU | BPF_AND | BPF_K
	opJump    = 0x05 // BPF_JMP | BPF_JA
	opJumpEq  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	opJumpGe  = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	opJumpSet = 0x45 // BPF_JMP | BPF_JSET | BPF_K
	opReturn  = 0x06 // BPF_RET | BPF_K
)

// struct seccomp_data { int nr; u32 arch; u64 ip; u64 args[6]; }
const (
	offNr   = 0
	offArch = 4
	offArgs = 16 // both architectures are little-endian: the low half comes first
)

// InstructionSize is the size of one struct sock_filter: the length of a
// program divided by it is sock_fprog.len.
const InstructionSize = 8

// sockFilter is struct sock_filter.
type sockFilter struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// span is a run of system-call numbers, from start to the next span's, that
// are treated alike.
type span struct {
	start uint32
	rule  rule // meaningful if steps
	steps bool
	act   Action // otherwise
	quiet bool
}

// assembler holds one compilation.
type assembler struct {
	policy Policy
	prog   []sockFilter
	spans  []span
	// jumps[i] has to be patched to reach the fragment of its rule: fragments
	// come after the search tree and are shared by all calls of a rule.
	jumps []jump
	err   error
}

type jump struct {
	at   int
	rule rule
}

// Compile returns p for arch ("amd64", "arm64"; "" is this program's own) as
// an array of struct sock_filter in the byte order of arch. The slice is the
// caller's.
//
//	arch foreign?                    → kill
//	binary search over runs of nr    → allow | errno | notify | fragment of a rule
//	fragments: steps over arguments  → allow | errno | notify
func Compile(p Policy, arch string) ([]byte, error) {
	a, err := lookup(arch)
	if err != nil {
		return nil, err
	}
	// Sizes of today's tables with room to spare; growing is harmless.
	asm := assembler{
		policy: p,
		prog:   make([]sockFilter, 0, 384),
		spans:  make([]span, 0, 160),
		jumps:  make([]jump, 0, 32),
	}
	asm.collect(a.calls)
	asm.emit(sockFilter{code: opLoad, k: offArch})
	asm.emit(sockFilter{code: opJumpEq, jt: 1, k: a.audit})
	asm.emit(sockFilter{code: opReturn, k: p.encode(KillProcess, false)})
	asm.emit(sockFilter{code: opLoad, k: offNr})
	asm.search(asm.spans)
	asm.fragments()
	if asm.err != nil {
		return nil, asm.err
	}
	out := make([]byte, 0, len(asm.prog)*InstructionSize)
	for _, in := range asm.prog {
		out = binary.LittleEndian.AppendUint16(out, in.code)
		out = append(out, in.jt, in.jf)
		out = binary.LittleEndian.AppendUint32(out, in.k)
	}
	return out, nil
}

// collect finds the runs. The last one is open-ended and absent: numbers beyond the
// table, among them every x32 call (bit 30) and -1.
func (asm *assembler) collect(calls []call) {
	for nr := range len(calls) + 1 {
		r, name := ruleAbsent, ""
		if nr < len(calls) {
			r, name = weakenRule(calls[nr].name, asm.policy.ruleOf(calls[nr])), calls[nr].name
		}
		s := span{start: uint32(nr)}
		steps, act := asm.policy.resolve(r)
		if steps != nil {
			s.rule, s.steps = r, true
		} else {
			s.act, s.quiet = act, quietly(name, act)
		}
		if n := len(asm.spans); n > 0 {
			if last := asm.spans[n-1]; last.steps == s.steps && last.rule == s.rule && last.act == s.act &&
				(last.quiet == s.quiet || !asm.policy.Notify) {
				continue
			}
		}
		asm.spans = append(asm.spans, s)
	}
}

func (asm *assembler) emit(in sockFilter) { asm.prog = append(asm.prog, in) }

// search emits a balanced search tree over spans; nr is in the accumulator.
func (asm *assembler) search(spans []span) {
	if len(spans) == 1 {
		s := spans[0]
		if s.steps {
			asm.jumps = append(asm.jumps, jump{at: len(asm.prog), rule: s.rule})
			asm.emit(sockFilter{code: opJump})
		} else {
			asm.emit(sockFilter{code: opReturn, k: asm.policy.encode(s.act, s.quiet)})
		}
		return
	}
	mid := len(spans) / 2
	at := len(asm.prog)
	asm.emit(sockFilter{code: opJumpGe, k: spans[mid].start})
	asm.search(spans[:mid])
	asm.prog[at].jt = asm.short(len(asm.prog) - at - 1)
	asm.search(spans[mid:])
}

// short checks a conditional jump's distance, which has eight bits. The tree's
// longest is the size of its left half, far below; all policies are compiled in tests.
func (asm *assembler) short(distance int) uint8 {
	if distance > 255 && asm.err == nil {
		asm.err = fmt.Errorf("seccomp: jump over %d instructions does not fit", distance)
	}
	return uint8(distance)
}

// fragments emits the steps of every rule that was jumped to, once each.
func (asm *assembler) fragments() {
	var start [ruleCount]int // 0: not emitted; the program's head is there
	for _, j := range asm.jumps {
		if start[j.rule] == 0 {
			start[j.rule] = len(asm.prog)
			steps, _ := asm.policy.resolve(j.rule)
			for _, s := range steps {
				asm.step(s)
			}
			asm.emit(sockFilter{code: opReturn, k: asm.policy.encode(Allow, false)})
		}
		asm.prog[j.at].k = uint32(start[j.rule] - j.at - 1)
	}
}

func (asm *assembler) step(s step) {
	at := offArgs + 8*uint32(s.arg)
	if s.high {
		at += 4
	}
	asm.emit(sockFilter{code: opLoad, k: at})
	n := len(s.set)
	switch s.op {
	case opAny:
		asm.emit(sockFilter{code: opJumpSet, jt: 0, jf: 1, k: s.mask})
	case opNone:
		asm.emit(sockFilter{code: opJumpSet, jt: 1, jf: 0, k: s.mask})
	case opIn, opNotIn:
		if s.mask != whole {
			asm.emit(sockFilter{code: opAnd, k: s.mask})
		}
		for i, v := range s.set {
			in := sockFilter{code: opJumpEq, k: v}
			if s.op == opIn {
				in.jt = asm.short(n - i - 1) // to the return
				if i == n-1 {
					in.jf = 1 // past it
				}
			} else {
				in.jt = asm.short(n - i) // past the return
			}
			asm.emit(in)
		}
	}
	asm.emit(sockFilter{code: opReturn, k: asm.policy.encode(s.then, s.quiet)})
}
