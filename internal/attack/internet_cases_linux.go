package attack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// internetCases are carried out in a test internet: package testnet.
func internetCases() []attackCase {
	return []attackCase{
		{"N2", "private, metadata and own addresses under an allow-list", inwardAddresses},
		{"N3", "names that carry data out", tunnelledNames},
		{"N4", "an allowed name with a private address", reboundNames},
		{"N5", "hosts that are spelled oddly", oddHosts},
		{"N6", "an allowed host, and another server name or Host", otherHosts},
		{"N7", "redirections, UDP, raw packets and floods past the filter", otherWays},
		{"N8", "an empty allow-list", emptyList},
	}
}

const (
	goodName = "good.example"
	httpPort = "80"
)

var goodWeb = web(goodName+":80", goodName)

func inwardAddresses(t *trial) {
	// A server of the host itself, on all its addresses.
	l, err := net.Listen("tcp", ":0")
	t.must(err)
	t.later(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer := "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nhost"
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = c.Write([]byte(answer))
			}()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	t.must(err)
	var byAddress, byName []attempt
	for _, a := range []string{testnet.Private, testnet.Private6, testnet.Metadata, testnet.Metadata6, testnet.Carrier, testnet.Translate,
		testnet.SixToFour} {
		byAddress = append(byAddress, web(net.JoinHostPort(a, httpPort), "x"))
	}
	byAddress = append(byAddress, web("["+testnet.Mapped+"]:80", "x"), web(net.JoinHostPort(testnet.Supervisor, port), "x"),
		web(net.JoinHostPort(testnet.Supervisor6, port), "x"))
	for _, name := range []string{"private", "private6", "metadata", "metadata6", "inward", "translate", "sixtofour"} {
		byName = append(byName, web(name+".example:80", name+".example"))
	}
	for _, name := range []string{"own", "own6", "loopback", "loopback6", "unspecified"} {
		byName = append(byName, web(name+".example:"+port, name+".example"))
	}
	control := t.reachedOutside(slices.Concat(byAddress, byName))
	// An IPv4 address in an IPv6 answer, which resolvers outside may drop; and the addresses of the sandbox's own network.
	byName = append(byName, web("mapped.example:80", "mapped.example"))
	ownNetwork := []attempt{web("198.18.0.1:"+port, "x"), web("198.18.0.9:"+port, "x"), web(network.Resolver.String()+":"+port, "x"),
		web("[fd73:6e64::1]:"+port, "x")}
	_ = t.seen()
	names := []string{goodName}
	for _, a := range byName {
		host, _, _ := strings.Cut(a.address, ":")
		names = append(names, host+":80,"+port)
	}
	for where, p := range map[string]network.Policy{
		"names are allowed":      {Allow: names},
		"every name is resolved": {Allow: []string{goodName}, DNS: true},
		"full":                   {Mode: network.Full},
	} {
		id := t.networked(p)
		t.reachedInside(id, where, goodWeb)
		t.refusedInside(id, where, slices.Concat(byAddress, byName, ownNetwork), control)
	}
	t.nothingAt(t.seen(), "connections at private and metadata addresses", testnet.Private, testnet.Private6, testnet.Metadata,
		testnet.Metadata6, testnet.Carrier, testnet.Translate, testnet.SixToFour)
	// The same attempts where rules by address allow them.
	id := t.networked(network.Policy{Allow: append(names,
		testnet.Private+":80", testnet.Metadata+":80", "["+testnet.Private6+"]:80", "45.10.0.0/24:"+port,
		"["+testnet.Supervisor6+"]:"+port)})
	t.reachedInside(id, "allowed by address", web(testnet.Private+":80", "x"), web(testnet.Metadata+":80", "x"),
		web("["+testnet.Private6+"]:80", "x"), web(testnet.Supervisor+":"+port, "x"), web("["+testnet.Supervisor6+"]:"+port, "x"),
		web("private.example:80", "private.example"), web("own.example:"+port, "own.example"))
}

