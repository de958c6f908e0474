package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// serveTime is long enough for a server on a busy machine.
const serveTime = 2 * time.Minute

// serverProcess is a server in its own process.
type serverProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	at   []string // its addresses
	mu   sync.Mutex
	logs bytes.Buffer
	over chan struct{} // closed when it has ended
	err  error
}

// newServerDir makes a directory for the state and the keys of a server, and returns the flags that name it.
func newServerDir(t *testing.T) (dir string, args []string) {
	t.Helper()
	dir = t.TempDir()
	return dir, []string{"--dir", filepath.Join(dir, "state"), "--keys", filepath.Join(dir, "keys", "keys.json"), "--audit-log", "off"}
}

func startServer(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	// The server would inherit ignored signals from the test process, which may run under nohup.
	args = append([]string{"--default-signal=HUP,INT,QUIT,TERM", binary(t), "serve"}, args...)
	return startCommand(t, exec.Command("/usr/bin/env", args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *serverProcess {
	t.Helper()
	s := &serverProcess{t: t, cmd: cmd, over: make(chan struct{})}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		defer close(s.over)
		line := regexp.MustCompile(`^sandbox-run: serving on (.*) \(pid `)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			s.mu.Lock()
			s.logs.WriteString(in.Text() + "\n")
			s.mu.Unlock()
			if m := line.FindStringSubmatch(in.Text()); m != nil {
				ready <- m[1]
			}
		}
		s.err = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.over
	})
	select {
	case at := <-ready:
		s.at = strings.Split(at, ", ")
	case <-s.over:
		t.Fatalf("it ended: %v\n%s", s.err, s.log())
	case <-time.After(serveTime):
		t.Fatalf("it is not ready:\n%s", s.log())
	}
	return s
}

func (s *serverProcess) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs.String()
}

// wait waits for the end of the server, and returns its exit code.
func (s *serverProcess) wait() int {
	s.t.Helper()
	select {
	case <-s.over:
	case <-time.After(serveTime):
		s.t.Fatalf("it does not end:\n%s", s.log())
	}
	return exitCode(s.t, s.err)
}

func (s *serverProcess) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// waitForLog waits until the log contains the text.
func (s *serverProcess) waitForLog(text string) {
	s.t.Helper()
	for end := time.Now().Add(serveTime); !strings.Contains(s.log(), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("it never says %q:\n%s", text, s.log())
		}
	}
}

type reply struct {
	code   int
	header http.Header
	body   string
}

func (r reply) field(t *testing.T, name string) string {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatalf("%v: %q", err, r.body)
	}
	text, _ := doc[name].(string)
	return text
}

// request makes a request to the n-th address. headers are names and values; "TLS" alone uses https.
func (s *serverProcess) request(n int, method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := s.tryRequest(n, method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", method, path, err, s.log())
	}
	return r
}

