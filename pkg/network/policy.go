package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Mode is the kind of network that a sandbox has.
type Mode string

// The modes, from the least to the most. The zero value is None.
const (
	None      Mode = "none"      // not even loopback
	Localhost Mode = "localhost" // a loopback of its own, nothing else
	Allow     Mode = "allow"     // what the rules allow
	Full      Mode = "full"      // every ordinary address of the internet; others need a rule by address
)

// Modes are all modes, from the least to the most.
var Modes = []Mode{None, Localhost, Allow, Full}

// MaxRules is how many rules a list of a policy may have.
const MaxRules = 256

// Policy is the network of a sandbox as data. The zero value is no network.
type Policy struct {
	Mode  Mode     `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"` // HOST[:PORT[,PORT]][/udp]; a HOST is a name, *.name, an address or a prefix
	Deny  []string `json:"deny,omitempty"`  // the same; wins. Without a port it is for every port
	DNS   bool     `json:"dns,omitempty"`   // resolve every name, not only allowed ones: names can carry data out
}

// Bounds are what no policy of a request can admit.
type Bounds struct {
	Forbidden []netip.Prefix `json:"forbidden,omitempty"` // the operator's
	Host      []netip.Addr   `json:"host,omitempty"`      // addresses of the machine itself; a rule by address admits them
}

// Filter is a compiled policy.
type Filter struct {
	mode        Mode
	dns         bool
	allow, deny []rule
	bounds      Bounds
}

// Compile checks the rules. An error names the list and the rule.
func (p Policy) Compile(b Bounds) (*Filter, error) {
	f := &Filter{mode: p.Mode, dns: p.DNS, bounds: b}
	if p.Mode != "" && !slices.Contains(Modes, p.Mode) {
		return nil, fmt.Errorf("unknown mode %q; use one of none, localhost, allow, full", p.Mode)
	}
	if (p.Mode == "" || p.Mode == None || p.Mode == Localhost) && (len(p.Allow) > 0 || len(p.Deny) > 0 || p.DNS) {
		return nil, fmt.Errorf("rules do not fit the mode %s; use the mode allow or full", max(p.Mode, None))
	}
	var err error
	if f.allow, err = parseList("allow", p.Allow, parseAllow); err != nil {
		return nil, err
	}
	if f.deny, err = parseList("deny", p.Deny, parseRule); err != nil {
		return nil, err
	}
	return f, nil
}

func parseList(name string, texts []string, parse func(string) (rule, error)) ([]rule, error) {
	if len(texts) > MaxRules {
		return nil, fmt.Errorf("%s: %d rules; the most is %d", name, len(texts), MaxRules)
	}
	rules := make([]rule, 0, len(texts))
	for _, text := range texts {
		r, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// Refusal is why a name or a connection is not allowed.
type Refusal struct {
	Reason string // "not allowed", "denied by example.com", "private address", …
	Allow  string // the rule that would allow it; empty: none would
}

// Name decides whether a name may be resolved. The name is in canonical form. Allowed reports whether a rule or the mode is for
// this name; a name that only resolves because of DNS is not.
func (f *Filter) Name(name string) (allowed bool, refused *Refusal) {
	if r := f.denied(func(r *rule) bool { return r.matchesName(name) && r.ports == nil && r.protocol == "" }); r != nil {
		return false, &Refusal{Reason: "denied by " + r.text}
	}
	if f.mode == Full || slices.ContainsFunc(f.allow, func(r rule) bool { return r.matchesName(name) }) {
		return true, nil
	}
	if f.dns {
		return false, nil
	}
	return false, &Refusal{Reason: "not allowed", Allow: name}
}

// ByName decides on a connection to a name, before the name is resolved. Each address is then up to ByAddress, with named set.
func (f *Filter) ByName(name string, p Protocol, port uint16) *Refusal {
	if r := f.denied(func(r *rule) bool { return r.matchesName(name) && r.matchesPort(p, port) }); r != nil {
		return &Refusal{Reason: "denied by " + r.text}
	}
	match := func(r rule) bool { return r.matchesName(name) && r.matchesPort(p, port) }
	if f.mode == Full || slices.ContainsFunc(f.allow, match) {
		return nil
	}
	return &Refusal{Reason: "not allowed", Allow: suggest(name, p, port)}
}

// ByAddress decides on a connection to an address. named: the address is that of a name that ByName has admitted, so that an
// ordinary address needs no rule of its own.
func (f *Filter) ByAddress(a netip.Addr, p Protocol, port uint16, named bool) *Refusal {
	a = a.Unmap().WithZone("")
	if r := f.denied(func(r *rule) bool { return r.matchesAddr(a) && r.matchesPort(p, port) }); r != nil {
		return &Refusal{Reason: "denied by " + r.text}
	}
	for _, prefix := range f.bounds.Forbidden {
		if prefix.Contains(a) {
			return &Refusal{Reason: "forbidden by the operator"}
		}
	}
	if slices.ContainsFunc(f.allow, func(r rule) bool { return r.matchesAddr(a) && r.matchesPort(p, port) }) {
		return nil
	}
	refusal := &Refusal{Reason: "not allowed", Allow: suggest(a.String(), p, port)}
	if why := special(a); why != "" {
		refusal.Reason = why + " address"
	} else if slices.Contains(f.bounds.Host, a) {
		refusal.Reason = "address of this machine"
	} else if named || f.mode == Full {
		return nil
	}
	return refusal
}

func (f *Filter) denied(match func(*rule) bool) *rule {
	for i := range f.deny {
		if match(&f.deny[i]) {
			return &f.deny[i]
		}
	}
	return nil
}

// suggest is the shortest rule for a host and a port.
func suggest(host string, p Protocol, port uint16) string {
	if p == TCP && slices.Contains(webPorts, port) {
		return host
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	text := fmt.Sprintf("%s:%d", host, port)
	if p == UDP {
		text += "/udp"
	}
	return text
}

// Inspects reports whether connections to names must name the same host in their own protocol. In the mode Full every name is
// allowed, so that nothing is gained by another one.
func (f *Filter) Inspects() bool { return f.mode == Allow }
