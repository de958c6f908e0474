package network

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// canonical writes a rule in the form in which rules are suggested.
func canonical(r rule) string {
	host := r.name
	switch {
	case r.wildcard:
		host = "*." + host
	case r.prefix.IsValid() && r.prefix.IsSingleIP():
		host = r.prefix.Addr().String()
	case r.prefix.IsValid():
		host = r.prefix.String()
	}
	return exact(host, r.protocol, r.ports...)
}

// FuzzRuleForms: an accepted rule is the same when it is written in its canonical form, which is stable; and the rule that a refusal suggests
// is accepted, and admits that connection and no neighbour of it.
func FuzzRuleForms(f *testing.F) {
	for _, text := range []string{
		"good.example", "*.Good.example.:443,80", "192.0.2.1", "192.0.2.0/24:22/udp", "[2001:db8::1]:443", "[2001:db8::/32]:1,2", "2001:db8::/32",
		"::ffff:192.0.2.1", "127.1", "0x7f.1", "http://x", "a..b", "x:0", "x:65536", "x:01", "*", "*.*.x", "[x]:1", "1.2.3.4/33", "x/tcp", "fe80::1%1",
	} {
		f.Add(text, uint16(443))
		f.Add(text, uint16(22))
	}
	f.Fuzz(func(t *testing.T, text string, port uint16) {
		r, err := parseAllow(text)
		if err != nil {
			if err := (Policy{Allow: []string{text}}).Validate(); err == nil {
				t.Errorf("%q is refused alone, and accepted in a policy", text)
			}
			return
		}
		form := canonical(r)
		again, err := parseAllow(form)
		if err != nil || canonical(again) != form {
			t.Fatalf("%q is %q, which is %q (%v)", text, form, canonical(again), err)
		}
		if !r.overlaps(again) || r.name != again.name || r.wildcard != again.wildcard || r.prefix != again.prefix {
			t.Errorf("%q is %+v, and %q is %+v", text, r, form, again)
		}
		if port == 0 || r.wildcard || r.prefix.IsValid() && !r.prefix.IsSingleIP() {
			return
		}
		refused := func(p Policy, protocol Protocol, port uint16) *Refusal {
			filter, err := p.Compile(Bounds{})
			if err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			if r.name != "" {
				return filter.ByName(r.name, protocol, port)
			}
			return filter.ByAddress(r.prefix.Addr(), protocol, port, false, false)
		}
		for _, protocol := range []Protocol{TCP, UDP} {
			why := refused(Policy{Mode: Allow}, protocol, port)
			if why == nil {
				t.Fatalf("nothing is allowed, and %q port %d is admitted", text, port)
			}
			suggested := Policy{Allow: []string{why.Allow}}
			if got := refused(suggested, protocol, port); got != nil {
				t.Errorf("%q is suggested for %q port %d, and does not admit it: %+v", why.Allow, text, port, got)
			}
			other := map[Protocol]Protocol{TCP: UDP, UDP: TCP}[protocol]
			web := protocol == TCP && (port == 80 || port == 443) // the short form is for both
			if refused(suggested, other, port) == nil || !web && port < 65535 && refused(suggested, protocol, port+1) == nil {
				t.Errorf("%q admits more than %q port %d (%s)", why.Allow, text, port, protocol)
			}
		}
	})
}

// FuzzPolicy: what JSON says is what the policy says, again and again, and an accepted policy decides without a panic.
func FuzzPolicy(f *testing.F) {
	for _, text := range []string{
		`"none"`, `"full"`, `{}`, `{"mode":"allow","allow":["good.example:22"],"deny":["192.0.2.0/24"]}`, `{"allow":["x.example"],"dns":true}`,
		`{"publish":["80","8080:80"]}`, `{"registries":["npm"]}`, `{"allow":[]}`, `{"alow":["x"]}`, `{"mode":"x"}`, `{} {}`, `null`, `[]`, `{"mode":"none","mode":"full"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Policy
		if json.Unmarshal(data, &p) != nil {
			return
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var again Policy
		if err := json.Unmarshal(text, &again); err != nil || !again.Equal(p) {
			t.Fatalf("%s is %+v, and %s is %+v (%v)", data, p, text, again, err)
		}
		filter, err := p.Compile(Bounds{})
		if err != nil {
			return
		}
		if _, err := again.Compile(Bounds{}); err != nil {
			t.Errorf("%s is accepted once: %v", text, err)
		}
		if !p.Complete().HasRules() && filter.ByName("good.example", TCP, 443) == nil {
			t.Errorf("%s has no rules, and admits a connection", data)
		}
		filter.ByAddress(netip.MustParseAddr("192.0.2.1"), UDP, 53, true, false)
		_, _ = filter.Ranges()
		_ = p.String()
	})
}
