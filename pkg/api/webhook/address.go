package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxURL is longer than any address that somebody means.
const maxURL = 2048

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// target is an address in its one canonical form (N5).
type target struct {
	url  *url.URL
	host string // a name in lower case without a dot at the end, or an IP address as netip writes it
	port string
}

// parse brings an address into its canonical form, or says what is wrong with it. It asks nobody: what a name
// stands for is looked at when it is dialled.
func parse(raw string) (target, error) {
	if len(raw) > maxURL {
		return target{}, fmt.Errorf("the address is %d bytes long; the most is %d", len(raw), maxURL)
	}
	for _, r := range raw {
		if r <= ' ' || r >= 0x7f || r == '\\' {
			return target{}, fmt.Errorf("%.100q contains %q; write names in punycode and escape the rest", raw, r)
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, fmt.Errorf("%.100q is not an address: %w", raw, errors.Unwrap(err))
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return target{}, fmt.Errorf("%.100q does not begin with https://", raw)
	case u.Opaque != "" || u.Host == "":
		return target{}, fmt.Errorf("%.100q has no host", raw)
	case u.User != nil:
		return target{}, errors.New("the address contains a user name or password; use the secret instead")
	case u.Fragment != "":
		return target{}, fmt.Errorf("%.100q has a fragment, which is never sent", raw)
	}
	host, err := canonicalHost(u.Hostname())
	if err != nil {
		return target{}, err
	}
	port := u.Port()
	switch n, err := strconv.ParseUint(port, 10, 16); {
	case port == "" && strings.HasSuffix(u.Host, ":"):
		return target{}, fmt.Errorf("%.100q has an empty port", raw)
	case port == "":
		port = defaultPorts[u.Scheme]
	case err != nil || n == 0 || strconv.FormatUint(n, 10) != port:
		return target{}, fmt.Errorf("port %.20q is not a number from 1 to 65535", port)
	}
	u.Host = net.JoinHostPort(host, port)
	if u.Port() == defaultPorts[u.Scheme] { // receivers compare the Host header with their name
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return target{u, host, port}, nil
}

func canonicalHost(h string) (string, error) {
	if strings.Contains(h, ":") {
		a, err := netip.ParseAddr(h)
		if err != nil || a.Zone() != "" {
			return "", fmt.Errorf("host %.100q is not an IP address without a zone", h)
		}
		return a.Unmap().String(), nil
	}
	h = strings.TrimSuffix(strings.ToLower(h), ".")
	if h == "" || len(h) > 253 {
		return "", fmt.Errorf("host %.100q is empty or longer than 253 bytes", h)
	}
	labels := strings.Split(h, ".")
	for _, l := range labels {
		ok := l != "" && len(l) <= 63 && l[0] != '-' && l[len(l)-1] != '-'
		for _, c := range []byte(l) {
			ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
		}
		if !ok {
			return "", fmt.Errorf("host %.100q is not a name", h)
		}
	}
	// Whatever ends like a number is taken for an IP address by one resolver or another: 127.1, 0x7f000001, 017700000001.
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' {
		a, err := netip.ParseAddr(h)
		if err != nil {
			return "", fmt.Errorf("host %.100q looks like an IP address and is not one; write four decimal numbers", h)
		}
		return a.String(), nil
	}
	return h, nil
}

// policy is which hosts may be reached.
type policy struct {
	names    map[string]bool // hosts, and hosts with a port, that the operator allows wherever they are
	prefixes []netip.Prefix
	ports    map[netip.AddrPort]bool
	own      func() ([]net.Addr, error)
}

// newPolicy reads what the operator allows: names, addresses, prefixes; the first two also with a port.
func newPolicy(allow []string) (*policy, error) {
	p := &policy{names: map[string]bool{}, ports: map[netip.AddrPort]bool{}, own: net.InterfaceAddrs}
	for _, entry := range allow {
		text := strings.TrimSpace(entry)
		if prefix, err := netip.ParsePrefix(text); err == nil {
			p.prefixes = append(p.prefixes, prefix.Masked())
			continue
		}
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && a.Zone() == "" {
			a = a.Unmap()
			p.prefixes = append(p.prefixes, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		if ap, err := netip.ParseAddrPort(text); err == nil && ap.Addr().Zone() == "" && ap.Port() != 0 {
			p.ports[netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())] = true
			continue
		}
		t, err := parse("http://" + text)
		if err != nil || strings.ContainsAny(text, "/?#@") {
			return nil, fmt.Errorf("webhook: allow: %q is no host, address or prefix; write hooks.example.org, 10.1.2.3:8080 or 10.0.0.0/8", entry)
		}
		if strings.Contains(text, ":") {
			p.names[t.host+":"+t.port] = true
		} else {
			p.names[t.host] = true
		}
	}
	return p, nil
}

// named says whether the operator allows the host by its name.
func (p *policy) named(host, port string) bool { return p.names[host] || p.names[host+":"+port] }

// check is what can be said of an address without asking anybody.
func (p *policy) check(raw string) (target, error) {
	t, err := parse(raw)
	if err != nil {
		return t, err
	}
	named := p.named(t.host, t.port)
	if a, err := netip.ParseAddr(t.host); err == nil {
		port, _ := strconv.ParseUint(t.port, 10, 16)
		ap := netip.AddrPortFrom(a, uint16(port))
		if err := p.dialled(ap, false); err != nil {
			return t, err
		}
		named = p.listed(ap)
	} else if !named && !strings.Contains(t.host, ".") {
		return t, fmt.Errorf("host %q is a name of a local network; only the operator can allow it (webhook allow)", t.host)
	}
	if t.url.Scheme == "http" && !named {
		return t, fmt.Errorf("%s would be sent in the clear; use https", t.url.Redacted())
	}
	return t, nil
}

// listed says whether the operator allows the address itself.
func (p *policy) listed(ap netip.AddrPort) bool {
	return p.ports[ap] || slices.ContainsFunc(p.prefixes, func(x netip.Prefix) bool { return x.Contains(ap.Addr()) })
}

// errPrivate is an address that nobody may have us reach.
var errPrivate = errors.New("not a public address; only the operator can allow it (webhook allow)")

// dialled decides over an address that a name stands for, at the moment it is dialled. A name that the operator allows may be
// anywhere but where cloud machines find their credentials: such an address must be allowed itself.
func (p *policy) dialled(ap netip.AddrPort, named bool) error {
	a := ap.Addr().Unmap()
	if p.listed(netip.AddrPortFrom(a, ap.Port())) {
		return nil
	}
	special := !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || carriesIPv4(a) || slices.Contains(metadata, a)
	if named && !special {
		return nil
	}
	if special || !public(a) {
		return fmt.Errorf("%s: %w", a, errPrivate)
	}
	own, err := p.own()
	if err != nil {
		return fmt.Errorf("%s: can not tell whether it is this machine: %w", a, err)
	}
	for _, addr := range own {
		if n, ok := addr.(*net.IPNet); ok {
			if mine, ok := netip.AddrFromSlice(n.IP); ok && mine.Unmap() == a {
				return fmt.Errorf("%s is this machine: %w", a, errPrivate)
			}
		}
	}
	return nil
}

// control is the hook of a net.Dialer: it sees the address that is really connected to, after every resolution.
func (p *policy) control(named bool) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		if network != "tcp4" && network != "tcp6" {
			return fmt.Errorf("network %s: %w", network, errPrivate)
		}
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return p.dialled(ap, named)
	}
}

