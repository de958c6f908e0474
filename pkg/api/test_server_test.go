package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// testTimeout is generous, because other tests run at the same time.
const testTimeout = 60 * time.Second

// testServer is a server over the real executor and manager, on a unix socket; only the backend is fake, and runs act.
type testServer struct {
	*Server
	t      testing.TB
	fake   *conformance.Fake
	engine *executor.Executor
	client *http.Client
	token  string
}

// fakeExecutor is an executor with one language, act, over a fake backend.
func fakeExecutor(t testing.TB) (*executor.Executor, *conformance.Fake) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "languages.yaml")
	if err := os.WriteFile(file, []byte("languages:\n  - name: act\n    extensions: [.act]\n    run: [sh, '{file}']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	languages, err := executor.LoadLanguages(file)
	if err != nil {
		t.Fatal(err)
	}
	scripts := map[string]conformance.Script{}
	for _, sh := range []string{"sh", "/bin/sh", "/usr/bin/sh", "/bin/dash", "/usr/bin/dash"} {
		scripts[sh] = act
	}
	fake := conformance.NewFake(scripts)
	manager := sandbox.NewManager(fake, sandbox.Options{})
	t.Cleanup(func() {
		if n := fake.Alive(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		if err := manager.Close(); err != nil {
			t.Error(err)
		}
	})
	return executor.New(manager, executor.Options{Languages: languages, WarmDir: t.TempDir()}), fake
}

// newTestServer serves until the test ends.
func newTestServer(t testing.TB, change ...func(*Options)) *testServer {
	t.Helper()
	engine, fake := fakeExecutor(t)
	w := &testServer{t: t, fake: fake, engine: engine}
	w.open(change...)
	return w
}

func (w *testServer) open(change ...func(*Options)) {
	t := w.t
	t.Helper()
	o := Options{Executor: w.engine, Log: slog.New(slog.NewTextHandler(testLog{t}, nil)), Version: "test"}
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Server = s
	w.client = serveOn(t, s)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// serveOn serves on a unix socket, and returns a client for it.
func serveOn(t testing.TB, s *Server) *http.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: s.Handler(), ReadHeaderTimeout: testTimeout}}
	server.Start()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Close()
		server.Close()
		_ = os.RemoveAll(dir)
	})
	return &http.Client{Transport: transport, Timeout: 5 * testTimeout}
}

