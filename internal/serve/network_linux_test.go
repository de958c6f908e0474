package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api/observe"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Addresses of the test's internet. The servers are in the network namespace of the test; no packet leaves it.
const public, other = "93.184.216.34", "93.184.216.35"

const namespaceVariable = "SANDBOX_RUN_TEST_SERVE_NETWORK"

// inInternet runs the calling test again in a network namespace of its own, with HTTP servers at public and other. It returns true in
// that process.
func inInternet(t *testing.T) bool {
	t.Helper()
	testenv.NeedRoot(t)
	if os.Getenv(namespaceVariable) == "" {
		cmd := exec.Command("/proc/self/exe", append(slices.Clone(os.Args[1:]), "-test.run=^"+t.Name()+"$", "-test.v")...)
		cmd.Args[0] = os.Args[0]
		cmd.Env = append(os.Environ(), namespaceVariable+"=1", "PATH="+networkDir(t)+":"+os.Getenv("PATH"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if text := string(out); err != nil || !strings.Contains(text, "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, text)
		}
		return false
	}
	must(t, initproc.RaiseLoopback())
	must(t, netdev.AddLoopback(netip.MustParseAddr(public).AsSlice(), netip.MustParseAddr(other).AsSlice()))
	for _, at := range []string{public, other} {
		l, err := net.Listen("tcp", at+":80")
		must(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "this is "+at) })} //nolint:gosec // a test
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return true
}

// networkDir returns a directory with sandbox-net. It is static, so that this executable does not contain it.
func networkDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "github.com/sandbox-run/sandbox-run/cmd/"+network.ProcessName)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// visit is a program that visits both servers.
const visit = `import http.client
for host in ("` + public + `", "` + other + `"):
    try:
        c = http.client.HTTPConnection(host, timeout=60)
        c.request("GET", "/")
        print(c.getresponse().read().decode())
    except OSError as e:
        print(host, "failed")
`

const visitJS = `for (const host of ["` + public + `", "` + other + `"])
    await fetch("http://" + host).then(r => r.text()).then(console.log, () => console.log(host, "failed"))
`

const (
	first  = "this is " + public + "\n" + other + " failed\n"
	second = public + " failed\nthis is " + other + "\n"
	none   = public + " failed\n" + other + " failed\n"
	both   = "this is " + public + "\nthis is " + other + "\n"
)

func runBody(t *testing.T, fields map[string]any) string {
	t.Helper()
	b, err := json.Marshal(fields)
	must(t, err)
	return string(b)
}

