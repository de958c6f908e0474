package seccomp

import "slices"

// Profile is a policy for those who make their filters of names and conditions, with libseccomp: container runtimes. What
// they can not express (that an argument is none of several) is left out of it: a profile allows all that its policy
// allows and, of calls whose arguments matter, perhaps more. So it is the wall around what is to be trusted (an init), and the
// program compiled from the policy goes on top of it for what is not.
type Profile struct {
	Arch    string // as libseccomp calls it
	Default int    // errno of what is not listed
	Refused []string
	Allowed []Allowance
}

// Allowance is system calls that are allowed when all conditions hold.
type Allowance struct {
	Names []string
	When  []Condition
}

// Condition: the argument under the mask is that value.
type Condition struct {
	Arg         uint
	Mask, Value uint64
}

// NewProfile expresses p for arch as in Compile; the calls named in also are allowed, whatever p says. What p tells a listener
// of is let through as well: a refusal below would be the end of it, and nobody be told.
func NewProfile(p Policy, arch string, also ...string) (*Profile, error) {
	a, err := lookup(arch)
	if err != nil {
		return nil, err
	}
	out := &Profile{Arch: a.libseccomp, Default: noSys.Errno()}
	always := Allowance{}
	for _, c := range a.calls {
		if c.name == "" {
			continue
		}
		steps, act := p.resolve(c.rule)
		told := p.Notify && (steps != nil || act != Allow && !quietly(c.name, act))
		if told || slices.Contains(also, c.name) {
			steps, act = nil, Allow
		}
		switch {
		case steps != nil:
			ways, unconditional := alternatives(steps)
			if unconditional {
				always.Names = append(always.Names, c.name)
				continue
			}
			for _, when := range ways {
				out.Allowed = append(out.Allowed, Allowance{[]string{c.name}, when})
			}
		case act == Allow:
			always.Names = append(always.Names, c.name)
		case act == notPermitted:
			out.Refused = append(out.Refused, c.name)
		}
	}
	out.Allowed = append([]Allowance{always}, out.Allowed...)
	return out, nil
}

// alternatives are the ways through some steps to being allowed; unconditional: there is one that nothing can be said of.
func alternatives(steps []step) (ways [][]Condition, unconditional bool) {
	if len(steps) == 0 {
		return nil, true
	}
	s := steps[0]
	met, unmet := s.conditions()
	rest, free := alternatives(steps[1:])
	if free {
		rest = [][]Condition{nil}
	}
	for _, first := range unmet {
		for _, then := range rest {
			ways = append(ways, join(first, then))
		}
	}
	if s.then == Allow {
		ways = append(ways, met...)
	}
	return ways, slices.ContainsFunc(ways, func(w []Condition) bool { return len(w) == 0 })
}

// conditions are alternatives of which one holds if the step's does, and others of which one holds if not. An empty one says
// nothing.
func (s step) conditions() (met, unmet [][]Condition) {
	is := func(mask, value uint32) []Condition {
		c := Condition{Arg: uint(s.arg), Mask: uint64(mask), Value: uint64(value)}
		if s.high {
			c.Mask, c.Value = c.Mask<<32, c.Value<<32
		}
		return []Condition{c}
	}
	anything := [][]Condition{nil}
	var in [][]Condition
	for _, v := range s.set {
		in = append(in, is(s.mask, v))
	}
	switch s.op {
	case opAny:
		return anything, [][]Condition{is(s.mask, 0)}
	case opNone:
		return [][]Condition{is(s.mask, 0)}, anything
	case opIn:
		return in, anything
	}
	return anything, in // opNotIn
}

// join puts conditions together. Those on one argument become one: of two, libseccomp's users make alternatives.
func join(a, b []Condition) []Condition {
	out := slices.Clone(a)
next:
	for _, c := range b {
		for i := range out {
			if out[i].Arg == c.Arg && out[i].Mask&c.Mask == 0 {
				out[i].Mask, out[i].Value = out[i].Mask|c.Mask, out[i].Value|c.Value
				continue next
			}
		}
		out = append(out, c)
	}
	return out
}
