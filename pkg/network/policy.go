package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	Learn     Mode = "learn"     // as Full; the caller wants the least policy that would have sufficed
)

// Modes are all modes, from the least to the most.
var Modes = []Mode{None, Localhost, Allow, Full, Learn}

// MaxRules is how many rules a list of a policy may have.
const MaxRules = 256

// Policy is the network of a sandbox as data. The zero value is no network. Its JSON is an object, or the mode as a string if
// there is nothing else.
type Policy struct {
	Mode       Mode     `json:"mode,omitempty"`       // none; with a rule or a published port allow
	Allow      []string `json:"allow,omitempty"`      // HOST[:PORT[,PORT]][/udp]; a HOST is a name, *.name, an address or a prefix
	Deny       []string `json:"deny,omitempty"`       // the same; wins. Without a port it is for every port
	Registries []string `json:"registries,omitempty"` // names of package registries to allow
	DNS        bool     `json:"dns,omitempty"`        // resolve every name, not only allowed ones: names can carry data out
	Publish    []string `json:"publish,omitempty"`    // [HOSTPORT:]PORT: ports of programs on the host's loopback
}

// IsZero reports whether nothing is set.
func (p Policy) IsZero() bool { return p.Equal(Policy{}) }

// Equal compares two policies as they are written.
func (p Policy) Equal(o Policy) bool {
	return p.Mode == o.Mode && p.DNS == o.DNS && slices.Equal(p.Allow, o.Allow) && slices.Equal(p.Deny, o.Deny) &&
		slices.Equal(p.Registries, o.Registries) && slices.Equal(p.Publish, o.Publish)
}

// Or returns p, or base if nothing is set in p.
func (p Policy) Or(base Policy) Policy {
	if p.IsZero() {
		return base
	}
	return p
}

// Clone copies the policy.
func (p Policy) Clone() Policy {
	p.Allow, p.Deny = slices.Clone(p.Allow), slices.Clone(p.Deny)
	p.Registries, p.Publish = slices.Clone(p.Registries), slices.Clone(p.Publish)
	return p
}

// Complete fills in the mode.
func (p Policy) Complete() Policy {
	switch {
	case p.Mode != "":
	case len(p.Allow) > 0 || len(p.Registries) > 0 || len(p.Publish) > 0 || p.DNS:
		p.Mode = Allow
	default:
		p.Mode = None
	}
	return p
}

// HasLoopback reports whether programs have a loopback of their own.
func (p Policy) HasLoopback() bool { return p.Mode != "" && p.Mode != None }

// HasRules reports whether the sandbox has a device, behind which a filter decides.
func (p Policy) HasRules() bool { return p.Mode == Allow || p.Mode == Full || p.Mode == Learn }

// String describes the policy for people.
func (p Policy) String() string {
	p = p.Complete()
	text := []string{string(p.Mode)}
	for _, list := range []struct {
		name  string
		rules []string
	}{{"", p.Allow}, {"registries", p.Registries}, {"deny", p.Deny}, {"publish", p.Publish}} {
		if len(list.rules) > 0 {
			text = append(text, strings.TrimSpace(list.name+" "+strings.Join(list.rules, " ")))
		}
	}
	if p.DNS {
		text = append(text, "every name is resolved")
	}
	return strings.Replace(strings.Join(text, "; "), "allow; ", "allow ", 1)
}

// document is the JSON object of a policy.
type document Policy

// MarshalJSON writes the mode alone as a string.
func (p Policy) MarshalJSON() ([]byte, error) {
	if p.Equal(Policy{Mode: p.Mode}) {
		return json.Marshal(p.Mode)
	}
	return json.Marshal(document(p))
}

// UnmarshalJSON reads both forms. An unknown field is an error: a rule that is misspelt would not be enforced.
func (p *Policy) UnmarshalJSON(data []byte) error {
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] == '"' {
		*p = Policy{}
		return json.Unmarshal(data, &p.Mode)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var read document
	if err := d.Decode(&read); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is text after the object")
	}
	*p = Policy(read)
	return nil
}

// Bounds are what no policy of a request can exceed: the operator's.
type Bounds struct {
	Ceiling    *Policy             `json:"ceiling,omitempty"` // allows at least what any connection needs; nil: everything
	Forbidden  []netip.Prefix      `json:"forbidden,omitempty"`
	NoPublish  bool                `json:"no_publish,omitempty"`
	Registries map[string][]string `json:"registries,omitempty"` // rules in place of those of the table
	// Services are names that lead to a socket of this machine, whatever the port, and are never looked up. They need a rule like any name.
	Services map[string]netip.AddrPort `json:"services,omitempty"`
}

