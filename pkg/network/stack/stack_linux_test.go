package stack

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// internet brings up the test's internet, once.
var internet = sync.OnceValue(func() error {
	if err := initproc.RaiseLoopback(); err != nil {
		return err
	}
	var list [][]byte
	for _, a := range []string{public, public6, other, private, metadata} {
		list = append(list, netip.MustParseAddr(a).AsSlice())
	}
	return netdev.AddLoopback(list...)
})

// echo is a TCP server that answers a line with its own address and the line.
func echo(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	listen(t, l, func(c net.Conn) {
		line, _ := bufio.NewReader(c).ReadString('\n')
		_, _ = c.Write([]byte(address + " says " + line))
	})
}

func web(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Host)) })} //nolint:gosec // a test
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
}

// secure is a TLS server whose certificate has the name of its address.
func secure(t *testing.T, address string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: address}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", address, &tls.Config{ //nolint:gosec // a test
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	listen(t, l, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

func listen(t *testing.T, l net.Listener, handle func(net.Conn)) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				handle(c)
			}()
		}
	}()
}

// datagrams is a UDP server that answers each datagram with its own address and the datagram.
func datagrams(t *testing.T, address string) {
	t.Helper()
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		data := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(address+" says "), data[:n]...), from)
		}
	}()
}

