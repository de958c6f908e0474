package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/observe"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
)

// kept is a log that may be read while it is written.
type kept struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.Write(p)
}

func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}

// patience is generous: the machine may be busy with other tests.
const patience = 3 * time.Minute

// observedServer is a real server, with keys, in a directory of its own.
type observedServer struct {
	t      *testing.T
	dir    string
	log    kept
	client *http.Client
	token  string
	keyID  string
	stop   func()
}

func startObserved(t *testing.T, change ...func(*operator.Settings)) *observedServer {
	t.Helper()
	testenv.NeedRoot(t)
	s := &observedServer{t: t, dir: t.TempDir()}
	must(t, os.Chmod(s.dir, 0o700))
	socket := filepath.Join(s.dir, "s.sock")
	store, err := key.Open(filepath.Join(s.dir, "keys.json"))
	must(t, err)
	made, token, err := store.Create(t.Context(), key.New{Name: "tester", Scopes: key.Scopes()})
	must(t, err)
	s.token, s.keyID = token, made.ID
	settings := &operator.Settings{
		Listen: []string{"unix://" + socket}, Keys: store.Path(), RequireKeys: true, Backend: "native", Dir: filepath.Join(s.dir, "server"),
		AuditLog: filepath.Join(s.dir, "audit.jsonl"), DrainTimeout: patience, Env: []string{},
	}
	for _, f := range change {
		f(settings)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- Serve(ctx, Options{
			Settings: settings, Version: "test", Err: &s.log, Exit: func(int) {},
			Again: func() (*operator.Settings, error) { return settings, nil },
		})
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	s.client = &http.Client{Transport: transport, Timeout: patience}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			transport.CloseIdleConnections()
			cancel()
			select {
			case err := <-over:
				if err != nil {
					t.Errorf("the server: %v", err)
				}
			case <-time.After(patience):
				t.Error("the server does not end")
			}
		})
	}
	t.Cleanup(s.stop)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-over:
			over <- err
			t.Fatalf("the server ended: %v\n%s", err, s.log.String())
		default:
		}
		if strings.Contains(s.log.String(), `"msg":"serving"`) {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("the server does not begin:\n%s", s.log.String())
		}
	}
}

// ask sends a request and gives the answer.
func (s *observedServer) ask(method, path, body string, headers ...string) (int, http.Header, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	must(s.t, err)
	r.Header.Set("Content-Type", wire.TypeJSON)
	r.Header.Set("Authorization", "Bearer "+s.token)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.client.Do(r)
	must(s.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return answer.StatusCode, answer.Header, string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNothingSecretIsLogged (A1): no content of requests, keys or variables is in logs, metrics, the audit log, or errors of other clients.
func TestNothingSecretIsLogged(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "MARKER-server-variable")
	s := startObserved(t)
	run := map[string]any{
		"language": "python", "code": "import os, sys\n# MARKER-code\n" +
			"print(os.environ['V'], sys.stdin.read(), os.environ.get('SECRET_OF_THE_SERVER'), open('in.txt').read())\n",
		"stdin": "MARKER-stdin", "env": map[string]string{"V": "MARKER-variable"}, "args": []string{"MARKER-argument"},
		"labels": map[string]string{"l": "MARKER-label"},
		"in":     []any{map[string]string{"path": "in.txt", "content": "MARKER-input"}},
	}
	body := func(change map[string]any) string {
		all := map[string]any{}
		for k, v := range run {
			all[k] = v
		}
		for k, v := range change {
			all[k] = v
		}
		text, err := json.Marshal(all)
		must(t, err)
		return string(text)
	}
	// Control: the program got all markers except those of the server.
	status, head, answer := s.ask(http.MethodPost, wire.PathRun, body(nil))
	if status != http.StatusOK || !strings.Contains(answer, "MARKER-variable MARKER-stdin None MARKER-input") {
		t.Fatalf("%d %s", status, answer)
	}
	id := head.Get(wire.HeaderRunID)
	var told []string // answers to invalid requests
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
	}{
		{http.MethodPost, wire.PathRun, body(map[string]any{"code": "MARKER-code ("}), nil, 200},
		{http.MethodPost, wire.PathRun, body(map[string]any{"code": "raise ValueError('MARKER-code')"}), nil, 200},
		{http.MethodPost, wire.PathRun, body(map[string]any{"language": "MARKER-language"}), nil, 422},
		{http.MethodPost, wire.PathRun, body(map[string]any{"MARKER-field": 1}), nil, 422},
		{http.MethodPost, wire.PathRun, `{"code":"MARKER-code`, nil, 400},
		{http.MethodPost, wire.PathRun + "?token=MARKER-query", body(map[string]any{"memory": -1}), nil, 422},
		{http.MethodPost, wire.PathRun, body(nil), []string{"Authorization", "Bearer MARKER-token"}, 401},
		{http.MethodPost, wire.PathRun, body(nil), []string{"Authorization", "MARKER-token"}, 401},
		{http.MethodGet, "/MARKER-path/" + s.token, "", nil, 404},
		{http.MethodGet, wire.PathRuns + "/MARKER-path", "", nil, 404},
		{http.MethodPost, wire.PathRun, body(map[string]any{"pass_env": []string{"SECRET_OF_THE_SERVER"}}), nil, 403},
		{http.MethodPost, wire.PathRun, body(map[string]any{"image": "MARKER-image"}), nil, 0},
		{http.MethodPost, wire.PathRun, body(map[string]any{"files": []any{map[string]string{"path": "../MARKER-path", "content": "MARKER-code"}},
			"code": ""}), nil, 422},
	} {
		status, _, answer := s.ask(c.method, c.path, c.body, c.headers...)
		if c.status != 0 && status != c.status || c.status == 0 && status < 400 {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, status, answer)
		}
		if !strings.Contains(c.path, s.token) { // a problem quotes the requested path
			told = append(told, answer)
		}
	}
	status, _, metrics := s.ask(http.MethodGet, observe.PathMetrics, "")
	if status != http.StatusOK || !strings.Contains(metrics, `sandbox_run_runs_total{language="python",verdict="ok",way="run"} 1`) ||
		!strings.Contains(metrics, `sandbox_run_refusals_total{code="unauthorized"} 2`) {
		t.Errorf("%d\n%s", status, metrics)
	}
	s.stop()
	auditLog, err := os.ReadFile(filepath.Join(s.dir, "audit.jsonl"))
	must(t, err)
	log := s.log.String()
	for name, text := range map[string]string{"log": log, "metrics": metrics, "audit log": string(auditLog)} {
		if at := strings.Index(text, "MARKER"); at >= 0 && (name != "audit log" || !strings.HasPrefix(text[at:], "MARKER-argument")) {
			t.Errorf("in the %s: …%s…", name, text[max(0, at-200):min(len(text), at+60)])
		}
		if strings.Contains(text, s.token) {
			t.Errorf("the key is in the %s", name)
		}
	}
	// The audit log has the command line, and so its arguments, but no other marker.
	for _, kind := range []string{"code", "stdin", "variable", "input", "label", "token", "query", "language", "field", "server"} {
		if strings.Contains(string(auditLog), "MARKER-"+kind) {
			t.Errorf("MARKER-%s is in the audit log", kind)
		}
	}
	for _, answer := range told {
		if strings.Contains(answer, s.token) || strings.Contains(answer, "MARKER-server") || strings.Contains(answer, "MARKER-token") {
			t.Errorf("told: %s", answer)
		}
	}
	if !strings.Contains(log, `"msg":"run","run":"`+id+`","key":"`+s.keyID+`","way":"run","language":"python","verdict":"ok"`) {
		t.Errorf("no line of run %s:\n%s", id, log)
	}
}