// TestNetworkOfRequests: programs reach what their own request allows and the operator admits, whether warm or cold, and whichever
// policies were asked for before; the result, the receipt and the audit log say what was reached and refused.
func TestNetworkOfRequests(t *testing.T) {
	if !inInternet(t) {
		return
	}
	s := startObserved(t, func(s *operator.Settings) {
		s.Network = network.Policy{Allow: []string{"93.184.216.0/24:80"}, Registries: []string{"npm"}}
		s.Registries, s.Warm = []string{"npm=" + other + ":80"}, []string{"python"}
	})
	policies := []struct {
		network any
		want    string
	}{
		{map[string]any{"allow": []string{public}}, first}, {map[string]any{"allow": []string{other}}, second},
		{"none", none}, {nil, none}, {"localhost", none}, {map[string]any{"registries": []string{"npm"}}, second},
		{map[string]any{"allow": []string{"93.184.216.0/24"}, "deny": []string{other}}, first},
		{map[string]any{"allow": []string{public, other}}, both},
	}
	languages := map[string]string{"python": visit}
	if _, err := exec.LookPath("node"); err == nil {
		languages["javascript"] = visitJS
	}
	for range 4 { // the third of a kind may be served by a sandbox that was prepared
		for language, code := range languages {
			for _, p := range policies {
				name := map[string]string{"python": "visit.py", "javascript": "visit.mjs"}[language]
				status, _, answer := s.ask(http.MethodPost, wire.PathRun,
					runBody(t, map[string]any{"language": language, "name": name, "code": code, "network": p.network}))
				r, err := wire.DecodeResult([]byte(answer))
				if status != http.StatusOK || err != nil {
					t.Fatalf("%v: %d %s", p.network, status, answer)
				}
				if got := string(r.Stdout.Head); got != p.want {
					t.Errorf("%s, %v: %q, want %q", language, p.network, got, p.want)
				}
				var reached, refused []string
				for _, d := range r.Metrics.Network {
					reached = append(reached, d.Host)
				}
				for _, v := range r.Violations {
					if v.Name != "" {
						refused = append(refused, v.Name)
					}
				}
				want := []string{}
				for _, host := range []string{public, other} {
					if strings.Contains(p.want, "this is "+host) {
						want = append(want, host)
					}
				}
				if !slices.Equal(reached, want) || len(want) == 1 && len(refused) != 1 || len(want) == 1 && slices.Contains(want, refused[0]) {
					t.Errorf("%s, %v: reached %q, refused %q", language, p.network, reached, refused)
				}
			}
		}
	}
	for field, fields := range map[string]map[string]any{
		"network":         {"network": map[string]any{"allow": []string{"10.1.2.3"}}},
		"compile_network": {"compile_network": "full"},
	} {
		fields["language"], fields["code"] = "python", "1"
		status, _, answer := s.ask(http.MethodPost, wire.PathRun, runBody(t, fields))
		if status != http.StatusForbidden || !strings.Contains(answer, `"field":"`+field+`"`) || !strings.Contains(answer, "93.184.216.0/24:80") {
			t.Errorf("%d %s", status, answer)
		}
	}
	if status, _, answer := s.ask(http.MethodPost, wire.PathRun, `{"language":"python","code":"1","network":{"publish":["80"]}}`); status != 403 {
		t.Errorf("%d %s", status, answer)
	}

	status, head, result := s.ask(http.MethodPost, wire.PathRun, runBody(t, map[string]any{
		"language": "python", "code": visit, "network": map[string]any{"allow": []string{public}}, "receipt": true,
	}))
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, result)
	}
	_, _, document := s.ask(http.MethodGet, observe.PathReceiptKey, "")
	s.stop()
	key, err := receipt.ParsePublicKey([]byte(document))
	must(t, err)
	envelope, _, err := receipt.Extract([]byte(head.Get(wire.HeaderReceipt)))
	must(t, err)
	st, err := receipt.Verify(envelope, key)
	must(t, err)
	must(t, st.Matches([]byte(result)))
	if n := st.Network; n == nil || !slices.Equal(n.Destinations, []string{public + ":80/tcp"}) || len(n.Refused) != 1 ||
		!strings.Contains(n.Refused[0], other) {
		t.Errorf("the receipt: %+v", n)
	}
	log, err := audit.Open(filepath.Join(s.dir, "audit.jsonl"), audit.Options{})
	must(t, err)
	var last audit.Entry
	for e, err := range log.Query(audit.Filter{}) {
		must(t, err)
		if e.Kind == audit.KindRun {
			last = e
		}
	}
	if last.Policy.Network.String() != "allow "+public || len(last.Refused) != 1 || !strings.Contains(last.Refused[0], other) ||
		len(last.Metrics.Network) != 1 || last.Metrics.Network[0].Host != public {
		t.Errorf("the audit log: %s", last.Line())
	}
}

// TestPublishedPort: a program's port is on the loopback of the server's machine while the run lives, where the operator allows it.
func TestPublishedPort(t *testing.T) {
	if !inInternet(t) {
		return
	}
	s := startObserved(t, func(s *operator.Settings) { s.Network.Mode, s.Publish = network.Learn, true })
	const serve = `import socket
s = socket.create_server(("0.0.0.0", 8000))
print("listening", flush=True)
s.accept()[0].sendall(b"hello from inside")
`
	for range 3 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+wire.PathRun, strings.NewReader(
			runBody(t, map[string]any{"language": "python", "code": serve, "network": map[string]any{"publish": []string{"8000"}}})))
		must(t, err)
		r.Header.Set("Content-Type", wire.TypeJSON)
		r.Header.Set("Accept", wire.TypeNDJSON)
		r.Header.Set("Authorization", "Bearer "+s.token)
		answer, err := s.client.Do(r)
		must(t, err)
		var port uint16
		heard := ""
		for d := json.NewDecoder(answer.Body); ; {
			var ev struct {
				Kind      string          `json:"kind"`
				Published []network.Port  `json:"published"`
				Result    json.RawMessage `json:"result"`
			}
			if err := d.Decode(&ev); err != nil {
				break
			}
			switch sandbox.EventKind(ev.Kind) {
			case sandbox.EventPublished:
				port = ev.Published[0].Host
			case sandbox.EventStdout:
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
				must(t, err)
				b, err := io.ReadAll(c)
				must(t, err)
				_ = c.Close()
				heard = string(b)
			}
		}
		_ = answer.Body.Close()
		if heard != "hello from inside" {
			t.Errorf("port %d: %q", port, heard)
		}
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = c.Close()
			t.Errorf("port %d is open after the run", port)
		}
	}
	// What learning finds out is in the answer.
	status, _, answer := s.ask(http.MethodPost, wire.PathRun, `{"language":"python","code":"1","network":"learn"}`)
	if status != http.StatusOK || !strings.Contains(answer, `"needed_network":"allow"`) {
		t.Errorf("%d %s", status, answer)
	}
}
