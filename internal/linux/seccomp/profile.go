package seccomp

import "slices"

// Profile is a policy for container runtimes, which build filters of names and conditions with libseccomp. It leaves out
// what those can not express (that an argument is none of several): a profile allows all that its policy
// allows and, of calls whose arguments matter, perhaps more. So it confines trusted code (an init), and the
// program compiled from the policy is installed on top of it for untrusted code.
type Profile struct {
	Arch    string // as libseccomp calls it
	Default int    // errno of calls that are not listed
	Refused []string
	Allowed []Allowance
}

// Allowance lists system calls that are allowed when all conditions hold.
type Allowance struct {
	Names []string
	When  []Condition
}

// Condition holds if the argument under the mask equals the value.
type Condition struct {
	Arg         uint
	Mask, Value uint64
}

// NewProfile expresses p for arch as in Compile; the calls named in also are allowed, whatever p says. The profile allows
// calls that p notifies a listener of: a refusal by the profile would hide them from the listener.
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

// alternatives are the sets of conditions under which steps allow a call; unconditional: one of the sets is empty.
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

// conditions returns alternatives of which one holds if the step's condition holds, and alternatives of which one holds if
// not. An empty alternative always holds.
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

// join combines conditions. Two conditions on one argument become one: runtimes would treat them as alternatives.
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