// public reports whether an address is globally reachable unicast, as far as the registries of IANA tell.
func public(a netip.Addr) bool {
	return (a.Is4() || globalUnicast.Contains(a)) && !slices.ContainsFunc(notPublic, func(x netip.Prefix) bool { return x.Contains(a) })
}

// carriesIPv4 reports whether an IPv6 address may stand for an IPv4 one on the way: 6to4, Teredo, ISATAP (an interface id of 5efe behind any
// prefix), and whatever lies outside of the ranges for hosts, such as ::ffff:0:127.0.0.1 and the prefixes of NAT64.
func carriesIPv4(a netip.Addr) bool {
	if a.Is4() {
		return false
	}
	b := a.As16()
	isatap := b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
	host := globalUnicast.Contains(a) || uniqueLocal.Contains(a) || a.IsLoopback()
	return !host || isatap || sixToFour.Contains(a) || teredo.Contains(a)
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	uniqueLocal   = netip.MustParsePrefix("fc00::/7")
	sixToFour     = netip.MustParsePrefix("2002::/16")
	teredo        = netip.MustParsePrefix("2001::/32")
)

// notPublic are the ranges among IPv4 and global unicast that IANA does not give out for the internet.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "3fff::/20",
)

// metadata are where clouds answer their machines, beyond the link-local address that most use.
var metadata = addresses("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "192.0.0.192")

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addresses(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
