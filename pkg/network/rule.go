package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Protocol is the transport of a connection.
type Protocol string

// The protocols. A rule without one is for TCP if it allows, for both if it denies.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// webPorts are the ports of an allow rule that names none.
var webPorts = []uint16{80, 443}

// rule is one entry of an allow or deny list, parsed.
type rule struct {
	text     string // as it was written
	name     string // canonical; empty for a rule by address
	wildcard bool   // every name below name, not name itself
	prefix   netip.Prefix
	ports    []uint16 // nil: every port
	protocol Protocol // empty: both
}

// maxRule bounds the text of a rule, so that all rules of a policy fit a message (MaxMessage).
const maxRule = 512

// parseAllow parses HOST[:PORT[,PORT]…][/udp], where HOST is a name, *.name, an address or a CIDR prefix.
func parseAllow(text string) (rule, error) {
	r, err := parseRule(text)
	if r.protocol == "" {
		r.protocol = TCP
	}
	if r.ports == nil {
		r.ports = webPorts
	}
	return r, err
}

// parseRule parses a rule. Without a port it is for every port, without a protocol for both.
func parseRule(text string) (rule, error) {
	r := rule{text: text}
	fail := func(format string, args ...any) (rule, error) {
		return rule{}, fmt.Errorf("rule %q: %s", text, fmt.Sprintf(format, args...))
	}
	if len(text) > maxRule {
		return rule{}, fmt.Errorf("rule %.40q…: %d bytes; the most is %d", text, len(text), maxRule)
	}
	rest := text
	if before, found := strings.CutSuffix(rest, "/udp"); found {
		rest, r.protocol = before, UDP
	} else if before, found := strings.CutSuffix(rest, "/tcp"); found {
		rest, r.protocol = before, TCP
	}
	switch {
	case rest == "":
		return fail("it names no host")
	case strings.Contains(rest, "://"):
		return fail("it has a scheme; write the host alone, such as %s", hostOfURL(rest))
	case strings.ContainsAny(rest, "@?#"):
		return fail("it is no host; write HOST, HOST:PORT or an address")
	}
	host, ports, err := splitPorts(rest)
	if err != nil {
		return fail("%v", err)
	}
	if r.ports, err = parsePorts(ports); err != nil {
		return fail("%v", err)
	}
	if strings.Contains(host, "/") {
		if r.prefix, err = netip.ParsePrefix(host); err != nil {
			if _, tail, _ := strings.Cut(host, "/"); tail != "" && !isDecimal(tail) {
				return fail("it has a path; write the host alone")
			}
			return fail("%q is not a CIDR prefix such as 192.0.2.0/24", host)
		}
		if r.prefix != r.prefix.Masked() {
			return fail("address bits are set behind the prefix; write %s", r.prefix.Masked())
		}
		if a := r.prefix.Addr(); a.Is4In6() {
			return fail("write the prefix as IPv4")
		}
		return r, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return fail("it has a zone; zones do not exist in a sandbox")
		}
		a = a.Unmap()
		r.prefix = netip.PrefixFrom(a, a.BitLen())
		return r, nil
	}
	if after, found := strings.CutPrefix(host, "*."); found {
		host, r.wildcard = after, true
	}
	if strings.Contains(host, "*") {
		return fail("a wildcard stands only in front, as in *.example.com")
	}
	if r.name, err = CanonicalName(host); err != nil {
		return fail("%v", err)
	}
	if r.wildcard && !strings.Contains(r.name, ".") {
		return fail("a wildcard needs a domain of at least two labels, such as *.example.com")
	}
	return r, nil
}

// hostOfURL returns what a user probably meant by a URL in place of a host.
func hostOfURL(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	if host == "" {
		return "example.com"
	}
	return host
}

