package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	_ "github.com/sandbox-run/sandbox-run/pkg/network/stack" // the process of networks is this executable
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// connect is Python that says whether a connection to a server of the test internet works, and keeps it open.
const connect = `
import socket
kept = []
def connect(host, port=7):
    try:
        c = socket.create_connection((host, port), 30)
        c.sendall(b"hello")
        kept.append(c)
        return c.recv(5).decode()
    except OSError as e:
        return "refused"
def again():
    try:
        kept[-1].sendall(b"again")
        return kept[-1].recv(5).decode() or "ended"
    except OSError:
        return "ended"
`

func TestNetworkBetweenCells(t *testing.T) {
	testenv.NeedRoot(t)
	if !conformance.InInternet(t) {
		return
	}
	s := create(t, newManager(t, Options{}), in("python"))
	set := func(p network.Policy) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.SetNetwork(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	reaches := func(s tester, want map[string]string) {
		t.Helper()
		for host, answer := range want {
			s.shows("print(connect('"+host+"'))", answer)
		}
	}
	s.shows(connect, "")
	nothing := map[string]string{testnet.Public: "refused", testnet.Other: "refused", "good.example": "refused"}
	reaches(s, nothing)
	set(network.Policy{Allow: []string{testnet.Public + ":7"}})
	if iso := s.Info().Isolation; iso.Network == nil || !strings.Contains(fmt.Sprintf("%+v", *iso.Network), testnet.Public) {
		t.Errorf("isolation reports the network %+v", iso.Network)
	}
	reaches(s, map[string]string{testnet.Public: "hello", testnet.Other: "refused", "good.example": "refused"})
	s.shows("print(again(), len(kept))", "again 1")
	// Other rules: connections of the old ones end. A fork has them as well.
	f := s.fork(ForkOptions{})
	set(network.Policy{Allow: []string{"good.example:7"}})
	for _, s := range []tester{s, f} {
		s.shows("print(again())", "ended")
		reaches(s, map[string]string{testnet.Public: "refused", testnet.Other: "refused", "good.example": "hello"})
	}
	r := s.do("connect('" + testnet.Other + "')")
	if len(r.Violations) == 0 {
		t.Error("a refused connection is no violation of its cell")
	}
	set(network.Policy{Mode: network.None})
	reaches(s, nothing)
	reaches(f, nothing)
	// After a restart the session's own policy holds.
	if err := s.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.shows(connect, "")
	reaches(s, nothing)
	set(network.Policy{Mode: network.Full})
	reaches(s, map[string]string{testnet.Other: "hello", testnet.Private: "refused"})
	if err := s.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.shows(connect, "")
	reaches(s, map[string]string{testnet.Other: "hello", testnet.Private: "refused"})
	if err := s.SetNetwork(context.Background(), network.Policy{Allow: []string{"not a host"}}); err == nil {
		t.Error("a wrong rule was accepted")
	}
}

// A loopback is for sessions that are created with it.
func TestLoopbackBetweenCells(t *testing.T) {
	m := newManager(t, Options{})
	serve := "import socket\nl = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(l.getsockname(), 10)\nprint('connected')"
	s := create(t, m, in("python"))
	if r := s.do(serve); r.Verdict == sandbox.VerdictOK {
		t.Errorf("there is a loopback: %s", shown(r))
	}
	ctx := context.Background()
	if err := s.SetNetwork(ctx, sandbox.NetworkLocalhost); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	if err := s.SetNetwork(ctx, sandbox.NetworkNone); err != nil {
		t.Error(err)
	}
	req := in("python")
	req.Policy.Network = sandbox.NetworkLocalhost
	s = create(t, m, req)
	s.shows(serve, "connected")
	if err := s.SetNetwork(ctx, sandbox.NetworkLocalhost); err != nil {
		t.Error(err)
	}
	s.shows(serve, "connected")
}