// TestReach: what programs reach under a policy, and what they do not. Each server that is not reached is reached under another
// policy, or by another name.
func TestReach(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{public, other, private, metadata, public6} {
		for _, port := range []string{"22", "8443"} {
			echo(t, net.JoinHostPort(a, port))
		}
		web(t, net.JoinHostPort(a, "80"))
		secure(t, net.JoinHostPort(a, "443"))
		datagrams(t, net.JoinHostPort(a, "53"))
		datagrams(t, net.JoinHostPort(a, "443"))
	}
	allow := func(rules ...string) network.Policy { return network.Policy{Mode: network.Allow, Allow: rules} }
	const refused, unknown = "connection refused", "no such host"
	for _, c := range []struct {
		policy network.Policy
		args   string
		want   string
	}{
		{allow("good.example:22"), "tcp good.example:22 hello", public + ":22 says hello"},
		{allow("good.example"), "tcp good.example:22 hello", refused},
		{allow("good.example:22"), "tcp bad.example:22 hello", unknown},
		{allow("good.example:22"), "tcp " + public + ":22 hello", refused},
		{allow(public + ":22"), "tcp " + public + ":22 hello", public + ":22 says hello"},
		{allow("93.184.216.0/24:22"), "tcp " + other + ":22 hello", other + ":22 says hello"},
		{allow("*.sub.example:22"), "tcp a.sub.example:22 hello", public + ":22 says hello"},
		{allow("*.sub.example:22"), "tcp sub.example:22 hello", unknown},
		{allow("absent.example:22"), "tcp absent.example:22 hello", unknown},
		{allow("silent.example:22"), "tcp silent.example:22 hello", refused}, // nothing listens there
		// IPv6 as IPv4.
		{allow("six.example:22"), "tcp six.example:22 hello", "[" + public6 + "]:22 says hello"},
		{allow("good.example:22"), "tcp [" + public6 + "]:22 hello", refused},
		{allow("[" + public6 + "]:22"), "tcp [" + public6 + "]:22 hello", "[" + public6 + "]:22 says hello"},
		{allow("good.example:22"), "tcp [::ffff:" + public + "]:22 hello", refused},
		// N2, N4: an allowed name with a private address, or one of several.
		{allow("rebound.example:22"), "tcp rebound.example:22 hello", refused},
		{allow("rebound.example:22", private+":22"), "tcp rebound.example:22 hello", private + ":22 says hello"},
		{allow("good.example"), "datagrams " + public + ":53", "refused 300"},
		{allow("rebound.example:443/udp"), "udp rebound.example:443 hello", refused},
		{allow("private6.example:443/udp"), "udp private6.example:443 hello", refused},
		{allow("mixed.example:22"), "tcp mixed.example:22 hello", public + ":22 says hello"},
		{allow("good.example"), "tcp " + metadata + ":80 hello", refused},
		{network.Policy{Mode: network.Full}, "tcp " + metadata + ":80 hello", refused},
		{network.Policy{Mode: network.Full}, "tcp " + private + ":22 hello", refused},
		{network.Policy{Mode: network.Full}, "tcp " + other + ":22 hello", other + ":22 says hello"},
		{network.Policy{Mode: network.Full}, "tcp bad.example:22 hello", other + ":22 says hello"},
		{network.Policy{Mode: network.Full, Deny: []string{"bad.example"}}, "tcp bad.example:22 hello", unknown},
		{network.Policy{Mode: network.Full, Deny: []string{other + ":22"}}, "tcp bad.example:22 hello", refused},
		// N6: the host that a protocol names.
		{allow("good.example"), "tls good.example:443 good.example", "shook hands with " + public},
		{allow("good.example"), "tls good.example:443 GOOD.example", "shook hands with " + public},
		{allow("good.example"), "tls good.example:443 bad.example", "error"},
		{allow("good.example"), "tcp good.example:443 hello", "error"},
		{allow("good.example:8443"), "tcp good.example:8443 hello", "error"},
		{allow(public), "tls " + public + ":443 bad.example", "shook hands with " + public},
		{allow("good.example"), "get http://good.example/ good.example:80", "200 good.example"},
		{allow("good.example"), "get http://good.example/ bad.example", "error"},
		{allow("good.example"), "tcp good.example:80 CONNECT bad.example:443 HTTP/1.1", "error"},
		// UDP, and resolvers.
		{allow("good.example"), "udp good.example:443 hello", refused},
		{allow("good.example:443/udp"), "udp good.example:443 hello", public + ":443 says hello"},
		{allow("good.example"), "udp " + public + ":53 hello", refused},
		{allow(public + ":53/udp"), "udp " + public + ":53 hello", public + ":53 says hello"},
		{network.Policy{Mode: network.Allow, DNS: true}, "lookup bad.example", other},
		{network.Policy{Mode: network.Allow, DNS: true}, "tcp bad.example:22 hello", refused},
		{network.Policy{Mode: network.Allow, DNS: true, Allow: []string{other + ":22"}}, "tcp bad.example:22 hello", other + ":22 says hello"},
		{allow("good.example"), "lookup bad.example", unknown},
		{allow("good.example"), "lookup good.example", "198.18.0.16"},
		{allow("good.example", "198.18.0.0/15:22"), "lookup good.example", "100.127.0.16"},
	} {
		t.Run(strings.Join(c.policy.Allow, ",")+" "+c.args, func(t *testing.T) {
			w := newWorld(t, c.policy, Options{})
			w.host("rebound.example", metadata, private)
			w.host("private6.example", "fd12::3")
			w.host("mixed.example", private, public)
			w.host("six.example", public6)
			w.host("silent.example", "93.184.216.36")
			w.host("a.sub.example", public)
			w.host("sub.example", public)
			got := w.run(strings.Fields(c.args)...)
			if !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			report := w.stack.Report()
			if isRefused := len(report.Refused) > 0; isRefused != strings.Contains("error "+refused+" "+unknown, c.want) && c.want != other {
				if !strings.HasPrefix(c.args, "tcp absent") && !strings.HasPrefix(c.args, "tcp silent") && !strings.Contains(c.args, "mixed") &&
					!strings.Contains(c.args, "rebound") && !strings.HasPrefix(c.args, "datagrams") && !strings.Contains(c.args, "private6") {
					t.Errorf("report %+v", report)
				}
			}
		})
	}
}

func TestLimits(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", public+":9")
	if err != nil {
		t.Fatal(err)
	}
	listen(t, l, func(c net.Conn) { _, _ = c.Write(make([]byte, 1<<20)); _, _ = io.Copy(io.Discard, c) })
	policy := network.Policy{Mode: network.Allow, Allow: []string{"good.example:9"}}
	w := newWorld(t, policy, Options{Limits: network.Limits{Bytes: 64 << 10}})
	if got := w.run("tcp", "good.example:9", "hello"); !strings.Contains(got, "error") {
		t.Errorf("beyond the limit of bytes: %d bytes", len(got))
	}
	if r := w.stack.Report(); len(r.Refused) == 0 || !strings.Contains(r.Refused[0].Reason, "bytes") {
		t.Errorf("%+v", r)
	}
	w = newWorld(t, policy, Options{}) // control
	if got := w.run("tcp", "good.example:9", "hello"); len(got) != 1<<20 {
		t.Errorf("without a limit: %d bytes", len(got))
	}
	w = newWorld(t, policy, Options{Limits: network.Limits{Rate: 1 << 20}})
	began := time.Now()
	if got := w.run("tcp", "good.example:9", "hello"); len(got) != 1<<20 || time.Since(began) < 500*time.Millisecond {
		t.Errorf("%d bytes within %v at 1 MiB/s", len(got), time.Since(began))
	}
}

