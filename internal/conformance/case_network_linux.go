package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// get is a request for a host.
func get(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

// networked makes a sandbox with a network.
func (e *env) networked(p network.Policy, change ...func(*sandbox.Spec)) string {
	e.Helper()
	return e.create(append(change, func(s *sandbox.Spec) { s.Network = p })...)
}

// asks runs a client in a sandbox, and returns how it went.
func (e *env) asks(id, protocol, address, text string) string {
	e.Helper()
	return strings.TrimSpace(e.ok(e.in(id, e.probe("ask", protocol, address, text)...)))
}

// reaches compares whether clients in a sandbox reach servers: "tcp 192.0.2.1:7", or "web name:80".
func (e *env) reaches(id string, want bool, servers ...string) {
	e.Helper()
	for _, s := range servers {
		protocol, address, _ := strings.Cut(s, " ")
		text, answer := "hello", `ok "hello"`
		if protocol == "web" {
			protocol, answer = "tcp", "says hello as"
			host, _, _ := net.SplitHostPort(address)
			text = get(host)
		}
		if got := e.asks(id, protocol, address, text); strings.Contains(got, answer) != want {
			e.Errorf("%s: %q, allowed is %v", s, got, want)
		}
	}
}

const (
	good  = "good.example"
	echo4 = testnet.Public + ":" + testnet.EchoPort
)

var networkRows = []row{
	{"rules: names, wildcards, addresses, prefixes and ports", nil, false, func(e *env) {
		v6 := func(a, port string) string { return net.JoinHostPort(a, port) }
		for _, c := range []struct{ allow, reached, refused string }{
			{good, "web good.example:80, web GOOD.example.:80", "tcp good.example:7, udp good.example:7, web bad.example:80, web " + testnet.Public +
				":80, web a.wild.example:80"},
			{"good.example:7", "tcp good.example:7", "web good.example:80, udp good.example:7"},
			{"good.example:7/udp", "udp good.example:7", "tcp good.example:7, web good.example:80"},
			{"*.wild.example", "web a.wild.example:80, web a.b.wild.example:80", "web wild.example:80, web good.example:80"},
			{"six.example", "web six.example:80", "web " + v6(testnet.Public6, "80")},
			{testnet.Public + ":7", "tcp " + echo4, "web " + testnet.Public + ":80, tcp " + testnet.Other + ":7, tcp " + v6(testnet.Public6, "7") +
				", udp " + echo4},
			{"[" + testnet.Public6 + "]:7", "tcp " + v6(testnet.Public6, "7"), "tcp " + echo4 + ", udp " + v6(testnet.Public6, "7")},
			{"93.184.216.32/28:7", "tcp " + echo4 + ", tcp " + testnet.Other + ":7", "tcp " + testnet.Resolver + ":7"},
			{"[2606:2800:220:1::/64]:7/udp", "udp " + v6(testnet.Public6, "7") + ", udp " + v6(testnet.Other6, "7"), "udp " + v6(testnet.Private6, "7")},
			{testnet.Private + ":7", "tcp " + testnet.Private + ":7, tcp [::ffff:" + testnet.Private + "]:7", "tcp " + testnet.Metadata + ":7"},
		} {
			id := e.networked(network.Policy{Allow: []string{c.allow}})
			e.reaches(id, true, strings.Split(c.reached, ", ")...)
			e.reaches(id, false, strings.Split(c.refused, ", ")...)
		}
	}},
	{"rules: a denied host is not reached, whatever is allowed", nil, false, func(e *env) {
		id := e.networked(network.Policy{Allow: []string{good, "front.example", "93.184.216.0/24:7,80"}, Deny: []string{good, testnet.Other}})
		e.reaches(id, true, "web front.example:80", "tcp "+echo4)
		e.reaches(id, false, "web good.example:80", "web "+testnet.Other+":80", "tcp "+testnet.Other+":7")
	}},
	{"rules: full is the internet, without private addresses and the host's own", nil, false, func(e *env) {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			e.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(struct{ io.Writer }{c}, c) // without the pipes that package net keeps
				c.Close()
			}
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		own := []string{testnet.Supervisor + ":" + port, "[" + testnet.Supervisor6 + "]:" + port}
		for _, a := range own { // control
			c, err := net.Dial("tcp", a)
			if err != nil {
				e.Fatal(err)
			}
			c.Close()
		}
		id := e.networked(network.Policy{Mode: network.Full})
		e.reaches(id, true, "web good.example:80", "web bad.example:80", "tcp "+echo4, "udp "+echo4, "tcp ["+testnet.Public6+"]:7")
		e.reaches(id, false, "tcp "+own[0], "tcp "+own[1], "tcp own.example:"+port, "tcp "+testnet.Private+":7", "udp "+testnet.Private+":7", "tcp "+
			testnet.Metadata+":7", "tcp ["+testnet.Private6+"]:7", "tcp private.example:7", "tcp 127.0.0.1:"+port, "tcp [::1]:"+port)
		named := e.networked(network.Policy{Mode: network.Full, Allow: []string{testnet.Private + ":7", testnet.Supervisor + ":" + port}})
		e.reaches(named, true, "tcp "+own[0], "tcp own.example:"+port, "tcp private.example:7", "tcp "+testnet.Private+":7")
		e.reaches(named, false, "tcp "+testnet.Metadata+":7")
	}},
	{"rules: UDP to a name whose addresses are private is refused at once", nil, false, func(e *env) {
		id := e.networked(network.Policy{Allow: []string{"private.example:7/udp", "private6.example:7/udp"}})
		for _, a := range []string{"private.example:7", "private6.example:7"} {
			if got := e.asks(id, "udp", a, "hello"); !strings.HasPrefix(got, "ECONNREFUSED") {
				e.Errorf("%s: %q", a, got)
			}
		}
	}},
	{"rules: what a run has needed is enough for it", nil, false, func(e *env) {
		id := e.networked(network.Policy{Mode: network.Learn, Allow: []string{testnet.Private + ":7"}})
		for address, needed := range map[string][]string{
			"good.example:7":    {"good.example:7"},
			"private.example:7": {testnet.Private + ":7", "private.example:7"}, // the name, and its address
		} {
			res := e.in(id, e.probe("ask", "tcp", address, "hello")...)
			if res.Needed == nil || !slices.Equal(res.Needed.Allow, needed) {
				e.Errorf("%s: needed %+v, want %q; %q", address, res.Needed, needed, res.Stdout.Bytes())
				continue
			}
			e.reaches(e.networked(*res.Needed), true, "tcp "+address)
			e.reaches(e.networked(network.Policy{Allow: needed[:1]}), len(needed) == 1, "tcp "+address) // nothing less is
		}
	}},
	{"rules: sandboxes do not see each other", nil, false, func(e *env) {
		policy := network.Policy{Mode: network.Full}
		one, other := e.networked(policy), e.networked(policy)
		e.start(one, sandbox.Process{Args: e.probe("serve", "8000")}, sandbox.IO{}).says("ready ok")
		for _, a := range []string{"127.0.0.1:8000", "198.18.0.2:8000", "[::1]:8000"} {
			if got := e.asks(one, "tcp", a, ""); !strings.Contains(got, "inside") { // control, and two processes share a network
				e.Errorf("%s from the same sandbox: %q", a, got)
			}
			if got := e.asks(other, "tcp", a, ""); !strings.HasPrefix(got, "ECONNREFUSED") {
				e.Errorf("%s from another sandbox: %q", a, got)
			}
		}
	}},
	{"rules: each phase has its own", nil, false, func(e *env) {
		id := e.networked(network.Policy{Allow: []string{good}})
		e.reaches(id, true, "web good.example:80")
		in := func(phase string, p network.Policy, server string) string {
			return e.ok(e.do(id, sandbox.Process{Phase: phase, Network: p, Args: e.probe("ask", "tcp", server+":80", get(server))}, sandbox.IO{}))
		}
		other := network.Policy{Allow: []string{"bad.example"}}
		for _, c := range []struct {
			phase, server string
			policy        network.Policy
			want          bool
		}{
			{"other", "bad.example", other, true}, {"other", good, other, false}, {"none", good, sandbox.NetworkNone, false},
			{"localhost", good, sandbox.NetworkLocalhost, false}, {"same", good, network.Policy{}, true},
		} {
			if got := in(c.phase, c.policy, c.server); strings.Contains(got, "says hello") != c.want {
				e.Errorf("%s in phase %s: %q", c.server, c.phase, got)
			}
		}
		e.reaches(id, false, "web bad.example:80")
	}},
	{"rules: names with difficult answers, and difficult servers", nil, false, func(e *env) {
		id := e.networked(network.Policy{Allow: []string{testnet.Chain, testnet.Huge, "zero.example", "slow.example", "mixed.example",
			testnet.Public + ":" + testnet.SlowPort + "," + testnet.HalfPort + "," + testnet.ResetPort + ",22,9999", "bad.example:80"}})
		e.reaches(id, true, "web "+testnet.Chain+":80", "web "+testnet.Huge+":80", "web zero.example:80", "web slow.example:80",
			"web mixed.example:80")
		for port, want := range map[string]string{
			testnet.SlowPort: `ok "` + strings.Repeat(".", 20) + `"`, testnet.HalfPort: `ok "hello"`, testnet.ResetPort: `errno 104 ""`,
			testnet.SSHPort: `ok "SSH-2.0-test\r\nhello"`, "9999": "ECONNREFUSED",
		} {
			if got := e.asks(id, "tcp", testnet.Public+":"+port, "hello"); got != want {
				e.Errorf("port %s: %q, want %q", port, got, want)
			}
		}
	}},
	{"rules: what was refused and reached is told", nil, false, func(e *env) {
		id := e.networked(network.Policy{Allow: []string{good}})
		var mu sync.Mutex
		var told []string
		client := e.probe()[0]
		script := fmt.Sprintf("%[1]s ask tcp good.example:80 \"$0\"; %[1]s ask tcp bad.example:80 x; %[1]s ask tcp %[2]s:80 x; %[1]s ask tcp "+
			"good.example:22 x; %[1]s ask udp good.example:443 x", client, testnet.Private)
		res := e.do(id, sandbox.Process{Args: append(e.sh(script), get(good))}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventViolation && ev.Violation.Kind == sandbox.ViolationNetwork {
				mu.Lock()
				told = append(told, ev.Violation.Allow)
				mu.Unlock()
			}
		}})
		e.ok(res)
		var got []string
		for _, v := range res.Violations {
			if v.Kind == sandbox.ViolationNetwork {
				got = append(got, v.Allow)
			}
		}
		want := []string{"--allow 10.1.2.3", "--allow bad.example", "--allow good.example:22", "--allow good.example:443/udp"}
		slices.Sort(got)
		slices.Sort(told)
		if got = slices.Compact(got); !slices.Equal(got, want) || !slices.Equal(slices.Compact(told), want) {
			e.Errorf("violations %q, events %q, want %q", got, told, want)
		}
		at := slices.IndexFunc(res.Metrics.Network, func(d monitor.Destination) bool { return d.Host == good && d.Port == 80 && d.Protocol == "tcp" })
		if len(res.Metrics.Network) != 1 || at < 0 || res.Metrics.Network[at].Sent < 30 || res.Metrics.Network[at].Received < 100 {
			e.Errorf("destinations %+v", res.Metrics.Network)
		}
		// The flags do allow it.
		var allow []string
		for _, v := range want {
			allow = append(allow, strings.TrimPrefix(v, "--allow "))
		}
		e.reaches(e.networked(network.Policy{Allow: append(allow, good)}), true, "web bad.example:80", "web "+testnet.Private+":80",
			"udp good.example:443", "web good.example:80")
	}},
	{"rules: published ports", nil, false, func(e *env) {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			e.Fatal(err)
		}
		_, fixed, _ := net.SplitHostPort(free.Addr().String())
		free.Close()
		id := e.networked(network.Policy{Publish: []string{"8000", fixed + ":8000"}})
		ports := make(chan []network.Port, 1)
		j := e.start(id, sandbox.Process{Args: e.probe("serve", "8000")}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventPublished {
				ports <- ev.Published
			}
		}})
		j.says("ready ok")
		list := <-ports
		if len(list) != 2 || list[0].Sandbox != 8000 || fmt.Sprint(list[1].Host) != fixed {
			e.Fatalf("published: %+v", list)
		}
		for _, p := range list {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Host))
			if err != nil {
				e.Fatal(err)
			}
			text, err := io.ReadAll(c)
			c.Close()
			if string(text) != "inside" {
				e.Errorf("port %d: %q, %v", p.Host, text, err)
			}
			if c, err := net.Dial("tcp", net.JoinHostPort(testnet.Supervisor, fmt.Sprint(p.Host))); err == nil {
				c.Close()
				e.Errorf("port %d is open beyond the loopback", p.Host)
			}
		}
		// Another sandbox can not have the same port; and is told.
		if _, err := e.try(e.networked(network.Policy{Publish: []string{fixed + ":1"}}), sandbox.Process{Args: e.probe("args")}, sandbox.IO{}); !errors.Is(
			err, sandbox.ErrInvalid) {
			e.Errorf("a port that is taken: %v", err)
		}
		if err := e.m.Kill(id); err != nil {
			e.Error(err)
		}
		j.result()
		for _, p := range list {
			if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Host)); err == nil {
				c.Close()
				e.Errorf("port %d is open after the sandbox", p.Host)
			}
		}
	}},
	{"rules: limits of bytes, connections and rate", nil, false, func(e *env) {
		policy := network.Policy{Allow: []string{good, good + ":7"}}
		limited := func(change func(*sandbox.Limits)) string {
			return e.networked(policy, func(s *sandbox.Spec) { change(&s.Limits) })
		}
		told := func(res *sandbox.Result, text string) {
			if !slices.ContainsFunc(res.Violations, func(v sandbox.Violation) bool { return strings.Contains(v.Detail, text) }) {
				e.Errorf("no violation says %q: %+v", text, res.Violations)
			}
		}
		const size = 3 << 20
		fetch := e.probe("fetch", good+":80", strconv.Itoa(size))
		count := func(res *sandbox.Result) int {
			f := strings.Fields(e.ok(res))
			n, _ := strconv.Atoi(f[0])
			return n
		}
		if n := count(e.in(e.networked(policy), fetch...)); n < size { // control
			e.Errorf("without a limit: %d bytes", n)
		}
		res := e.in(limited(func(l *sandbox.Limits) { l.NetBytes = sandbox.MiB }), fetch...)
		if n := count(res); n > 1<<20+256<<10 || n == 0 { // what was not read yet is lost
			e.Errorf("with a limit of a MiB: %d bytes", n)
		}
		told(res, "bytes in all")
		res = e.in(limited(func(l *sandbox.Limits) { l.NetConnections = 5 }), e.probe("connections", good+":7", "9")...)
		e.says(res, "5")
		told(res, "connections at a time")
		e.says(e.in(e.networked(policy), e.probe("connections", good+":7", "9")...), "9") // control
		began := time.Now()
		res = e.in(limited(func(l *sandbox.Limits) { l.NetRate = sandbox.MiB }), fetch...)
		if n, took := count(res), time.Since(began); n < size || took < 2*time.Second {
			e.Errorf("3 MiB at a MiB per second: %d bytes in %v", n, took)
		}
	}},
	{"rules: the limit on processes is that of programs", []Expectation{Processes}, false, func(e *env) {
		limit := func(s *sandbox.Spec) { s.Limits.Processes = 12 }
		// The shell ends when it can not fork, so that the last line is the number of its children.
		count := func(id string) (n int) {
			const script = `(i=0; while :; do sleep 20 >/dev/null & i=$((i+1)); echo $i; done) 2>/dev/null; exit 0`
			for line := range strings.Lines(e.ok(e.in(id, "/bin/sh", "-c", script))) {
				_, _ = fmt.Sscan(line, &n)
			}
			return n
		}
		want := count(e.create(limit, func(s *sandbox.Spec) { s.Network = sandbox.NetworkLocalhost }))
		id := e.networked(network.Policy{Allow: []string{good}}, limit)
		for range 3 {
			if got := count(id); got > want || got < want-2 || want != 10 { // two threads more than at its start are the network's own
				e.Errorf("%d children with rules, %d without", got, want)
			}
			e.reaches(id, true, "web good.example:80")
		}
	}},
	{"rules: the network's process is in the sandbox, and ends with it", nil, true, func(e *env) {
		for _, kill := range []string{"the process", "the sandbox", "nothing"} {
			mark := e.mark()
			id := e.networked(network.Policy{Allow: []string{good}}, func(s *sandbox.Spec) { s.Env[markVariable] = mark })
			life := map[string]string{"nothing": "10ms"}[kill]
			if life == "" {
				life = "5m"
			}
			j := e.start(id, sandbox.Process{Args: e.probe("ready", life, mark)}, sandbox.IO{}).ready()
			if kill != "nothing" {
				pids := networkProcesses(os.Getpid())
				if len(pids) != 1 {
					e.Fatalf("%d processes of networks", len(pids))
				}
				e.sharesGroups(pids[0], mark)
			}
			switch kill {
			case "the process":
				pidfd, err := unix.PidfdOpen(networkProcesses(os.Getpid())[0], 0)
				if err == nil {
					err = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
					_ = unix.Close(pidfd)
				}
				if err != nil {
					e.Fatal(err)
				}
			case "the sandbox":
				if err := e.m.Kill(id); err != nil {
					e.Error(err)
				}
			}
			res := j.result()
			told := slices.ContainsFunc(res.Notes, func(n string) bool { return strings.Contains(n, "the network's process ended") })
			if told != (kill == "the process") || res.Success() != (kill == "nothing") {
				e.Errorf("%s is killed: %s, notes %q", kill, describe(res), res.Notes)
			}
			if err := e.m.Delete(e.Context(), id); err != nil {
				e.Error(err)
			}
			if left := networkProcesses(os.Getpid()); len(left) > 0 {
				e.Errorf("%s is killed: processes %v are left", kill, left)
			}
		}
	}},
}

// sharesGroups fails unless a process is in the cgroups of the marked program.
func (e *env) sharesGroups(pid int, mark string) {
	e.Helper()
	groups := func(pid string) (list []string) {
		text, _ := os.ReadFile("/proc/" + pid + "/cgroup")
		for line := range strings.Lines(string(text)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) == 3 && (f[1] == "" || f[1] == "memory" || f[1] == "pids" || strings.HasPrefix(f[1], "cpu")) {
				list = append(list, line)
			}
		}
		return list
	}
	list := slices.DeleteFunc(marked(mark), func(p string) bool { return !strings.Contains(p, mark) }) // programs are forked from others
	if len(list) == 0 {
		e.Error("the program is invisible from outside")
		return
	}
	program, _, _ := strings.Cut(list[0], " ")
	if a, b := groups(program), groups(strconv.Itoa(pid)); !slices.Equal(a, b) {
		e.Errorf("the program is in %q, the network's process in %q", a, b)
	}
}
