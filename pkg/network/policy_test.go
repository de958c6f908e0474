package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

func TestBadRules(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "names no host",
		"/udp":                    "names no host",
		":443":                    "host name is empty",
		"https://example.com":     "scheme; write the host alone, such as example.com",
		"https://example.com/a":   "scheme",
		"example.com/path":        "has a path",
		"example.com/24":          "not a CIDR prefix",
		"user@example.com":        "no host",
		"example.com?x=1":         "no host",
		"*":                       "wildcard stands only in front",
		"*.com":                   "at least two labels",
		"a.*.example.com":         "wildcard stands only in front",
		"*example.com":            "wildcard stands only in front",
		"*.*.example.com":         "wildcard stands only in front",
		"example.com:":            "no port follows",
		"example.com:0":           `port "0"`,
		"example.com:65536":       `port "65536"`,
		"example.com:-1":          `port "-1"`,
		"example.com:+1":          `port "+1"`,
		"example.com:0443":        `port "0443"`,
		"example.com:80,":         `port ""`,
		"example.com:http":        `port "http"`,
		"exa mple.com":            "character",
		"example.com\x00":         "character",
		"bücher.example":          "xn--",
		"a..example.com":          "part that is empty",
		"127.1":                   "looks like an address",
		"2130706433":              "looks like an address",
		"0x7f000001":              "looks like an address",
		"0177.0.0.1":              "looks like an address",
		"1.2.3.4.5":               "looks like an address",
		"10.1.2.3/8":              "write 10.0.0.0/8",
		"::ffff:10.0.0.0/104":     "as IPv4",
		"10.0.0.0/33":             "not a CIDR prefix",
		"[::1":                    "brackets",
		"[example.com]:443":       "brackets",
		"[::1]443":                "brackets",
		"[::1]:":                  "no port follows",
		"fe80::1%eth0":            "zone",
		strings.Repeat("a", 64):   "longer than 63",
		strings.Repeat("a.", 200): "the most is 253",

		"example.com:1" + strings.Repeat(",1", 300): "613 bytes; the most is 512",
	} {
		for _, list := range []string{"allow", "deny"} {
			p := Policy{Mode: Allow, Allow: []string{text}}
			if list == "deny" {
				p.Allow, p.Deny = nil, p.Allow
			}
			_, err := p.Compile(Bounds{})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), list+": rule ") {
				t.Errorf("%s %q: %v, want %q", list, text, err, want)
			}
		}
	}
}