func tunnelledNames(t *trial) {
	secret := "s3cret-" + strings.TrimPrefix(t.mark, "attack-")
	_ = t.seen()
	const typeA, typeAAAA, typeTXT, typeNULL, typeANY, typeHTTPS = "1", "28", "16", "10", "255", "65"
	resolvers := []struct{ network, address string }{
		{"udp", network.Resolver.String() + ":53"}, {"tcp", network.Resolver.String() + ":53"}, {"udp", "198.18.0.1:53"},
	}
	// Other name servers, and addresses at which there is none.
	others := []struct{ network, address string }{
		{"udp", testnet.Resolver + ":53"}, {"tcp", testnet.Resolver + ":53"}, {"udp", testnet.Gateway + ":53"}, {"tcp", testnet.Gateway + ":53"},
		{"udp", testnet.Public + ":53"}, {"udp", "[" + testnet.Gateway6 + "]:53"}, {"udp", "192.0.2.2:53"},
	}
	var args, elsewhere []string
	for _, r := range resolvers {
		for _, kind := range []string{typeA, typeAAAA, typeTXT, typeNULL, typeANY, typeHTTPS, "2", "5", "6", "12", "15", "33", "257", "252"} {
			args = append(args, r.network, r.address, secret+"."+goodName+" "+kind)
		}
		for _, what := range []string{secret + ".example 1", secret + ".in-addr.arpa 12", secret + " 1", secret + ".bad.example 1 chaos",
			secret + "." + goodName + " 6 update", goodName + " 16", goodName + " 10", goodName + " 65", goodName + " 255",
			goodName + " 1 edns", goodName + " 1 more", secret + `\046` + goodName + " 1", goodName + `\000.` + secret + " 1"} {
			args = append(args, r.network, r.address, what)
		}
	}
	for _, r := range others {
		elsewhere = append(elsewhere, r.network, r.address, secret+"."+goodName+" "+typeA, r.network, r.address, goodName+" "+typeA)
	}
	// The marked options of messages carry the mark of this case.
	carried := func(seen []testnet.Event) string {
		for _, e := range seen {
			if e.Service == "dns" && (strings.Contains(strings.ToLower(e.Host), secret) || bytes.Contains(bytes.ToLower(e.Data), []byte(secret)) ||
				bytes.Contains(e.Data, []byte(t.mark))) {
				return fmt.Sprintf("%s at %s", e.Host, e.Local)
			}
		}
		return "nothing"
	}
	t.outside("query", "udp", testnet.Resolver+":53", secret+"."+goodName+" "+typeTXT, "udp", testnet.Gateway+":53", goodName+" 1 edns")
	control := carried(t.seen())
	t.control(control != "nothing", "outside: a query with data arrives", control)

	id := t.networked(network.Policy{Allow: []string{goodName, testnet.Public + ":80"}})
	t.reachedInside(id, "allowed", goodWeb)
	_ = t.seen()
	said := t.inside(id, "query", args...)
	for i := 0; i < len(args); i += 3 {
		name := args[i] + " " + args[i+1] + " " + args[i+2]
		a := said.of(name)
		own := strings.HasPrefix(args[i+2], goodName+" 1 ") // an allowed name, with something beside it
		t.judge(a.Got != "timeout" && a.Got != "no answer" && (a.Got != "ok" || own), strings.ReplaceAll(name, secret, "DATA"), say(a), "")
	}
	seen := t.seen()
	got := carried(seen)
	t.judge(got == "nothing", "data in names, types and options", got, "outside: "+control)
	// Letters of a name could carry data in their case.
	t.inside(id, "query", "udp", network.Resolver.String()+":53", "gOoD.eXaMpLe 1")
	shouted := "nothing"
	for _, e := range append(seen, t.seen()...) {
		if e.Service == "dns" && e.Host != strings.ToLower(e.Host) {
			shouted = e.Host
		}
	}
	t.judge(shouted == "nothing", "data in the case of letters", shouted, "")

	said = t.inside(id, "query", elsewhere...)
	for i := 0; i < len(elsewhere); i += 3 {
		name := elsewhere[i] + " " + elsewhere[i+1] + " " + elsewhere[i+2]
		t.judge(isRefused(said.of(name).Got) && said.of(name).Got != "empty", "another name server: "+strings.ReplaceAll(name, secret, "DATA"),
			say(said.of(name)), "outside: "+control)
	}
	t.refusedInside(id, "DNS over HTTPS", []attempt{
		{"tcp", testnet.Resolver + ":443", "tls dns.example"}, {"tcp", goodName + ":443", "tls dns.example"},
		{"tcp", testnet.Resolver + ":853", "echo"},
	}, nil)
	t.nothingAt(t.seen(), "messages at another name server", testnet.Resolver)

	open := t.networked(network.Policy{Allow: []string{goodName}, DNS: true})
	t.inside(open, "query", "udp", network.Resolver.String()+":53", secret+".bad.example "+typeA)
	got = carried(t.seen())
	t.control(got != "nothing", "--allow-dns resolves every name", got)
	// A flood of queries costs the sandbox, and nothing waits for ever.
	res := t.run(id, t.process("ask", network.Resolver.String()+":53", "400"), sandbox.IO{})
	t.judge(res.Success() && res.Metrics.MemoryPeak <= uint64(res.Limits.Memory), "a flood of queries",
		fmt.Sprintf("%s, %d MiB", res.Verdict, res.Metrics.MemoryPeak>>20), fmt.Sprintf("limit: %d MiB", res.Limits.Memory>>20))
	t.reachedInside(id, "after a flood of queries", goodWeb)
}