// Filter is a compiled policy.
type Filter struct {
	mode        Mode
	dns         bool
	allow, deny []rule
	forbidden   []netip.Prefix
	ceiling     *Filter
	published   []Port
	services    map[string]netip.AddrPort
}

// Validate checks the policy as Compile does.
func (p Policy) Validate() error {
	_, err := p.Compile(Bounds{})
	return err
}

// Compile checks the policy, and refuses rules that the bounds never admit. An error names the list and the rule.
func (p Policy) Compile(b Bounds) (*Filter, error) {
	if p.Mode != "" && !slices.Contains(Modes, p.Mode) {
		return nil, fmt.Errorf("unknown mode %q; use one of none, localhost, allow, full, learn", p.Mode)
	}
	p = p.Complete()
	f := &Filter{mode: p.Mode, dns: p.DNS, forbidden: b.Forbidden, services: b.Services}
	if !p.HasRules() && p.Equal(Policy{Mode: None, Deny: p.Deny}) && len(p.Deny) > 0 {
		return nil, errors.New("deny: there is nothing to deny without a network; use the mode full, or allow rules")
	}
	if !p.HasRules() && !p.Equal(Policy{Mode: p.Mode}) {
		return nil, fmt.Errorf("rules do not fit the mode %s; use the mode allow or full", p.Mode)
	}
	allowed := slices.Clone(p.Allow)
	for _, name := range p.Registries {
		rules, err := registryRules(name, b.Registries)
		if err != nil {
			return nil, err
		}
		allowed = append(allowed, rules...)
	}
	var err error
	if f.allow, err = parseList("allow", allowed, parseAllow); err != nil {
		return nil, err
	}
	if f.deny, err = parseList("deny", p.Deny, parseRule); err != nil {
		return nil, err
	}
	if f.published, err = parsePublish(p.Publish); err != nil {
		return nil, err
	}
	if b.NoPublish && len(f.published) > 0 {
		return nil, errors.New("publish: the operator does not allow published ports")
	}
	if b.Ceiling != nil {
		if f.ceiling, err = b.Ceiling.Compile(Bounds{Registries: b.Registries}); err != nil {
			return nil, fmt.Errorf("the operator's policy: %w", err)
		}
	}
	return f, f.fitsCeiling()
}

// fitsCeiling refuses what the operator never admits, so that a request learns it before its run.
func (f *Filter) fitsCeiling() error {
	if f.ceiling != nil && f.mode.Above(f.ceiling.mode) {
		return fmt.Errorf("the mode %s is more than the operator allows: %s", f.mode, f.ceiling.mode)
	}
	if f.ceiling != nil && f.dns && !f.ceiling.dns && !f.ceiling.everything() {
		return errors.New("dns: the operator does not allow to resolve every name")
	}
	for i := range f.allow {
		r := &f.allow[i]
		for _, p := range f.forbidden {
			if r.prefix.IsValid() && p.Bits() <= r.prefix.Bits() && p.Contains(r.prefix.Addr()) {
				return fmt.Errorf("allow: rule %q: forbidden by the operator", r.text)
			}
		}
		if f.ceiling != nil && !f.ceiling.covers(r) {
			return fmt.Errorf("allow: rule %q: more than the operator allows", r.text)
		}
	}
	return nil
}

// Above reports whether a mode reaches more than another. Learn reaches as much as Full, but needs a permission of its own.
func (m Mode) Above(o Mode) bool { return slices.Index(Modes, m) > slices.Index(Modes, o) }

