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

// maxURL is longer than any useful URL.
const maxURL = 2048

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// target is a URL in its canonical form.
type target struct {
	url  *url.URL
	host string // a name in lower case without a dot at the end, or an IP address as netip writes it
	port string
}

// parse returns a URL in its canonical form, or an error. It does not resolve names: their addresses are checked when they are dialled.
func parse(raw string) (target, error) {
	if len(raw) > maxURL {
		return target{}, fmt.Errorf("the URL has %d bytes; at most %d are allowed", len(raw), maxURL)
	}
	for _, r := range raw {
		if r <= ' ' || r >= 0x7f || r == '\\' {
			return target{}, fmt.Errorf("%.100q has the character %q; write names in punycode and escape the rest", raw, r)
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, fmt.Errorf("%.100q is no URL: %w", raw, errors.Unwrap(err))
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return target{}, fmt.Errorf("%.100q: use a URL that begins with https://", raw)
	case u.Opaque != "" || u.Host == "":
		return target{}, fmt.Errorf("%.100q has no host", raw)
	case u.User != nil:
		return target{}, errors.New("the URL has a user name or password; use the secret instead")
	case u.Fragment != "":
		return target{}, fmt.Errorf("%.100q has a fragment, which is never sent; remove it", raw)
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
	if u.Port() == defaultPorts[u.Scheme] { // receivers compare the Host header with their name, without a default port
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
	// Some resolvers read a name that ends like a number as an IP address: 127.1, 0x7f000001, 017700000001.
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' {
		a, err := netip.ParseAddr(h)
		if err != nil {
			return "", fmt.Errorf("host %.100q looks like an IP address but is none; write four decimal numbers", h)
		}
		return a.String(), nil
	}
	return h, nil
}

// policy decides which hosts may be reached.
type policy struct {
	names    map[string]bool // hosts, and hosts with a port, that the operator allows wherever they are
	prefixes []netip.Prefix
	ports    map[netip.AddrPort]bool
	own      func() ([]net.Addr, error)
}

// newPolicy reads the operator's list: names, addresses and prefixes; names and addresses also with a port.
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
			return nil, fmt.Errorf("webhook: allow: %q is no host, address or prefix; write hooks.example.org, 10.1.2.3:8080 or 10.0.0.0/8",
				entry)
		}
		if strings.Contains(text, ":") {
			p.names[t.host+":"+t.port] = true
		} else {
			p.names[t.host] = true
		}
	}
	return p, nil
}

// named reports whether the operator allows the host by its name.
func (p *policy) named(host, port string) bool { return p.names[host] || p.names[host+":"+port] }

// check checks a URL without resolving its host.
func (p *policy) check(raw string) (target, error) {
	t, err := parse(raw)
	if err != nil {
		return t, err
	}
	named := p.named(t.host, t.port)
	if a, err := netip.ParseAddr(t.host); err == nil {
		port, _ := strconv.ParseUint(t.port, 10, 16)
		ap := netip.AddrPortFrom(a, uint16(port))
		if err := p.checkDialled(ap, false); err != nil {
			return t, err
		}
		named = p.listed(ap)
	} else if !named && !strings.Contains(t.host, ".") {
		return t, fmt.Errorf("host %q is a name of a local network; only the operator can allow it (--webhook-host)", t.host)
	}
	if t.url.Scheme == "http" && !named {
		return t, fmt.Errorf("%s would be sent unencrypted; use https", t.url.Redacted())
	}
	return t, nil
}

// listed reports whether the operator allows the address itself.
func (p *policy) listed(ap netip.AddrPort) bool {
	return p.ports[ap] || slices.ContainsFunc(p.prefixes, func(x netip.Prefix) bool { return x.Contains(ap.Addr()) })
}

// errPrivate is the cause for which a non-public address is refused.
var errPrivate = errors.New("not a public address; only the operator can allow it (--webhook-host)")

// checkDialled checks an address when it is dialled. A name that the operator allows may resolve to any address except those where cloud
// machines find their credentials: such an address must be allowed itself.
func (p *policy) checkDialled(ap netip.AddrPort, named bool) error {
	a := ap.Addr().Unmap()
	if p.listed(netip.AddrPortFrom(a, ap.Port())) {
		return nil
	}
	special := !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || carriesIPv4(a) ||
		slices.Contains(metadata, a)
	if named && !special {
		return nil
	}
	if special || !public(a) {
		return fmt.Errorf("%s: %w", a, errPrivate)
	}
	own, err := p.own()
	if err != nil {
		return fmt.Errorf("%s: read the addresses of this machine: %w", a, err)
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

// control returns the Control function of a net.Dialer, which sees the address that is really connected to, after every resolution.
func (p *policy) control(named bool) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		if network != "tcp4" && network != "tcp6" {
			return fmt.Errorf("network %s: %w", network, errPrivate)
		}
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return p.checkDialled(ap, named)
	}
}

// public reports whether an address is globally reachable unicast, by the registries of IANA.
func public(a netip.Addr) bool {
	return (a.Is4() || globalUnicast.Contains(a)) && !slices.ContainsFunc(notPublic, func(x netip.Prefix) bool { return x.Contains(a) })
}

// carriesIPv4 reports whether an IPv6 address may be translated to an IPv4 one: 6to4, Teredo, ISATAP (an interface id of 5efe after any
// prefix), and all addresses outside of the ranges for hosts, such as ::ffff:0:127.0.0.1 and the prefixes of NAT64.
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

// notPublic are the ranges of IPv4 and global unicast that IANA does not assign for the internet.
var notPublic = each(netip.MustParsePrefix,
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "3fff::/20",
)

// metadata are the metadata addresses of clouds beside the link-local one that most use.
var metadata = each(netip.MustParseAddr, "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "192.0.0.192")

func each[T any](parse func(string) T, list ...string) (out []T) {
	for _, s := range list {
		out = append(out, parse(s))
	}
	return out
}