func (s *serverProcess) tryRequest(n int, method, path, body string, headers ...string) (reply, error) {
	scheme, at := "http", s.at[n]
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	if socket, ok := strings.CutPrefix(at, "unix://"); ok {
		at = "unix"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	} else if i := slices.Index(headers, "TLS"); i >= 0 {
		scheme, headers = "https", slices.Delete(slices.Clone(headers), i, i+1)
	}
	at = strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1").Replace(at)
	ctx, cancel := context.WithTimeout(context.Background(), serveTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+at+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	answer, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return reply{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, answer.Header, string(text)}, err
}

const hello = `{"language":"shell","code":"echo hello"}`

// checkRun checks that the server runs a program.
func (s *serverProcess) checkRun(n int, headers ...string) {
	s.t.Helper()
	if r := s.request(n, "POST", "/v1/run", hello, headers...); r.code != 200 || r.field(s.t, "stdout") != "hello\n" {
		s.t.Errorf("%d %s", r.code, r.body)
	}
}

// newKey makes a key in the server's key file, and returns its token.
func newKey(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := command(t, append([]string{"key", "create", "--keys", filepath.Join(dir, "keys", "keys.json")}, args...)...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// The unix socket needs no key; loopback needs one as soon as a key exists. A2: the response to every invalid key is the same, and runs of
// other keys do not exist for a key.
func TestServeKeys(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	socket := filepath.Join(dir, "run", "s.sock")
	s := startServer(t, append(args, "--listen", "unix://"+socket, "--listen", "127.0.0.1:0")...)
	if info, err := os.Lstat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
	s.checkRun(0)
	s.checkRun(1) // without keys, with a warning
	if !strings.Contains(s.log(), "every user of this machine") {
		t.Errorf("there is no warning:\n%s", s.log())
	}
	a := newKey(t, dir, "--name", "a")
	b := newKey(t, dir, "--name", "b", "--limits", "memory=64m")
	reader := newKey(t, dir, "--name", "reader", "--scopes", "read")
	s.checkRun(0)
	s.checkRun(1, bearer(a)...)
	s.checkRun(1, "X-API-Key", a)
	s.checkRun(0, bearer(b)...)

	plain := func(r reply) string {
		return regexp.MustCompile(`"instance":"[^"]*",?`).ReplaceAllString(r.body, "")
	}
	want := s.request(1, "POST", "/v1/run", hello)
	if want.code != 401 {
		t.Fatalf("no key: %d %s", want.code, want.body)
	}
	wrong := a[:len(a)-20] + strings.Repeat("a", 20)
	for name, headers := range map[string][]string{
		"wrong": bearer(wrong), "cut": bearer(a[:20]), "longer": bearer(a + "a"), "oversized": bearer(strings.Repeat("a", 30_000)),
		"scheme": {"Authorization", "Basic " + a},
		"prefix": bearer("sbx_"), "other header": {"X-API-Key", wrong},
	} {
		if r := s.request(1, "POST", "/v1/run", hello, headers...); r.code != 401 || plain(r) != plain(want) {
			t.Errorf("%s: %d %s", name, r.code, r.body)
		}
	}
	if r := s.request(0, "POST", "/v1/run", hello, bearer(wrong)...); r.code != 401 { // even where no key is needed
		t.Errorf("%d %s", r.code, r.body)
	}
	if r, err := s.tryRequest(1, "POST", "/v1/run", hello, bearer(strings.Repeat("a", 100_000))...); err == nil && r.code != 431 {
		t.Errorf("a header that is too large: %d", r.code)
	}
	if r := s.request(1, "POST", "/v1/run", hello, bearer(reader)...); r.code != 403 {
		t.Errorf("scope: %d %s", r.code, r.body)
	}
	if r := s.request(1, "GET", "/v1/languages", "", bearer(reader)...); r.code != 200 {
		t.Errorf("scope: %d %s", r.code, r.body)
	}
	// A key has its own ceilings.
	big := `{"language":"shell","code":"echo hello","memory":"128m"}`
	if r := s.request(1, "POST", "/v1/run", big, bearer(b)...); r.code != 403 || !strings.Contains(r.body, "64 MiB") {
		t.Errorf("%d %s", r.code, r.body)
	}
	if r := s.request(1, "POST", "/v1/run", big, bearer(a)...); r.code != 200 {
		t.Errorf("%d %s", r.code, r.body)
	}
	// Runs belong to their key.
	run := s.request(1, "POST", "/v1/runs", hello, bearer(a)...)
	id := run.field(t, "id")
	if run.code != 202 || id == "" {
		t.Fatalf("%d %s", run.code, run.body)
	}
	if r := s.request(1, "GET", "/v1/runs/"+id, "", bearer(a)...); r.code != 200 {
		t.Errorf("the positive control: %d %s", r.code, r.body)
	}
	unknown := s.request(1, "GET", "/v1/runs/"+strings.Repeat("x", len(id)), "", bearer(b)...)
	for _, path := range []string{"", "/events", "/ws", "/files/x"} {
		for _, method := range []string{"GET", "DELETE"} {
			if method == "DELETE" && path != "" {
				continue
			}
			if r := s.request(1, method, "/v1/runs/"+id+path, "", bearer(b)...); r.code != 404 {
				t.Errorf("%s %s of another's: %d %s", method, path, r.code, r.body)
			}
		}
	}
	other := s.request(1, "GET", "/v1/runs/"+id, "", bearer(b)...)
	if strings.ReplaceAll(plain(other), id, "ID") != strings.ReplaceAll(plain(unknown), strings.Repeat("x", len(id)), "ID") {
		t.Errorf("another's can be told from one that is not:\n%s\n%s", other.body, unknown.body)
	}
	// A removed key, and the old secret of a rotated key, are refused at once.
	keys := filepath.Join(dir, "keys", "keys.json")
	if out, err := command(t, "key", "rm", "--keys", keys, "b").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r := s.request(1, "POST", "/v1/run", hello, bearer(b)...); r.code != 401 {
		t.Errorf("removed: %d", r.code)
	}
	rotated, err := command(t, "key", "rotate", "--keys", keys, "a").Output()
	if err != nil {
		t.Fatal(err)
	}
	if r := s.request(1, "GET", "/v1/runs/"+id, "", bearer(a)...); r.code != 401 {
		t.Errorf("rotated: %d", r.code)
	}
	if r := s.request(1, "GET", "/v1/runs/"+id, "", bearer(strings.TrimSpace(string(rotated)))...); r.code != 200 {
		t.Errorf("what belongs to it: %d %s", r.code, r.body)
	}
	// A1: the log contains no secret.
	for _, secret := range []string{a, b, reader, strings.TrimSpace(string(rotated))} {
		if strings.Contains(s.log(), secret[20:40]) {
			t.Errorf("a secret is in the log:\n%s", s.log())
		}
	}
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.log())
	}
	if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if out, err := command(t, "key", "show", "--json", "--keys", keys, "a").Output(); err != nil || !strings.Contains(string(out), `"used"`) {
		t.Errorf("its use was not written down: %s, %v", out, err)
	}
}

// A3: requests of foreign web pages, and DNS rebinding, are refused.
func TestServeBrowsers(t *testing.T) {
	needRoot(t)
	_, args := newServerDir(t)
	s := startServer(t, append(args, "--listen", "127.0.0.1:0", "--host", "run.example.com", "--allow-origin", "https://app.example.com")...)
	s.checkRun(0)
	s.checkRun(0, "Host", "run.example.com:8080")
	s.checkRun(0, "Origin", "https://app.example.com", "Sec-Fetch-Site", "cross-site")
	s.checkRun(0, "Origin", "http://"+s.at[0], "Sec-Fetch-Site", "same-origin") // as the page at / does
	if r := s.request(0, "GET", "/", "", "Sec-Fetch-Site", "none"); r.code != 200 || !strings.Contains(r.body, "<title>sandbox-run</title>") {
		t.Errorf("%d %s", r.code, r.body)
	}
	for _, headers := range [][]string{
		{"Host", "attacker.example"}, {"Host", "127.0.0.1.attacker.example"}, {"Origin", "https://attacker.example"}, {"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		// With DNS rebinding the headers are consistent.
		{"Host", "attacker.example", "Origin", "http://attacker.example", "Sec-Fetch-Site", "same-origin"},
	} {
		if r := s.request(0, "GET", "/", "", headers...); r.code != 403 {
			t.Errorf("%q: %d %s", headers, r.code, r.body)
		}
		for _, path := range []string{"/v1/run", "/v1/health", "/docs", "/openapi.json", "/"} {
			r := s.request(0, "POST", path, hello, headers...)
			hint := strings.Contains(r.body, "try") || strings.Contains(r.body, "hint")
			if r.code != 403 || r.header.Get("Access-Control-Allow-Origin") != "" || !hint {
				t.Errorf("%q %s: %d %s", headers, path, r.code, r.body)
			}
		}
	}
}

// An address that other machines can reach needs keys, and TLS or --insecure-http.
func TestServeExposed(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	openssl := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
		"-subj", "/CN=localhost", "-keyout", key, "-out", cert)
	if out, err := openssl.CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
	refused := func(says string, more ...string) {
		t.Helper()
		for _, check := range [][]string{{"--check"}, nil} {
			out, err := command(t, slices.Concat([]string{"serve"}, args, more, check)...).CombinedOutput()
			if code := exitCode(t, err); code != codeRefused || !strings.Contains(string(out), says) {
				t.Errorf("%q: %d %s", more, code, out)
			}
		}
	}
	refused("sandbox-run key create --name NAME --keys "+dir, "--listen", "0.0.0.0:0")
	refused("sandbox-run key create", "--listen", "[::]:0", "--tls-cert", cert, "--tls-key", key)
	refused("sandbox-run key create", "--listen", "127.0.0.1:0", "--listen", ":0", "--insecure-http")
	token := newKey(t, dir, "--name", "a")
	refused("--tls-cert FILE", "--listen", "0.0.0.0:0")
	s := startServer(t, append(args, "--listen", "0.0.0.0:0", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)...)
	for n := range 2 {
		s.checkRun(n, append(bearer(token), "TLS")...)
		if r := s.request(n, "POST", "/v1/run", hello, "TLS"); r.code != 401 {
			t.Errorf("%d", r.code)
		}
	}
	if r, err := s.tryRequest(0, "POST", "/v1/run", hello, bearer(token)...); err == nil && r.code == 200 {
		t.Errorf("plain HTTP: %d %s", r.code, r.body)
	}
	s.signal(syscall.SIGINT)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.log())
	}
	plain := startServer(t, append(args, "--listen", "0.0.0.0:0", "--insecure-http")...)
	plain.checkRun(0, bearer(token)...)
	if r := plain.request(0, "POST", "/v1/run", hello); r.code != 401 {
		t.Errorf("%d", r.code)
	}
}