// covers reports whether the rules may admit a part of what r admits. Every connection is decided on by both filters in any case.
func (f *Filter) covers(r *rule) bool {
	if f.mode == Full || f.mode == Learn {
		return r.name != "" || special(r.prefix.Addr()) == "" || slices.ContainsFunc(f.allow, r.overlaps)
	}
	return slices.ContainsFunc(f.allow, r.overlaps)
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

// operator is the reason of a refusal that no rule of a request changes.
const operator = "not allowed by the operator"

// Name decides whether a name may be resolved. The name is in canonical form. Allowed reports whether a rule or the mode is for
// this name; a name that only resolves because of DNS is not.
func (f *Filter) Name(name string) (allowed bool, refused *Refusal) {
	if weakenRules {
		return true, nil
	}
	if r := f.denied(func(r *rule) bool { return r.matchesName(name) && r.ports == nil && r.protocol == "" }); r != nil {
		return false, &Refusal{Reason: "denied by " + r.text}
	}
	if f.ceiling != nil {
		if _, refused := f.ceiling.Name(name); refused != nil {
			return false, &Refusal{Reason: operator}
		}
	}
	if f.everything() || slices.ContainsFunc(f.allow, func(r rule) bool { return r.matchesName(name) }) {
		return true, nil
	}
	if f.dns {
		return false, nil
	}
	return false, &Refusal{Reason: "not allowed", Allow: name}
}

// ByName decides on a connection to a name, before the name is resolved. Each address is then up to ByAddress, with named set.
func (f *Filter) ByName(name string, p Protocol, port uint16) *Refusal {
	if weakenRules {
		return nil
	}
	if r := f.denied(func(r *rule) bool { return r.matchesName(name) && r.matchesPort(p, port) }); r != nil {
		return &Refusal{Reason: "denied by " + r.text}
	}
	if f.ceiling != nil && f.ceiling.ByName(name, p, port) != nil {
		return &Refusal{Reason: operator}
	}
	match := func(r rule) bool { return r.matchesName(name) && r.matchesPort(p, port) }
	if f.everything() || slices.ContainsFunc(f.allow, match) {
		return nil
	}
	return &Refusal{Reason: "not allowed", Allow: suggest(name, p, port)}
}

// ByAddress decides on a connection to an address. named: the address is that of a name that ByName has admitted, so that an
// ordinary address needs no rule of its own. local: it is an address of this machine.
func (f *Filter) ByAddress(a netip.Addr, p Protocol, port uint16, named, local bool) *Refusal {
	if weakenRules {
		return nil
	}
	a = a.Unmap().WithZone("")
	if r := f.denied(func(r *rule) bool { return r.matchesAddr(a) && r.matchesPort(p, port) }); r != nil {
		return &Refusal{Reason: "denied by " + r.text}
	}
	for _, prefix := range f.forbidden {
		if prefix.Contains(a) {
			return &Refusal{Reason: "forbidden by the operator"}
		}
	}
	if f.ceiling != nil && f.ceiling.ByAddress(a, p, port, named, local) != nil {
		return &Refusal{Reason: operator}
	}
	least := specialBits(a)
	if slices.ContainsFunc(f.allow, func(r rule) bool { return r.matchesAddr(a) && r.prefix.Bits() >= least && r.matchesPort(p, port) }) {
		return nil
	}
	refusal := &Refusal{Reason: "not allowed", Allow: suggest(a.String(), p, port)}
	if why := special(a); why != "" && !weakenPrivate { // see IsSpecial
		refusal.Reason = why + " address"
	} else if local && !weakenPrivate {
		refusal.Reason = "address of this machine"
	} else if named || f.everything() {
		return nil
	}
	return refusal
}

// IsSpecial reports whether an address needs a rule of its own, whatever the mode and the name. local: it is one of this machine.
func IsSpecial(a netip.Addr, local bool) bool { return local || special(a.Unmap().WithZone("")) != "" }

// everything reports whether ordinary hosts need no rule.
func (f *Filter) everything() bool { return f.mode == Full || f.mode == Learn }

func (f *Filter) denied(match func(*rule) bool) *rule {
	for i := range f.deny {
		if match(&f.deny[i]) {
			return &f.deny[i]
		}
	}
	return nil
}

// suggest is the shortest rule for a host and ports of one protocol, in ascending order.
func suggest(host string, p Protocol, ports ...uint16) string {
	if p == TCP && !slices.ContainsFunc(ports, func(n uint16) bool { return !slices.Contains(webPorts, n) }) {
		return host
	}
	return exact(host, p, ports...)
}

// exact is a rule for a host and ports of one protocol, and for nothing else.
func exact(host string, p Protocol, ports ...uint16) string {
	if p == TCP && slices.Equal(ports, webPorts) {
		return host
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	text := host
	for i, port := range ports {
		text += fmt.Sprintf("%c%d", ":,"[min(i, 1)], port)
	}
	if p == UDP {
		text += "/udp"
	}
	return text
}

// Ports on which the stack compares the host that a client names with the name of its connection: the server name of TLS, and the Host of
// every HTTP/1 request.
var (
	TLSPorts  = []uint16{443, 8443}
	HTTPPorts = []uint16{80, 8080}
)

// Inspects reports whether connections to names must name the same host in their own protocol. In the mode Full every name is
// allowed, so that nothing is gained by another one.
func (f *Filter) Inspects() bool {
	return !weakenRules && (f.mode == Allow || f.ceiling != nil && f.ceiling.mode == Allow || len(f.deny) > 0)
}

// Service returns the socket of this machine that a name leads to, if the supervisor has named one.
func (f *Filter) Service(name string) (at netip.AddrPort, found bool) {
	at, found = f.services[name]
	return at, found
}

// Published are the ports of programs that are reachable from the host's loopback.
func (f *Filter) Published() []Port { return f.published }
