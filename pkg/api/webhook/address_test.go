package webhook

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func mustPolicy(t testing.TB, allow ...string) *policy {
	t.Helper()
	p, err := newPolicy(allow)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// N5: every unusual spelling has one canonical form, or is refused.
func TestParse(t *testing.T) {
	for raw, want := range map[string]string{
		"https://Hooks.Example.ORG./a?b=c":   "https://hooks.example.org/a?b=c",
		"https://example.org:443/":           "https://example.org/",
		"https://example.org:8443":           "https://example.org:8443",
		"http://example.org:443/":            "http://example.org:443/",
		"https://8.8.8.8/x":                  "https://8.8.8.8/x",
		"https://[2606:4700:0::1111]/":       "https://[2606:4700::1111]/",
		"https://[::ffff:8.8.8.8]/":          "https://8.8.8.8/",
		"https://xn--bcher-kva.example/":     "https://xn--bcher-kva.example/",
		"HTTPS://example.org/%41":            "https://example.org/%41",
		"https://a_b.example.org/":           "https://a_b.example.org/",
		"https://example.org/a%20b?x=%0d%0a": "https://example.org/a%20b?x=%0d%0a",
	} {
		got, err := parse(raw)
		if err != nil || got.url.String() != want {
			t.Errorf("%s: %v, %v; want %s", raw, got.url, err, want)
		}
	}
	for raw, part := range map[string]string{
		"":                                             "https://",
		"example.org":                                  "https://",
		"ftp://example.org/":                           "https://",
		"file:///etc/passwd":                           "https://",
		"https:///path":                                "no host",
		"https:example.org":                            "no host",
		"https://user:pw@example.org/":                 "password",
		"https://example.org@127.0.0.1":                "user name",
		"https://example.org/#x":                       "fragment",
		"https://example.org:0443/":                    "port",
		"https://example.org:0/":                       "port",
		"https://example.org:65536/":                   "port",
		"https://example.org:/":                        "empty port",
		"https://127.1/":                               "four decimal numbers",
		"https://2130706433/":                          "four decimal numbers",
		"https://0x7f000001/":                          "four decimal numbers",
		"https://0x7f.0.0.1/":                          "four decimal numbers",
		"https://0177.0.0.1/":                          "four decimal numbers",
		"https://127.0.0.01/":                          "four decimal numbers",
		"https://127.0.0.1.5/":                         "four decimal numbers",
		"https://example.0x10/":                        "four decimal numbers",
		"https://exa mple.org/":                        "has the character",
		"https://example.org\x00.evil/":                "has the character",
		"https://ex\u00e4mple.org/":                    "has the character",
		"https://\uff11\uff12\uff17.0/":                "has the character",
		"https://example.org\\@evil/":                  "has the character",
		"https://ex%61mple.org/":                       "",
		"https://-a.example/":                          "not a name",
		"https://a..b/":                                "not a name",
		"https://[fe80::1%25eth0]/":                    "zone",
		"https://[127.0.0.1]/":                         "",
		"https://" + strings.Repeat("a.", 130) + "org": "253",
		"https://e.org/" + strings.Repeat("a", 3000):   "2048",
	} {
		if got, err := parse(raw); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%.60q: %+v, %v; want an error with %q", raw, got, err, part)
		}
	}
}