func reboundNames(t *trial) {
	rebound := web(testnet.Rebinding+":80", testnet.Rebinding)
	harmless := []string{"mixed.example", testnet.Chain, testnet.Huge, "zero.example", "slow.example", "six.example"}
	id := t.networked(network.Policy{Allow: append([]string{goodName, testnet.Rebinding, testnet.InwardChain}, harmless...)})
	t.reachedInside(id, "allowed", goodWeb)
	_ = t.seen() // the name is public again
	first := t.outside("reach", flat([]attempt{rebound})...).of(rebound.name())
	second := t.outside("reach", flat([]attempt{rebound})...).of(rebound.name())
	t.control(strings.Contains(second.Detail, testnet.Private+":80"), "outside: "+rebound.name()+" the second time", say(second))
	_ = t.seen()
	for range 4 {
		got := t.inside(id, "reach", flat([]attempt{rebound, rebound})...)
		for _, a := range got {
			t.judge(!strings.Contains(a.Detail, testnet.Private) && a.Got != "timeout", rebound.name(), say(a), "outside: "+say(first)+", then "+say(second))
		}
	}
	// The names that have a private address beside others, or behind aliases, lead to public ones only.
	for _, name := range harmless {
		a := t.inside(id, "reach", flat([]attempt{web(name+":80", name)})...).of(web(name+":80", name).name())
		t.judge(a.OK() && !strings.Contains(a.Detail, testnet.Private), name, say(a), "")
	}
	inward := web(testnet.InwardChain+":80", testnet.InwardChain)
	t.refusedInside(id, "an alias", []attempt{inward}, t.reachedOutside([]attempt{inward}))
	seen := t.seen()
	seen = slices.DeleteFunc(seen, func(e testnet.Event) bool {
		return e.Host == testnet.InwardChain && e.Service == "http" || e.Service == "tcp"
	})
	t.nothingAt(seen, "requests at the private address", testnet.Private)
	// The same where the private address is allowed: the name does lead there.
	id = t.networked(network.Policy{Allow: []string{testnet.Rebinding, testnet.Private + ":80"}})
	t.outside("reach", flat([]attempt{rebound})...)
	a := t.inside(id, "reach", flat([]attempt{rebound})...).of(rebound.name())
	t.control(strings.Contains(a.Detail, testnet.Private+":80"), "the private address is allowed: "+rebound.name(), say(a))
}