// A9: requests can use resources of the server only if the operator allows them.
func TestServeAllowances(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	shown := filepath.Join(dir, "shown")
	if err := os.Mkdir(shown, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Dir(dir)} { // the program must be able to read it
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(shown, "f"), []byte("shown\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	program := func(code, more string) string {
		text, _ := json.Marshal(code)
		return fmt.Sprintf(`{"language":"shell","code":%s,%s}`, text, more)
	}
	tests := []struct{ name, body, says, field string }{
		{"volume", program("cat /mnt/f", fmt.Sprintf(`"volumes":["%s:/mnt"]`, shown)), "shown\n", "volumes"},
		{"workspace", program("echo w", `"workspace":"serve-test"`), "w\n", "workspace"},
		{"backend", program("echo b", `"backend":"oci"`), "b\n", "backend"},
		{"tier", program("echo t", `"require":"namespace"`), "t\n", "require"},
		{"environment", program("echo $SECRET_OF_THE_SERVER", `"pass_env":["SECRET_OF_THE_SERVER"]`), "s3cret\n", "pass_env"},
	}
	strict := startServer(t, append(args, "--listen", "unix://"+filepath.Join(dir, "a", "s"))...)
	for _, test := range tests {
		if r := strict.request(0, "POST", "/v1/run", test.body); r.code != 403 || !strings.Contains(r.body, `"field":"`+test.field+`"`) {
			t.Errorf("%s: %d %s", test.name, r.code, r.body)
		}
	}
	for _, more := range []string{`"require":"process"`, `"runtime":"runc"`, `"writable_root":true`} {
		if r := strict.request(0, "POST", "/v1/run", program("true", more)); r.code != 403 {
			t.Errorf("%s: %d %s", more, r.code, r.body)
		}
	}
	// A1: programs can not find the server's variables.
	r := strict.request(0, "POST", "/v1/run", program("env; cat /proc/*/environ", `"labels":{}`))
	if strings.Contains(r.body, "SECRET") || r.code != 200 {
		t.Errorf("%d %s", r.code, r.body)
	}
	strict.signal(syscall.SIGTERM)
	strict.wait()
	given := append([]string{
		"--default-signal=TERM", "SECRET_OF_THE_SERVER=s3cret", "XDG_DATA_HOME=" + filepath.Join(dir, "data"), binary(t), "serve",
		"--listen", "unix://" + filepath.Join(dir, "b", "s"), "--allow-volume", shown, "--allow-workspaces", "--allow-backend", "oci",
		"--allow-writable-root", "--allow-env", "SECRET_OF_THE_SERVER", "--require", "namespace",
	}, args...)
	open := startCommand(t, exec.Command("/usr/bin/env", given...))
	for _, test := range tests {
		if r := open.request(0, "POST", "/v1/run", test.body); r.code != 200 || r.field(t, "stdout") != test.says {
			t.Errorf("%s: %d %s", test.name, r.code, r.body)
		}
	}
	for name, body := range map[string]string{
		"writable":  program("true", fmt.Sprintf(`"volumes":["%s:/mnt:rw"]`, shown)),
		"elsewhere": program("true", `"volumes":["/etc:/mnt"]`),
		"dots":      program("true", fmt.Sprintf(`"volumes":["%s/../keys:/mnt"]`, shown)),
		"other":     program("true", `"backend":"process"`),
		"weaker":    program("true", `"require":"process"`),
		"variable":  program("true", `"pass_env":["PATH"]`),
	} {
		if r := open.request(0, "POST", "/v1/run", body); r.code < 400 || r.code >= 500 {
			t.Errorf("%s: %d %s", name, r.code, r.body)
		}
	}
	// F12: a writable root is allowed only on an image.
	r = open.request(0, "POST", "/v1/run", program("true", `"writable_root":true`))
	if r.code != 501 || !strings.Contains(r.body, "only an image's root") {
		t.Errorf("writable root of the host: %d %s", r.code, r.body)
	}
}
