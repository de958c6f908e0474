package attack

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func networkCases() []attackCase {
	return []attackCase{{"N1", "any connection without a network", anyConnection}}
}

func anyConnection(t *trial) {
	var dial []string
	// Servers of this process that answer every client with the mark.
	for _, s := range []struct{ network, address string }{
		{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"unix", "@" + t.mark},
	} {
		l, err := net.Listen(s.network, s.address)
		if err != nil {
			t.note("no %s on this host: %v", s.network, err)
			continue
		}
		t.later(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(t.mark))
				_ = c.Close()
			}
		}()
		dial = append(dial, s.network, l.Addr().String())
	}
	for _, s := range []struct{ network, address string }{{"udp4", "127.0.0.1:0"}, {"udp6", "[::1]:0"}} {
		l, err := net.ListenPacket(s.network, s.address)
		if err != nil {
			t.note("no %s on this host: %v", s.network, err)
			continue
		}
		t.later(func() { _ = l.Close() })
		go func() {
			buf := make([]byte, 64)
			for {
				_, from, err := l.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = l.WriteTo([]byte(t.mark), from)
			}
		}()
		dial = append(dial, s.network, l.LocalAddr().String())
	}
	reachable := func(said answers) bool {
		return !slices.ContainsFunc(pairs(dial), func(name string) bool { return !said.of(name).OK() })
	}
	control := t.outside("dial", dial...)
	for tries := 1; tries < 5 && !reachable(control); tries++ { // each has half a second, which may be too short on a busy host
		control = t.outside("dial", dial...)
	}
	for _, name := range pairs(dial) {
		t.control(control.of(name).OK(), name+" from the host", control.of(name).Got)
	}
	near := append(slices.Clone(dial), "ip4:icmp", "127.0.0.1")
	// Beyond the host: metadata services and the like. They are dialled neither from outside nor from a sandbox that reached the host.
	far := []string{"tcp4", "169.254.169.254:80", "udp4", "192.0.2.1:53", "tcp6", "[2001:db8::1]:80"}
	for _, mode := range []network.Policy{sandbox.NetworkNone, sandbox.NetworkLocalhost} {
		id := t.sandbox(func(s *sandbox.Spec) { s.Network = mode })
		reached := false
		try := func(list []string) answers {
			said := t.inside(id, "dial", list...)
			for _, name := range pairs(list) {
				c := ""
				if slices.Contains(pairs(dial), name) {
					c = "host: " + control.of(name).Got
				}
				reached = reached || said.of(name).OK()
				got := said.of(name).Got
				// A datagram may come back from a socket of the sandbox's own loopback that has the number of the host's port.
				own := got == hostile.AnotherAnswer && strings.HasPrefix(name, "udp") && slices.Contains(pairs(near), name)
				t.judge(got != "ok" && got != "no answer" && (own || got != hostile.AnotherAnswer), "network "+string(mode.Mode)+": "+name, got, c)
			}
			return said
		}
		said := try(near)
		if !reached {
			try(far)
		}
		links := 0
		for _, a := range said.all("interface") {
			if a.Got != "lo" {
				links++
			}
		}
		t.judge(links == 0, "network "+string(mode.Mode)+": interfaces beside lo", fmt.Sprint(links),
			fmt.Sprintf("host: %d", len(control.all("interface"))))
	}
	t.landlockedNetwork("", func(verb string, args ...string) answers { return t.inside(t.sandbox(), verb, args...) })
	own, _ := os.Readlink("/proc/self/ns/net")
	pid, end := t.background(t.sandbox(), t.process("sleep", "1m"))
	defer end()
	if theirs, err := os.Readlink("/proc/" + pid + "/ns/net"); err == nil {
		t.judge(theirs != own, "its network namespace", theirs, "host: "+own)
	}
}

// pairs are the names of attempts to dial.
func pairs(list []string) (names []string) {
	for i := 0; i+1 < len(list); i += 2 {
		names = append(names, list[i]+" "+list[i+1])
	}
	return names
}