func oddHosts(t *trial) {
	// Rules: a host that one resolver takes for another one is none.
	create := func(p network.Policy) error { return t.refused(t.spec(func(s *sandbox.Spec) { s.Network = p })) }
	err := create(network.Policy{Allow: []string{"GOOD.example."}})
	t.control(err == nil, "a rule with capitals and a dot at the end", fmt.Sprint(err))
	for _, host := range []string{
		"", ":80", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "1.2.3.4.", "fe80::1%eth0", "http://good.example", "good.example/", "*",
		"*.example", "a.*.example.com", "good.example:080", "good.example:0", "good.example:65536", "good.example:-1", "good.example:",
		"user@good.example", "good..example", ".good.example", "good.example\x00.bad.example", "good.example bad.example", "good.example\n",
		"gооd.example", "[good.example]:80", "good.example?", "good.example#", "10.1.2.3/8", "good.example/udp/tcp",
	} {
		for list, p := range map[string]network.Policy{"allow": {Allow: []string{host}}, "deny": {Mode: network.Full, Deny: []string{host}}} {
			err := create(p)
			t.judge(errors.Is(err, sandbox.ErrInvalid), fmt.Sprintf("%s %q", list, host), fmt.Sprintf("%.120v", err), "GOOD.example.: ok")
		}
	}
	// A denied host, in other spellings.
	id := t.networked(network.Policy{Mode: network.Full, Deny: []string{"Bad.Example", testnet.Other, "[" + testnet.Other6 + "]"}})
	t.reachedInside(id, "full", goodWeb, web("GOOD.Example.:80", "Good.EXAMPLE."), web(testnet.Public+":80", "x"))
	denied := []attempt{
		web("bad.example:80", "bad.example"), web("BAD.example:80", "bad.example"), web("bad.example.:80", "bad.example"),
		web(testnet.Other+":80", "bad.example"), web("[::ffff:"+testnet.Other+"]:80", "bad.example"), web("["+testnet.Other6+"]:80", "bad.example"),
		{"udp", testnet.Other + ":7", "echo"}, {"udp", "[::ffff:" + testnet.Other + "]:7", "echo"},
	}
	control := t.reachedOutside(denied)
	_ = t.seen()
	t.refusedInside(id, "denied", denied, control)
	// Numbers: libraries make addresses of them before a name server is asked.
	t.refusedInside(id, "denied", []attempt{
		web("1572395043:80", "x"), web("0x5db8d823:80", "x"), web("93.12114979:80", "x"), web("0135.0270.0330.043:80", "x"),
		web("[64:ff9b::5db8:d823]:80", "x"), web("[2002:5db8:d823::1]:80", "x"), web("[::5db8:d823]:80", "x"),
	}, nil)
	var args []string
	for _, name := range []string{`bad\046example`, `bad\000.example`, `good.example\000.bad.example`, `bad.example\032`, "167838211",
		"0xa010203", "10.66051", "1572395043", `BAD.eXample`} {
		args = append(args, "udp", network.Resolver.String()+":53", name+" 1")
	}
	said := t.inside(id, "query", args...)
	for i := 2; i < len(args); i += 3 {
		a := said.of("udp " + args[1] + " " + args[i])
		t.judge(strings.HasPrefix(a.Got, "error"), "the name "+args[i], say(a), "")
	}
	t.nothingAt(t.seen(), "connections at the denied address", testnet.Other, testnet.Other6)
}