func TestBadPolicies(t *testing.T) {
	for _, p := range []Policy{
		{Mode: "open"}, {Deny: []string{"example.com"}}, {Mode: Localhost, Publish: []string{"80"}}, {Registries: []string{"nuget"}},
		{Mode: None, Deny: []string{"example.com"}}, {Mode: Localhost, DNS: true},
		{Mode: Allow, Allow: make([]string, MaxRules+1)},
	} {
		if _, err := p.Compile(Bounds{}); err == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

// hostAddress is an address of the machine itself.
const hostAddress = "8.8.4.4"

// connect is the whole way of a connection to HOST:PORT, as the stack goes it: a name is resolved to the address at.
func connect(f *Filter, host, at string, p Protocol, port uint16) *Refusal {
	if a, err := netip.ParseAddr(host); err == nil {
		return f.ByAddress(a, p, port, false, host == hostAddress)
	}
	name, err := CanonicalName(host)
	if err != nil {
		return &Refusal{Reason: err.Error()}
	}
	if _, refused := f.Name(name); refused != nil {
		return refused
	}
	if refused := f.ByName(name, p, port); refused != nil {
		return refused
	}
	return f.ByAddress(netip.MustParseAddr(at), p, port, true, at == hostAddress)
}

func TestFilter(t *testing.T) {
	const public = "93.184.216.34"
	bounds := Bounds{Forbidden: []netip.Prefix{netip.MustParsePrefix("198.41.0.0/24")}}
	allow := Policy{Mode: Allow}
	rules := func(list ...string) Policy { p := allow; p.Allow = list; return p }
	full := Policy{Mode: Full}
	for _, c := range []struct {
		policy   Policy
		host, at string
		protocol Protocol
		port     uint16
		refused  string // "" means that it is allowed
		allow    string
	}{
		{allow, "example.com", public, TCP, 443, "not allowed", "example.com"}, // N8
		{rules("example.com"), "example.com", public, TCP, 443, "", ""},
		{rules("example.com"), "EXAMPLE.com.", public, TCP, 80, "", ""}, // N5
		{rules("EXAMPLE.COM."), "example.com", public, TCP, 80, "", ""},
		{rules("example.com"), "example.com", public, TCP, 22, "not allowed", "example.com:22"},
		{rules("example.com:22,2222"), "example.com", public, TCP, 2222, "", ""},
		{rules("example.com:22"), "example.com", public, TCP, 443, "not allowed", "example.com"},
		{rules("example.com"), "example.com", public, UDP, 443, "not allowed", "example.com:443/udp"}, // N7
		{rules("example.com:443/udp"), "example.com", public, UDP, 443, "", ""},
		{rules("example.com"), "www.example.com", public, TCP, 443, "not allowed", "www.example.com"},
		{rules("*.example.com"), "a.b.example.com", public, TCP, 443, "", ""},
		{rules("*.example.com"), "example.com", public, TCP, 443, "not allowed", "example.com"},
		{rules("*.example.com"), "badexample.com", public, TCP, 443, "not allowed", "badexample.com"},
		{rules("example.com"), public, "", TCP, 443, "not allowed", public},
		{rules(public), public, "", TCP, 443, "", ""},
		{rules("93.184.0.0/16:5432"), public, "", TCP, 5432, "", ""},
		{rules("93.184.0.0/16"), "::ffff:" + public, "", TCP, 443, "", ""},
		{rules("[2606:4700::/32]:53/udp"), "2606:4700::1", "", UDP, 53, "", ""},
		{rules("2606:4700::/32"), "2606:4700::1", "", TCP, 80, "", ""},
		{rules("*.example.com"), "2606:4700::1", "", TCP, 5432, "not allowed", "[2606:4700::1]:5432"},
		// N2, N4: a rule for a name admits no private address.
		{rules("example.com"), "example.com", "10.1.2.3", TCP, 443, "private address", "10.1.2.3"},
		{rules("example.com"), "example.com", "::ffff:10.1.2.3", TCP, 443, "private address", "10.1.2.3"},
		{rules("example.com"), "example.com", "169.254.169.254", TCP, 80, "cloud metadata address", "169.254.169.254"},
		{rules("example.com"), "example.com", "127.0.0.1", TCP, 80, "loopback address", "127.0.0.1"},
		{rules("example.com"), "example.com", "fe80::1", TCP, 80, "link-local address", "fe80::1"},
		{rules("example.com"), "example.com", "64:ff9b::a9fe:a9fe", TCP, 80, "special-purpose address", "64:ff9b::a9fe:a9fe"},
		{rules("example.com"), "example.com", "2002:a9fe:a9fe::", TCP, 80, "special-purpose address", "2002:a9fe:a9fe::"},
		{rules("example.com"), "example.com", "8.8.4.4", TCP, 443, "address of this machine", "8.8.4.4"},
		{rules("example.com", "8.8.4.4"), "example.com", "8.8.4.4", TCP, 443, "", ""},
		{rules("example.com", "10.0.0.0/8"), "example.com", "10.1.2.3", TCP, 443, "", ""},
		{rules("example.com", "198.41.0.0/16"), "example.com", "198.41.0.4", TCP, 443, "forbidden by the operator", ""},
		{full, "example.com", public, TCP, 5432, "", ""},
		{full, public, "", UDP, 9999, "", ""},
		{full, "10.0.0.1", "", TCP, 80, "private address", "10.0.0.1"},
		{full, "168.63.129.16", "", TCP, 80, "cloud metadata address", "168.63.129.16"},
		{full, "8.8.4.4", "", TCP, 53, "address of this machine", "8.8.4.4:53"},
		{Policy{Mode: Full, Allow: []string{"10.0.0.1:5432"}}, "10.0.0.1", "", TCP, 5432, "", ""},
		{Policy{Mode: Full, Deny: []string{"example.com"}}, "example.com", public, TCP, 8080, "denied by example.com", ""},
		{Policy{Mode: Full, Deny: []string{"example.com:25"}}, "example.com", public, TCP, 25, "denied by example.com:25", ""},
		{Policy{Mode: Full, Deny: []string{"example.com:25"}}, "example.com", public, TCP, 443, "", ""},
		{Policy{Mode: Full, Deny: []string{"93.184.0.0/16"}}, "example.com", public, UDP, 443, "denied by 93.184.0.0/16", ""},
		{Policy{Mode: Allow, Allow: []string{"*.example.com"}, Deny: []string{"secret.example.com"}},
			"secret.example.com", public, TCP, 443, "denied by secret.example.com", ""},
		{Policy{Mode: Allow, Allow: []string{public}, DNS: true}, "other.example", public, TCP, 443, "not allowed", "other.example"},
	} {
		f, err := c.policy.Compile(bounds)
		if err != nil {
			t.Errorf("%+v: %v", c.policy, err)
			continue
		}
		got := connect(f, c.host, c.at, c.protocol, c.port)
		if got == nil {
			got = &Refusal{}
		}
		if *got != (Refusal{Reason: c.refused, Allow: c.allow}) {
			t.Errorf("%+v: %s %s (%s) port %d: %+v, want %q, %q", c.policy, c.protocol, c.host, c.at, c.port, *got, c.refused, c.allow)
		}
		if got.Allow == "" || c.policy.Mode == Full {
			continue
		}
		// A suggestion is true: with it, the connection is allowed.
		with := c.policy
		with.Allow = append([]string{got.Allow}, with.Allow...)
		if f, err = with.Compile(bounds); err != nil {
			t.Errorf("suggested rule: %v", err)
		} else if again := connect(f, c.host, c.at, c.protocol, c.port); again != nil {
			t.Errorf("%+v: the suggested rule %q does not allow it: %+v", c.policy, got.Allow, again)
		}
	}
}

func FuzzRule(f *testing.F) {
	for _, s := range []string{"example.com:80,443/udp", "*.a.b", "[::1]:1", "10.0.0.0/8", "2001:db8::/32", "0x1.2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRule(text)
		if err != nil {
			if !strings.Contains(err.Error(), "rule ") {
				t.Errorf("the error does not name the rule: %v", err)
			}
			return
		}
		if (r.name == "") == !r.prefix.IsValid() {
			t.Errorf("%q is both a name and an address, or neither: %+v", text, r)
		}
		if r.name != "" {
			if _, err := netip.ParseAddr(r.name); err == nil {
				t.Errorf("%q: the name is an address", text)
			}
			if again, err := CanonicalName(r.name); err != nil || again != r.name {
				t.Errorf("%q: the canonical form %q has another: %q, %v", text, r.name, again, err)
			}
		}
	})
}

// What a report does not remember one by one is no part of a policy.
func TestNeededWithoutOthers(t *testing.T) {
	r := Report{Destinations: []monitor.Destination{{Host: "a.example", Port: 80, Protocol: "tcp"}, {Host: "others", Connections: 3}}, Lost: 3}
	if p := r.Needed(); p.Validate() != nil || p.String() != "allow a.example:80" {
		t.Errorf("needed: %s, %v", p, p.Validate())
	}
	for port := range uint16(200) {
		r.Destinations = append(r.Destinations, monitor.Destination{Host: "a.example", Port: 1000 + port, Protocol: "tcp"})
	}
	if err := r.Needed().Validate(); err != nil {
		t.Errorf("many ports: %.100s", err)
	}
}

// A prefix names a special address only if it lies in the range that is special.
func TestWidePrefixes(t *testing.T) {
	for _, c := range []struct {
		rule, address string
		allowed       bool
	}{
		{"64.0.0.0/2", "93.184.216.34", true}, {"64.0.0.0/2", "127.0.0.1", false}, {"168.0.0.0/5", "169.254.169.254", false},
		{"8.0.0.0/6", "10.1.2.3", false}, {"10.0.0.0/8", "10.1.2.3", true}, {"10.1.0.0/16", "10.1.2.3", true},
		{"169.254.0.0/16", "169.254.169.254", true}, {"169.254.169.254", "169.254.169.254", true}, {"fc00::/8", "fc12::3", true},
	} {
		f, err := Policy{Allow: []string{c.rule}}.Compile(Bounds{})
		if err != nil {
			t.Fatal(err)
		}
		for _, named := range []bool{false, true} {
			if got := f.ByAddress(netip.MustParseAddr(c.address), TCP, 443, named, false) == nil; got != c.allowed {
				t.Errorf("%s with --allow %s, named %v: allowed is %v", c.address, c.rule, named, got)
			}
		}
	}
}