func TestDialled(t *testing.T) {
	p := mustPolicy(t)
	p.own = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("93.184.215.14"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "93.184.215.15", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1",
		"::ffff:8.8.8.8"} {
		if err := p.checkDialled(netip.AddrPortFrom(netip.MustParseAddr(a), 443), false); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	private := []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
		"100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
		"64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:1::1", "2001:db8::1", "100::1", "93.184.215.14", "::ffff:93.184.215.14",
		"::ffff:0:127.0.0.1", "::5efe:7f00:1", "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1", "2002:a00:1::1", "2002:808:808::1",
		"2001:0:808:808::1", "64:ff9b::808:808", "5f00::1", "4000::1",
	}
	for _, a := range private {
		if err := p.checkDialled(netip.AddrPortFrom(netip.MustParseAddr(a), 443), false); !errors.Is(err, errPrivate) {
			t.Errorf("%s: %v; want it refused", a, err)
		}
	}
	// An allowed name may have a private address, but never a metadata address.
	for a, want := range map[string]bool{
		"10.0.0.1": true, "127.0.0.1": true, "93.184.215.14": true, "fd00::1": true, "169.254.169.254": false, "168.63.129.16": false,
		"fd00:ec2::254": false, "0.0.0.0": false, "224.0.0.1": false, "fe80::1": false, "::1": true,
		"::ffff:0:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "2002:a9fe:a9fe::": false, "2606:4700::5efe:a9fe:a9fe": false,
	} {
		if err := p.checkDialled(netip.AddrPortFrom(netip.MustParseAddr(a), 443), true); (err == nil) != want {
			t.Errorf("%s by an allowed name: %v", a, err)
		}
	}
	p.own = func() ([]net.Addr, error) { return nil, errors.New("no netlink") }
	if err := p.checkDialled(netip.MustParseAddrPort("8.8.8.8:443"), false); err == nil {
		t.Error("allowed without knowing whether it is this machine")
	}
}

func TestAllow(t *testing.T) {
	p := mustPolicy(t, "Hooks.Internal.", "localhost:9000", "10.1.2.3", "192.168.0.0/16", "127.0.0.1:8080", "[::1]:8080", "169.254.169.254")
	for raw, want := range map[string]bool{
		"http://hooks.internal/":            true,
		"http://hooks.internal:81/":         true,
		"http://xhooks.internal/":           false,
		"http://localhost:9000/":            true,
		"https://localhost:9000/":           true,
		"https://localhost/":                false,
		"http://10.1.2.3/":                  true,
		"http://10.1.2.4/":                  false,
		"https://192.168.7.7:1/":            true,
		"https://192.169.7.7:1/":            true, // public
		"http://192.169.7.7:1/":             false,
		"http://127.0.0.1:8080/":            true,
		"http://127.0.0.1:8081/":            false,
		"http://[::1]:8080/":                true,
		"http://[::ffff:127.0.0.1]:8080/":   true,
		"http://169.254.169.254/":           true,
		"https://metadata/":                 false,
		"https://example.org/":              true,
		"http://example.org/":               false,
		"https://metadata.google.internal/": true, // what it stands for is refused when it is dialled
	} {
		if _, err := p.check(raw); (err == nil) != want {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, entry := range []string{"", "http://x", "a/b", "a@b", "10.0.0.0/33", "127.1", "x y"} {
		if _, err := newPolicy([]string{entry}); err == nil || !strings.Contains(err.Error(), "write hooks.example.org") {
			t.Errorf("allow %q: %v", entry, err)
		}
	}
}

// An accepted URL is canonical: parsing it again changes nothing, and a host that is an address is public.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		"https://example.org/hook", "https://127.0.0.1/", "https://[::1]:80/", "http://0x7f.1/", "https://a@b/", "https://EXAMPLE.org.:8443/%2e",
		"https://[::ffff:169.254.169.254]/", "https://017700000001", "https://1.1.1.1:443/?a#b", "https://[fe80::1%25lo]/",
	} {
		f.Add(s)
	}
	p := mustPolicy(f)
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := p.check(raw)
		if err != nil {
			return
		}
		again, err := p.check(got.url.String())
		if err != nil || again.host != got.host || again.port != got.port || again.url.String() != got.url.String() {
			t.Fatalf("%q: %+v, and once more %+v, %v", raw, got, again, err)
		}
		u, err := url.Parse(got.url.String())
		if err != nil || u.Scheme != "https" || u.User != nil || u.Hostname() != got.host {
			t.Fatalf("%q became %v, %v", raw, u, err)
		}
		if ip := net.ParseIP(got.host); ip != nil {
			if ip.IsLoopback() || ip.IsPrivate() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
				t.Fatalf("%q is %v", raw, ip)
			}
		} else if last := got.host[strings.LastIndexByte(got.host, '.')+1:]; last == "" || last[0] <= '9' {
			t.Fatalf("%q: %q is a number to some", raw, got.host)
		}
	})
}