// Datagrams and queries that programs send before the stack exists are answered: nothing sends them again.
func TestFirstPackets(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	const sockets = 16
	addresses := []string{public + ":123", "[" + public6 + "]:123"}
	for _, a := range addresses {
		datagrams(t, a)
	}
	name := dnsmessage.MustNewName("good.example.")
	query := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	question, err := query.Pack()
	if err != nil {
		t.Fatal(err)
	}
	// With threads to spare, a goroutine that reads the device starts at once: before the stack is configured, if it is started too early.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for range 60 {
		w, build := openWorld(t, network.Policy{Allow: []string{"good.example", public + ":123/udp", "[" + public6 + "]:123/udp"}}, Options{})
		var all []net.Conn
		onThread(t, func() error {
			if err := unix.Setns(w.ns, unix.CLONE_NEWNET); err != nil {
				return err
			}
			for i := range sockets {
				to, data := network.Resolver.String()+":53", question
				if i%2 == 0 {
					to, data = addresses[i/2%2], []byte("hello")
				}
				c, err := net.Dial("udp", to)
				if err != nil {
					return err
				}
				all = append(all, c)
				if _, err := c.Write(data); err != nil {
					return err
				}
			}
			return nil
		})
		build()
		for _, c := range all {
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(make([]byte, 512)); err != nil {
				t.Error(err)
			}
			_ = c.Close()
		}
		if r := w.stack.Report(); len(r.Refused) > 0 {
			t.Errorf("refused: %+v", r.Refused)
		}
		if t.Failed() {
			return
		}
	}
}

// The sockets of resolvers do not use up the limit of connections.
func TestQueriesAreNoConnections(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	echo(t, public+":7")
	w := newWorld(t, network.Policy{Allow: []string{"good.example:7"}}, Options{Limits: network.Limits{Connections: 1}})
	for range 3 {
		if got := w.run("tcp", "good.example:7", "hello"); !strings.Contains(got, "hello") {
			t.Errorf("after a query: %q", got)
		}
	}
	if report := w.stack.Report(); len(report.Refused) > 0 {
		t.Errorf("refused: %+v", report.Refused)
	}
}

// A program that leaves no descriptor for the question gets no answer that it can use.
func TestLocalWithoutDescriptors(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	isLocal := localAddresses()
	a := netip.MustParseAddr(public)
	if !isLocal(a) || isLocal(netip.MustParseAddr("93.184.216.99")) {
		t.Fatal("the kernel is not asked")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	local := isLocal(a)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !local {
		t.Error("without a descriptor, an address of this machine is taken for another's")
	}
}

// What a client names is not reported at any length: the report would be too long to be sent.
func TestLongHostIsCut(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	web(t, public+":80")
	w := newWorld(t, network.Policy{Allow: []string{"good.example"}}, Options{})
	if got := w.run("get", "http://good.example/", strings.Repeat("a", 60000)); !strings.Contains(got, "error") {
		t.Errorf("%.100q", got)
	}
	if r := w.stack.Report(); len(r.Refused) != 1 || len(r.Refused[0].Reason) > 1000 {
		t.Errorf("%d refusals", len(r.Refused))
	}
}

// Connections that are open when the limit of bytes is reached, and those to published ports, pass it no more than others.
func TestLimitOfBytesIsOfAll(t *testing.T) {
	if err := internet(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", public+":10")
	if err != nil {
		t.Fatal(err)
	}
	var got atomic.Int64
	listen(t, l, func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		got.Add(n)
	})
	const limit = 1000
	w := newWorld(t, network.Policy{Allow: []string{"good.example:10"}}, Options{Limits: network.Limits{Bytes: limit}})
	w.run("uploads", "good.example:10", "20", "500")
	time.Sleep(50 * time.Millisecond)
	if n := got.Load(); n > limit || n == 0 {
		t.Errorf("%d bytes with a limit of %d", n, limit)
	}
	if r := w.stack.Report(); len(r.Destinations) != 1 || r.Destinations[0].Sent > limit {
		t.Errorf("%+v", r.Destinations)
	}
}