func otherHosts(t *trial) {
	id := t.networked(network.Policy{Allow: []string{goodName + ":80,443,8080,8443"}})
	t.reachedInside(id, "allowed", goodWeb, attempt{"tcp", goodName + ":443", "tls " + goodName}, attempt{"tcp", goodName + ":443", "tls-split " +
		goodName}, attempt{"tcp", goodName + ":80", "split " + goodName}, attempt{"tcp", goodName + ":8080", "http " + goodName + ":8080"},
		attempt{"tcp", goodName + ":80", "pipeline " + goodName + " " + goodName})
	// The server of the allowed name has other names as well, and is a proxy.
	const front = "front.example"
	fronted := []attempt{
		{"tcp", goodName + ":443", "tls " + front}, {"tcp", goodName + ":443", "tls-split " + front}, {"tcp", goodName + ":443", "tls "},
		{"tcp", goodName + ":80", "http " + front}, {"tcp", goodName + ":80", "split " + front}, {"tcp", goodName + ":80", "http " + front + ":80"},
		{"tcp", goodName + ":80", "pipeline " + goodName + " " + front}, {"tcp", goodName + ":8080", "http " + front},
		{"tcp", goodName + ":8080", "connect " + front + ":443"}, {"tcp", goodName + ":80", "connect " + testnet.Private + ":22"},
		{"tcp", goodName + ":8080", "absolute http://" + front + "/ " + front}, {"tcp", goodName + ":8080", "absolute http://" + front + "/ " +
			goodName},
	}
	control := t.reachedOutside(fronted)
	plain := []attempt{{"tcp", goodName + ":80", "prior"}, {"tcp", goodName + ":443", "http " + goodName}, {"tcp", goodName + ":80", "tls " + front}}
	_ = t.seen()
	// The first of two requests in one packet is allowed: its answer comes, and then the end.
	t.refusedInside(id, "allowed for "+goodName, append(fronted, plain...), control)
	arrived := "nothing"
	for _, e := range t.seen() {
		if e.Host != "" && e.Service != "dns" && !strings.HasPrefix(e.Host, goodName) {
			arrived = e.Service + " " + e.Host
		}
	}
	t.judge(arrived == "nothing", "other names at the server", arrived, "outside: they arrive")
	// The certificate of the allowed name's own server: the address is that of the name, whatever the program resolved before.
	both := t.networked(network.Policy{Allow: []string{goodName, front}})
	t.reachedInside(both, "both are allowed", attempt{"tcp", front + ":443", "tls " + front}, web(front+":80", front))
	t.refusedInside(both, "both are allowed", []attempt{{"tcp", front + ":443", "tls " + goodName}, web(front+":80", goodName)}, nil)
}