// TestServerAudit: what a server does is in the chain, by key and door, and the receipt of a run names its entry.
func TestServerAudit(t *testing.T) {
	s := startObserved(t)
	const body = `{"language":"python","code":"print(input())","stdin":"hello\n","receipt":true}`
	status, head, result := s.ask(http.MethodPost, wire.PathRun, body)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, result)
	}
	status, _, keyDocument := s.ask(http.MethodGet, observe.PathReceiptKey, "", "Authorization", "")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, keyDocument)
	}
	if status, _, answer := s.ask(http.MethodPost, wire.PathRun, body, "Authorization", "Bearer wrong"); status != http.StatusUnauthorized {
		t.Errorf("%d %s", status, answer)
	}
	// Concurrent requests have one entry each.
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			status, _, answer := s.ask(http.MethodPost, wire.PathRun, fmt.Sprintf(`{"language":"shell","code":"exit %d"}`, i))
			if status != http.StatusOK {
				t.Errorf("%d %s", status, answer)
			}
		})
	}
	all.Wait()
	s.stop()

	log, err := audit.Open(filepath.Join(s.dir, "audit.jsonl"), audit.Options{})
	must(t, err)
	public, err := receipt.ParsePublicKey([]byte(keyDocument))
	must(t, err)
	envelope, _, err := receipt.Extract([]byte(head.Get(wire.HeaderReceipt)))
	must(t, err)
	st, err := receipt.Verify(envelope, public)
	must(t, err)
	must(t, errors.Join(st.Matches([]byte(result)), st.MatchesRequest([]byte(body)), st.MatchesLog(log)))
	if st.Run != head.Get(wire.HeaderRunID) || st.StdinSHA256 != audit.Digest([]byte("hello\n")) ||
		st.CodeSHA256 != audit.Digest([]byte("print(input())")) {
		t.Errorf("%+v", st)
	}
	if err := st.Matches([]byte(strings.Replace(result, "hello", "hallo", 1))); !errors.Is(err, receipt.ErrDiffers) {
		t.Error(err)
	}
	kinds := map[audit.Kind]int{}
	for e, err := range log.Query(audit.Filter{EntryPoint: audit.EntryAPI}) {
		must(t, err)
		kinds[e.Kind]++
		switch {
		case e.Kind == audit.KindRun && e.Who.Key != s.keyID:
			t.Errorf("%s", e.Line())
		case e.Kind == audit.KindRefused && (e.Reason != wire.CodeUnauthorized || e.Who.Key != ""):
			t.Errorf("%s", e.Line())
		}
	}
	if kinds[audit.KindServerStarted] != 1 || kinds[audit.KindServerStopped] != 1 || kinds[audit.KindRun] != 7 ||
		kinds[audit.KindRefused] != 1 {
		t.Errorf("%v", kinds)
	}
	if r, err := log.Verify(); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
}
