package stack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// The tests run in a network namespace of their own, whose loopback has addresses of the internet: the servers that programs are to
// reach, or not, are real, and no packet leaves the machine. A program is this executable again, in a second namespace, whose only
// device leads to the stack.
const (
	roleVariable = "SANDBOX_RUN_TEST_STACK"
	roleInternet = "internet"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		if slices.ContainsFunc(os.Args, func(a string) bool {
			return strings.HasPrefix(a, "-test.fuzz") && !strings.HasPrefix(a, "-test.fuzzcachedir")
		}) {
			os.Exit(m.Run()) // the workers of a fuzz test have descriptors for each other
		}
		os.Exit(inNamespace())
	case roleInternet:
		os.Exit(m.Run())
	default:
		os.Exit(program(os.Args[1:]))
	}
}

// inNamespace runs the tests in new user and network namespaces.
func inNamespace() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInternet)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			fmt.Fprintln(os.Stderr, "no network namespace:", err)
		}
		return 1
	}
	return 0
}

// Addresses of the test's internet. The last octet, or group, of each says what it is.
const (
	public   = "93.184.216.34"
	public6  = "2606:2800:220:1::34"
	other    = "93.184.216.35"
	private  = "10.1.2.3"
	metadata = "169.254.169.254"
)

// world is a namespace with a stack at its device.
type world struct {
	t     *testing.T
	stack *Stack
	ns    int      // descriptor of the sandbox's network namespace
	hosts sync.Map // name to []netip.Addr
}

// newWorld gives programs a network with the policy.
func newWorld(t *testing.T, p network.Policy, o Options) *world {
	t.Helper()
	w, build := openWorld(t, p, o)
	build()
	return w
}

// openWorld is newWorld in two steps: programs can send packets before build makes the stack.
func openWorld(t *testing.T, p network.Policy, o Options) (w *world, build func()) {
	t.Helper()
	filter, err := p.Compile(network.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	w = &world{t: t}
	ranges, err := filter.Ranges()
	if err != nil {
		t.Fatal(err)
	}
	device := -1
	onThread(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		addresses, gateways := ranges.Device()
		if device, err = netdev.Open(netdev.Config{Addresses: addresses, Gateways: gateways}); err != nil {
			return err
		}
		w.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	o.Device, o.Filter = device, filter
	if o.IsLocal == nil { // the servers of the test are on this very machine
		o.IsLocal = func(netip.Addr) bool { return false }
	}
	o.Lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		if list, known := w.hosts.Load(name); known {
			return list.([]netip.Addr), nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	t.Cleanup(func() {
		if w.stack != nil {
			w.stack.Close()
		}
		_ = unix.Close(device)
		_ = unix.Close(w.ns)
	})
	w.host("good.example", public)
	w.host("bad.example", other)
	return w, func() {
		t.Helper()
		if w.stack, err = New(o); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) host(name string, addresses ...string) {
	var list []netip.Addr
	for _, a := range addresses {
		list = append(list, netip.MustParseAddr(a))
	}
	w.hosts.Store(name, list)
}

// onThread runs f on a thread that ends with it.
func onThread(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// run runs a program in the sandbox's namespace and returns what it printed.
func (w *world) run(args ...string) string {
	w.t.Helper()
	var out []byte
	onThread(w.t, func() error {
		if err := unix.Setns(w.ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), roleVariable+"="+network.Resolver.String())
		out, _ = cmd.CombinedOutput()
		return nil
	})
	return strings.TrimSpace(string(out))
}

// program is a program in the sandbox.
func program(args []string) int {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(os.Getenv(roleVariable), "53"))
	}}
	dialer := &net.Dialer{Resolver: resolver, Timeout: 3 * time.Second}
	say := func(err error) int {
		if err == nil {
			return 0
		}
		fmt.Println("error:", err)
		return 1
	}
	switch args[0] {
	case "cat":
		for _, f := range args[1:] {
			b, _ := os.ReadFile(f)
			fmt.Println(string(b))
		}
	case "lookup":
		list, err := resolver.LookupNetIP(context.Background(), "ip", args[1])
		if err == nil {
			fmt.Println(list)
		}
		return say(err)
	case "tcp", "udp": // sends a line, prints the answer
		c, err := dialer.Dial(args[0], args[1])
		if err != nil {
			return say(err)
		}
		fmt.Fprintf(c, "%s\n", strings.Join(args[2:], " "))
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.CloseWrite()
			all, err := io.ReadAll(c)
			fmt.Print(string(all))
			return say(err)
		}
		answer := make([]byte, 64<<10)
		n, err := c.Read(answer)
		fmt.Print(string(answer[:n]))
		return say(err)
	case "datagrams": // ADDRESS: prints how many of 300 are refused
		var all []net.Conn
		for range 300 {
			c, err := dialer.Dial("udp", args[1])
			if err != nil {
				return say(err)
			}
			_, _ = c.Write([]byte("x"))
			all = append(all, c)
		}
		refused := 0
		for _, c := range all {
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNREFUSED) {
				refused++
			}
		}
		fmt.Println("refused", refused)
		return 0
	case "uploads": // ADDRESS N BYTES: N connections, then that many bytes over each
		n, _ := strconv.Atoi(args[2])
		size, _ := strconv.Atoi(args[3])
		var all []net.Conn
		for range n {
			c, err := dialer.Dial("tcp", args[1])
			if err != nil {
				return say(err)
			}
			all = append(all, c)
		}
		for _, c := range all {
			_, _ = c.Write(make([]byte, size))
		}
		time.Sleep(50 * time.Millisecond)
		return 0
	case "tls": // ADDRESS NAME: a handshake
		c, err := tls.DialWithDialer(dialer, "tcp", args[1], &tls.Config{ServerName: args[2], InsecureSkipVerify: true}) //nolint:gosec // a test
		if err != nil {
			return say(err)
		}
		fmt.Println("shook hands with", c.ConnectionState().PeerCertificates[0].Subject.CommonName)
		return 0
	case "get": // URL [HOST]
		r, err := http.NewRequest(http.MethodGet, args[1], nil)
		if err != nil {
			return say(err)
		}
		if len(args) > 2 {
			r.Host = args[2]
		}
		client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		answer, err := client.Do(r)
		if err != nil {
			return say(err)
		}
		body, err := io.ReadAll(answer.Body)
		fmt.Println(answer.StatusCode, string(body))
		return say(err)
	}
	return say(fmt.Errorf("unknown program %q", args))
}