func otherWays(t *trial) {
	id := t.networked(network.Policy{Allow: []string{goodName, testnet.Public + ":7,80"}})
	t.reachedInside(id, "allowed", goodWeb, attempt{"tcp", testnet.Public + ":7", "echo"})
	moved := []attempt{}
	for _, to := range []string{"http%3A%2F%2Fbad.example%2F", "http%3A%2F%2F" + testnet.Metadata + "%2F", "http%3A%2F%2F" + testnet.Private,
		"http%3A%2F%2Fgood.example%3A8080%2F"} {
		moved = append(moved, attempt{"tcp", goodName, "follow /moved?to=" + to})
	}
	datagrams := []attempt{
		{"udp", goodName + ":443", "echo"}, {"udp", testnet.Public + ":443", "echo"}, {"udp", "[" + testnet.Public6 + "]:443", "echo"},
		{"udp", testnet.Public + ":7", "echo"}, {"udp", testnet.Other + ":7", "echo"}, {"udp", testnet.Private + ":7", "echo"},
		{"tcp", testnet.Other + ":7", "echo"}, {"tcp", testnet.Public + ":22", "echo"},
	}
	datagrams = slices.DeleteFunc(datagrams, func(a attempt) bool { return a.address == testnet.Public+":22" }) // it greets
	control := t.reachedOutside(slices.Concat(moved, datagrams))
	_ = t.seen()
	t.refusedInside(id, "allowed over TCP", slices.Concat(moved, datagrams), control)
	seen := t.seen()
	t.nothingAt(seen, "where redirections lead", testnet.Other, testnet.Other6, testnet.Metadata, testnet.Private)
	sent := "nothing"
	for _, e := range seen {
		if e.Service == "udp" {
			sent = e.Local
		}
	}
	t.judge(sent == "nothing", "datagrams at servers", sent, "outside: they arrive")
	datagram := t.networked(network.Policy{Allow: []string{goodName + ":443/udp", "[" + testnet.Public6 + "]:7/udp"}})
	t.reachedInside(datagram, "allowed over UDP", attempt{"udp", goodName + ":443", "echo"}, attempt{"udp", "[" + testnet.Public6 + "]:7", "echo"})

	// Sockets that go round TCP and UDP.
	host := t.outside("sockets", testnet.Public, testnet.Other)
	for _, a := range t.inside(id, "sockets", testnet.Public, testnet.Other) {
		t.judge(!a.OK(), a.Name, a.Got, "outside: "+host.of(a.Name).Got)
	}
	// Another source address, and packets in parts.
	spoofed := t.inside(id, "spoof", "45.10.0.77", testnet.Public+":7", testnet.Other+":7")
	a := spoofed.of("from 45.10.0.77 to " + testnet.Other + ":7")
	t.judge(!a.OK(), a.Name, a.Got, "")
	false6 := []string{"[" + testnet.Other6 + "]:7", "[" + testnet.Private6 + "]:7"}
	parts := t.outside("fragments", append(false6, "["+testnet.Public6+"]:7")...)
	_ = t.seen()
	for _, a := range t.inside(id, "fragments", false6...) {
		t.control(parts.of(a.Name).OK(), "outside: parts to "+a.Name, parts.of(a.Name).Got)
		t.judge(!a.OK(), "packets in parts to "+a.Name, a.Got, "outside: "+parts.of(a.Name).Got)
	}
	whole := t.inside(datagram, "fragments", "["+testnet.Public6+"]:7").of("[" + testnet.Public6 + "]:7")
	t.control(whole.OK(), "allowed: packets in parts", whole.Got)
	seen = t.seen()
	t.nothingAt(seen, "packets in parts at servers", testnet.Other6, testnet.Private6, testnet.Other)
	from := "the supervisor"
	for _, e := range seen {
		if host, _, err := net.SplitHostPort(e.Remote); err == nil && host != testnet.Supervisor && host != testnet.Supervisor6 &&
			host != "::ffff:"+testnet.Supervisor {
			from = e.Remote
		}
	}
	t.judge(from == "the supervisor", "the source of all packets", from, "")

	// Floods of connections: refused ones, allowed ones, and such that no server answers.
	limited := t.sandbox(func(s *sandbox.Spec) {
		s.Network = network.Policy{Allow: []string{goodName, testnet.Public + ":7", testnet.Silent + ":80"}}
		s.Limits.Wall *= 2
	})
	for name, args := range map[string][]string{
		"refused": {testnet.Other + ":80", "300", "5"}, "allowed": {testnet.Public + ":7", "300", "5"},
	} {
		res := t.run(limited, t.process("knock", args...), sandbox.IO{})
		t.judge(res.Success() && res.Metrics.MemoryPeak <= uint64(res.Limits.Memory), "a flood of connections: "+name,
			fmt.Sprintf("%s, %d MiB", res.Verdict, res.Metrics.MemoryPeak>>20), fmt.Sprintf("limit: %d MiB", res.Limits.Memory>>20))
	}
	t.reachedInside(limited, "after a flood", goodWeb)
}

func emptyList(t *trial) {
	list := []attempt{
		web(goodName+":80", goodName), web(testnet.Public+":80", "x"), web("["+testnet.Public6+"]:80", "x"), {"udp", testnet.Public + ":7", "echo"},
		web(testnet.Private+":80", "x"),
	}
	control := t.reachedOutside(list)
	_ = t.seen()
	for where, p := range map[string]network.Policy{
		"an empty list":        {Mode: network.Allow, Allow: []string{}},
		"a denied rule":        {Allow: []string{goodName, testnet.Public}, Deny: []string{goodName, testnet.Public}},
		"only published ports": {Publish: []string{"8000"}},
	} {
		t.refusedInside(t.networked(p), where, list, control)
	}
	seen := slices.DeleteFunc(t.seen(), func(e testnet.Event) bool { return e.Service == "dns" && e.Host == goodName+"." })
	t.nothingAt(seen, "messages at servers", testnet.Public, testnet.Public6, testnet.Private, testnet.Gateway)
	t.reachedInside(t.networked(network.Policy{Allow: []string{goodName}}), "a list with one name", list[0])
}
