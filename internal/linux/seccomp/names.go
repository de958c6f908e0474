package seccomp

import "slices"

// Names returns the calls of an architecture for a policy in another form (a container
// engine's JSON): those that are allowed, if only with some arguments, and those that fail with EPERM whatever their arguments
// are. All others fail with ENOSYS.
func Names(p Policy, arch string) (allowed, refused []string, err error) {
	a, err := lookup(arch)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range a.calls {
		if c.name == "" {
			continue
		}
		switch steps, act := p.resolve(c.rule); {
		case steps != nil || act == Allow:
			allowed = append(allowed, c.name)
		case act == notPermitted:
			refused = append(refused, c.name)
		}
	}
	slices.Sort(allowed)
	slices.Sort(refused)
	return allowed, refused, nil
}