// testLog writes the server's log to the test's log.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	if _, ok := l.t.(*testing.T); ok {
		l.t.Logf("%s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

// request sends a request and returns the answer with its body unread.
func (w *testServer) request(method, path, body string, headers ...string) *http.Response {
	w.t.Helper()
	return w.requestContext(w.t.Context(), method, path, strings.NewReader(body), headers...)
}

func (w *testServer) requestContext(ctx context.Context, method, path string, body io.Reader, headers ...string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://server"+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", wire.TypeJSON)
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// ask sends a request and reads the whole answer, which must have that status.
func (w *testServer) ask(status int, method, path, body string, headers ...string) []byte {
	w.t.Helper()
	answer := w.request(method, path, body, headers...)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if answer.StatusCode != status {
		w.t.Fatalf("%s %s: %d instead of %d: %s", method, path, answer.StatusCode, status, b)
	}
	if status >= 400 && answer.Header.Get("Content-Type") != wire.TypeProblem && path[:min(len(path), 10)] != "/v1/health" {
		w.t.Errorf("%s %s: a %d of type %s", method, path, status, answer.Header.Get("Content-Type"))
	}
	return b
}

// problem is ask for a problem document.
func (w *testServer) problem(status int, method, path, body string, headers ...string) wire.Problem {
	w.t.Helper()
	var p wire.Problem
	decode(w.t, w.ask(status, method, path, body, headers...), &p)
	if p.Status != status || p.Code == "" || p.Type != wire.ProblemBase+p.Code || p.Title == "" {
		w.t.Errorf("%s %s: an odd problem: %+v", method, path, p)
	}
	return p
}

// start submits a run and returns its id.
func (w *testServer) start(code string, fields ...string) string {
	w.t.Helper()
	var info wire.RunInfo
	decode(w.t, w.ask(http.StatusAccepted, "POST", wire.PathRuns, body(code, fields...)), &info)
	return info.ID
}

func (w *testServer) info(id string) wire.RunInfo {
	w.t.Helper()
	var info wire.RunInfo
	decode(w.t, w.ask(http.StatusOK, "GET", wire.PathRuns+"/"+id, ""), &info)
	return info
}

// waitForEnd waits until a run is over.
func (w *testServer) waitForEnd(id string) wire.RunInfo {
	w.t.Helper()
	var info wire.RunInfo
	eventually(w.t, "the run is over", func() bool { info = w.info(id); return info.State.Over() })
	return info
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

func decode(t testing.TB, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}

// body is a run of act code, with further fields as JSON.
func body(code string, fields ...string) string {
	return fmt.Sprintf(`{"language":"act","code":%s%s}`, quote(code), strings.Join(append([]string{""}, fields...), ","))
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// lines reads a stream of events line by line.
func lines(t testing.TB, r io.Reader) [][]byte {
	t.Helper()
	var all [][]byte
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			all = append(all, line)
		}
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// act interprets a program, one command per line:
//
//	out TEXT, err TEXT   print a line        hex BYTES     print bytes         flood N   print N bytes
//	cat                  stdin to stdout     sleep MS      wait                until it is killed
//	until FILE           of this machine's is there
//	trap                 print signals until SIGTERM       size                print sizes of the terminal until end of input
//	save PATH TEXT       make a file         exit N        panic               of the backend
func act(p *conformance.FakeProcess) sandbox.Exit {
	code, _ := p.Files.Load(p.Args[len(p.Args)-1])
	text, _ := code.(string)
	for line := range strings.SplitSeq(text, "\n") {
		command, rest, _ := strings.Cut(line, " ")
		switch command {
		case "out":
			fmt.Fprintln(p.Stdout, rest)
		case "err":
			fmt.Fprintln(p.Stderr, rest)
		case "hex":
			b, _ := hex.DecodeString(rest)
			_, _ = p.Stdout.Write(b)
		case "flood":
			flood(p.Stdout, rest)
		case "cat":
			_, _ = io.Copy(p.Stdout, p.Stdin)
		case "sleep":
			ms, _ := strconv.Atoi(rest)
			select {
			case <-time.After(time.Duration(ms) * time.Millisecond):
			case <-p.Killed:
				return sandbox.Exit{Signal: 9}
			}
		case "until":
			for there := false; !there; {
				select {
				case <-time.After(time.Millisecond):
					_, err := os.Stat(rest)
					there = err == nil
				case <-p.Killed:
					return sandbox.Exit{Signal: 9}
				}
			}
		case "wait":
			<-p.Killed
			return sandbox.Exit{Signal: 9}
		case "trap":
			signals := p.Trap()
			fmt.Fprintln(p.Stdout, "ready")
			for {
				select {
				case s := <-signals:
					fmt.Fprintln(p.Stdout, int(s))
					if s == 15 {
						return sandbox.Exit{}
					}
				case <-p.Killed:
					return sandbox.Exit{Signal: 9}
				}
			}
		case "size":
			s := <-p.Size
			fmt.Fprintf(p.Stdout, "%d×%d\n", s.Rows, s.Cols)
		case "save":
			name, content, _ := strings.Cut(rest, " ")
			p.Files.Store(name, content)
		case "exit":
			n, _ := strconv.Atoi(rest)
			return sandbox.Exit{Code: n}
		}
	}
	return sandbox.Exit{}
}

func flood(to io.Writer, size string) {
	n, _ := strconv.Atoi(size)
	block := bytes.Repeat([]byte("0123456789abcde\n"), 1024)
	for n > 0 {
		m, err := to.Write(block[:min(n, len(block))])
		if err != nil {
			return
		}
		n -= m
	}
}