// splitPorts separates HOST from PORTS at the last colon. An IPv6 address with ports stands in brackets.
func splitPorts(s string) (host, ports string, err error) {
	if inner, found := strings.CutPrefix(s, "["); found {
		host, rest, closed := strings.Cut(inner, "]")
		if !closed || (rest != "" && rest[0] != ':') {
			return "", "", errors.New("brackets are for an IPv6 address, as in [2001:db8::1]:443")
		}
		a, _, _ := strings.Cut(host, "/")
		if !strings.Contains(a, ":") {
			return "", "", errors.New("brackets are for an IPv6 address, as in [2001:db8::1]:443")
		}
		if rest == ":" {
			return "", "", errors.New("no port follows the colon")
		}
		return host, strings.TrimPrefix(rest, ":"), nil
	}
	switch strings.Count(s, ":") {
	case 0:
		return s, "", nil
	case 1:
		host, ports, _ = strings.Cut(s, ":")
		if ports == "" {
			return "", "", errors.New("no port follows the colon")
		}
		return host, ports, nil
	}
	return s, "", nil // an IPv6 address or prefix
}

func parsePorts(s string) ([]uint16, error) {
	if s == "" {
		return nil, nil
	}
	var ports []uint16
	for text := range strings.SplitSeq(s, ",") {
		port, err := parsePort(text)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

const maxName = 253

// CanonicalName returns the one form in which names are compared: lower case, without the dot at the end. It refuses names that
// some resolver takes for an address (127.1, 0x7f000001, 2130706433).
func CanonicalName(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	if name == "" {
		return "", errors.New("the host name is empty")
	}
	if len(name) > maxName {
		return "", fmt.Errorf("the host name is %d bytes long; the most is %d", len(name), maxName)
	}
	lower := []byte(name)
	for i, c := range lower {
		switch {
		case 'A' <= c && c <= 'Z':
			lower[i] = c + 'a' - 'A'
		case 'a' <= c && c <= 'z', isDigit(c), c == '-', c == '_', c == '.':
		case c >= 0x80:
			return "", fmt.Errorf("host name %q is not ASCII; write its xn-- form", s)
		default:
			return "", fmt.Errorf("host name %q has the character %q", s, c)
		}
	}
	name = string(lower)
	last := name
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return "", fmt.Errorf("host name %q has a part that is empty or longer than 63 bytes", s)
		}
		last = label
	}
	// Resolvers read a name as an address if its last label is a number (WHATWG URL, inet_aton).
	if isDecimal(last) || (strings.HasPrefix(last, "0x") && isHex(last[2:])) {
		return "", fmt.Errorf("host %q looks like an address; write addresses as 192.0.2.1 or 2001:db8::1", s)
	}
	return name, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func (r *rule) matchesName(name string) bool {
	if r.wildcard {
		return strings.HasSuffix(name, "."+r.name)
	}
	return r.name != "" && r.name == name
}

func (r *rule) matchesAddr(a netip.Addr) bool { return r.prefix.IsValid() && r.prefix.Contains(a) }

func (r *rule) matchesPort(p Protocol, port uint16) bool {
	return (r.protocol == "" || r.protocol == p) && (r.ports == nil || slices.Contains(r.ports, port))
}

// overlaps reports whether some connection matches both rules.
func (r *rule) overlaps(o rule) bool {
	switch {
	case r.protocol != "" && o.protocol != "" && r.protocol != o.protocol:
		return false
	case r.ports != nil && o.ports != nil && !slices.ContainsFunc(r.ports, func(p uint16) bool { return slices.Contains(o.ports, p) }):
		return false
	case r.prefix.IsValid():
		return o.prefix.IsValid() && r.prefix.Overlaps(o.prefix)
	case r.name == "" || o.name == "":
		return false
	case r.wildcard && o.wildcard:
		return r.name == o.name || strings.HasSuffix(r.name, "."+o.name) || strings.HasSuffix(o.name, "."+r.name)
	case r.wildcard:
		return r.matchesName(o.name)
	}
	return o.matchesName(r.name)
}
