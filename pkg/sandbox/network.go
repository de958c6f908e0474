package sandbox

import (
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Networks without rules. The zero value of a policy means none in a Spec, "as the Spec says" in a Process.
var (
	NetworkNone      = network.Policy{Mode: network.None}      // not even loopback
	NetworkLocalhost = network.Policy{Mode: network.Localhost} // a loopback of its own, nothing else
)

// NetworkNote is the beginning of the note about a network that gave no complete report, above all because it ended.
const NetworkNote = "network: destinations and refusals are incomplete: "

// ParseNetwork accepts the name of a network mode.
func ParseNetwork(s string) (network.Mode, error) {
	m := network.Mode(s)
	if !slices.Contains(network.Modes, m) {
		return "", Invalid("network", "unknown mode %q; use one of none, localhost, allow, full, learn", s)
	}
	return m, nil
}

// CompileNetwork checks a policy and returns its filter.
func CompileNetwork(p network.Policy, b network.Bounds) (*network.Filter, error) {
	f, err := p.Compile(b)
	if err != nil {
		return nil, Invalid("network", "%w", err)
	}
	return f, nil
}

// networkViolation is a refused name or connection. The flag that it names would allow it.
func networkViolation(r *network.Refused) Violation {
	v := Violation{Kind: ViolationNetwork, Name: r.Host, Detail: r.Sentence(), Count: uint64(max(r.Count, 0))} //nolint:gosec // not negative
	if r.Allow != "" {
		v.Allow = "--allow " + r.Allow
	}
	return v
}

// addNetwork adds what a network with rules did. Events reported the refusals when they occurred.
func (r *Result) addNetwork(n Networked, p network.Policy) {
	report, unknown := n.Network()
	if unknown != "" {
		r.Notes = append(slices.Clip(r.Notes), NetworkNote+unknown)
	}
	if report == nil {
		return
	}
	r.Metrics.Network = report.Destinations
	for i := range report.Refused {
		r.Violations = append(r.Violations, networkViolation(&report.Refused[i]))
	}
	if p.Mode == network.Learn {
		needed := report.Needed()
		r.Needed = &needed
	}
}
