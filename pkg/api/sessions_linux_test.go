package api

import (
	"bufio"
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

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// newSessionServer serves sessions over real sandboxes.
func newSessionServer(t testing.TB, change ...func(*Options)) *testServer {
	t.Helper()
	return newRealServer(t, append([]func(*Options){func(o *Options) {
		o.Sessions = &SessionOptions{Executor: real.engine}
	}}, change...)...)
}

// testSession is a session of a test server.
type testSession struct {
	*testServer
	session.Info
}

func (w *testServer) session(language string, fields ...string) *testSession {
	w.t.Helper()
	own := &testSession{testServer: w}
	decode(w.t, w.ask(http.StatusCreated, "POST", wire.PathSessions, fmt.Sprintf(`{"language":%q%s}`, language,
		strings.Join(append([]string{""}, fields...), ","))), &own.Info)
	return own
}

func (s *testSession) path(rest string) string { return wire.PathSessions + "/" + s.ID + rest }

func cellBody(code string, fields ...string) string {
	return fmt.Sprintf(`{"code":%s%s}`, quote(code), strings.Join(append([]string{""}, fields...), ","))
}

// execute executes a cell and returns its whole result.
func (s *testSession) execute(code string, fields ...string) *session.Result {
	s.t.Helper()
	r, err := wire.DecodeCell(s.ask(http.StatusOK, "POST", s.path("/cells"), cellBody(code, fields...)))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestSession(t *testing.T) {
	w := newSessionServer(t)
	s := w.session("python", `"name":"mine"`, `"memory":"256MiB"`)
	if s.Language != "python" || s.State != session.StateIdle || s.Name != "mine" || s.Limits.Memory != 256*sandbox.MiB ||
		s.Isolation.Tier != sandbox.TierContainer {
		t.Errorf("%+v", s.Info)
	}
	s.execute("x = 40")
	r := s.execute("print('a'); x + 2")
	if r.Value() != "42" || string(r.Stdout.Bytes()) != "a\n" || r.Cell != 2 || r.Verdict != sandbox.VerdictOK {
		t.Errorf("%+v", r)
	}
	if r := s.execute("1/0"); r.Error == nil || r.Error.Name != "ZeroDivisionError" || r.Verdict != sandbox.VerdictNonzeroExit {
		t.Errorf("%+v", r)
	}
	// By its name, and in the list.
	var info session.Info
	decode(t, w.ask(200, "GET", wire.PathSessions+"/mine", ""), &info)
	var list wire.SessionList
	decode(t, w.ask(200, "GET", wire.PathSessions, ""), &list)
	if info.ID != s.ID || info.Cells != 3 || len(list.Sessions) != 1 || list.Sessions[0].ID != s.ID {
		t.Errorf("%+v %+v", info, list)
	}
	// A cell is kept like a run.
	var cell wire.RunInfo
	decode(t, w.ask(200, "GET", s.path("/cells/2"), ""), &cell)
	kept, err := wire.DecodeCell(cell.Result)
	if err != nil || cell.ID != s.ID+"/2" || cell.State != wire.StateDone || kept.Value() != "42" {
		t.Errorf("%v %+v", err, cell)
	}
	var h wire.History
	decode(t, w.ask(200, "GET", s.path("/history"), ""), &h)
	if len(h.Cells) != 3 || h.Cells[1].Code != "print('a'); x + 2" {
		t.Errorf("%+v", h)
	}
	for body, want := range map[string]string{
		"/check {\"code\":\"def f():\"}":          `"incomplete"`,
		"/complete {\"code\":\"prin\"}":           `"print`,
		"/inspect {\"code\":\"x\"}":               `"found":true`,
		"/complete {\"code\":\"x\",\"cursor\":0}": `"matches"`,
	} {
		path, body, _ := strings.Cut(body, " ")
		if b := w.ask(200, "POST", s.path(path), body); !strings.Contains(string(b), want) {
			t.Errorf("%s: %s", path, b)
		}
	}
	if b := w.ask(200, "GET", s.path("/variables"), ""); !strings.Contains(string(b), `"name":"x"`) {
		t.Errorf("%s", b)
	}
	w.ask(200, "POST", s.path("/restart"), "")
	if r := s.execute("x"); r.Error == nil || r.Error.Name != "NameError" {
		t.Errorf("%+v", r)
	}
	w.ask(204, "DELETE", s.path(""), "")
	w.ask(404, "GET", s.path(""), "")
	w.ask(404, "GET", s.path("/cells/2"), "")
	w.ask(404, "POST", s.path("/cells"), cellBody("1"))
}

// A session belongs to its key: unknown, foreign and ended sessions have the same answer, byte for byte.
func TestThreatA2Sessions(t *testing.T) {
	w := newSessionServer(t, func(o *Options) {
		o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}, "r": {ID: "a", Scopes: []string{ScopeRead}}}
	})
	w.token = "a"
	s := w.session("python", `"name":"mine"`)
	s.execute("x = 1")
	ended := w.session("python")
	w.ask(204, "DELETE", ended.path(""), "")
	requests := []struct{ method, path, body string }{
		{"GET", "", ""}, {"DELETE", "", ""}, {"POST", "/cells", cellBody("1")}, {"GET", "/cells/1", ""}, {"GET", "/cells/1/events", ""},
		{"GET", "/cells/ws", ""}, {"GET", "/cells/1/ws", ""}, {"GET", "/files", ""}, {"GET", "/files/x", ""}, {"PUT", "/files/x", "x"},
		{"POST", "/input", `{"line":"x"}`}, {"POST", "/interrupt", ""}, {"POST", "/restart", ""}, {"POST", "/reset", ""},
		{"POST", "/check", `{"code":"1"}`}, {"POST", "/complete", `{"code":"1"}`}, {"POST", "/inspect", `{"code":"x"}`}, {"GET", "/variables", ""},
		{"GET", "/history", ""}, {"POST", "/fork", "{}"}, {"POST", "/packages", `{"packages":["x"]}`},
		{"PUT", "/network", `{"network":"none"}`},
	}
	for _, r := range requests {
		answers := map[string]string{}
		for what, id := range map[string]string{"unknown": strings.Repeat("0", len(s.ID)), "foreign": s.ID, "ended": ended.ID} {
			w.token = "b"
			if what == "ended" {
				w.token = "a"
			}
			answer := string(w.ask(404, r.method, wire.PathSessions+"/"+id+r.path, r.body))
			answers[strings.ReplaceAll(answer, id, "ID")] = what
		}
		if len(answers) != 1 {
			t.Errorf("%s %s: %v", r.method, r.path, answers)
		}
	}
	w.token = "b"
	w.ask(404, "GET", wire.PathSessions+"/mine", "")
	var list wire.SessionList
	decode(t, w.ask(200, "GET", wire.PathSessions, ""), &list)
	if len(list.Sessions) != 0 {
		t.Errorf("b sees %+v", list)
	}
	// Control: the owner reaches it, and a key with the scope read only looks.
	w.token = "a"
	if r := s.execute("x"); r.Value() != "1" {
		t.Errorf("%+v", r)
	}
	w.token = "r"
	w.ask(200, "GET", s.path(""), "")
	w.ask(403, "POST", s.path("/cells"), cellBody("1"))
	w.ask(403, "GET", s.path("/variables"), "")
}

// The events of a cell can be read again from any number on; a cell that has begun goes on without its client.
func TestCellResume(t *testing.T) {
	w := newSessionServer(t)
	s := w.session("python")
	ctx, vanish := context.WithCancel(t.Context())
	answer := w.requestContext(ctx, "POST", s.path("/cells"), strings.NewReader(cellBody("import time\nfor i in range(40): print(i, flush=True); "+
		"time.sleep(0.05)\n'end'")), "Accept", wire.TypeSSE)
	if id := answer.Header.Get(wire.HeaderRunID); id != s.ID+"/1" {
		t.Fatalf("%q", id)
	}
	in := bufio.NewReader(answer.Body)
	last := ""
	for seen := 0; seen < 3; {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			last = strings.TrimSpace(id)
			seen++
		}
	}
	vanish()
	answer.Body.Close()
	rest := string(w.ask(200, "GET", s.path("/cells/1/events"), "", "Accept", wire.TypeSSE, "Last-Event-ID", last))
	all := string(w.ask(200, "GET", s.path("/cells/1/events"), "", "Accept", wire.TypeSSE))
	if strings.Contains(rest, "id: "+last+"\n") || !strings.HasSuffix(all, rest) || !strings.Contains(rest, `"value":"'end'"`) ||
		!strings.Contains(all, `"data":"0\n`) || !strings.Contains(rest, "39") {
		t.Errorf("after %s: %s\nof %s", last, rest, all)
	}
	// A client that waits for the whole answer, and disconnects, interrupts the cell: as for a run.
	ctx, vanish = context.WithCancel(t.Context())
	go func() {
		eventually(t, "it runs", func() bool {
			var info wire.RunInfo
			answer := w.request("GET", s.path("/cells/2"), "")
			defer answer.Body.Close()
			_ = json.NewDecoder(answer.Body).Decode(&info)
			return info.State == wire.StateRunning
		})
		vanish()
	}()
	r, err := http.NewRequestWithContext(ctx, "POST", "http://server"+s.path("/cells"), strings.NewReader(cellBody("import time\ntime.sleep(600)",
		`"timeout":"4m"`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", wire.TypeJSON)
	if answer, err := w.client.Do(r); err == nil {
		answer.Body.Close()
		t.Error("the request was answered")
	}
	eventually(t, "the cell is over", func() bool {
		var info wire.RunInfo
		decode(t, w.ask(200, "GET", s.path("/cells/2"), ""), &info)
		return info.State.Over()
	})
	if r := s.execute("1+1"); r.Value() != "2" {
		t.Errorf("%+v", r)
	}
}

// A cell asks for input over a WebSocket, and over POST.
func TestCellInput(t *testing.T) {
	w := newSessionServer(t)
	s := w.session("python")
	c := w.dialPath(s.path("/cells/ws"))
	const code = "a = input('first? ')\nb = input('second? ')\nprint(a + b)\ntry: input()\nexcept EOFError: print('end')"
	if err := c.Write(t.Context(), 1, []byte(cellBody(code, `"interactive":true`))); err != nil {
		t.Fatal(err)
	}
	ask := func() uint64 {
		t.Helper()
		seq := c.last.Seq
		c.readUntil(func() bool { return c.last.Kind == sandbox.EventInput && c.last.Seq > seq })
		return c.last.Seq
	}
	first := ask()
	if !strings.Contains(string(c.last.Content), "first? ") || c.ready.Run != s.ID+"/1" {
		t.Errorf("%s %+v", c.last.Content, c.ready)
	}
	c.sendMessage(wire.Message{Type: wire.MessageInput, Data: "one ", Seq: first})
	second := ask()
	p := w.problem(409, "POST", s.path("/input"), fmt.Sprintf(`{"line":"x","seq":%d}`, first)) // another question's
	if p.Code != wire.CodeConflict {
		t.Errorf("%+v", p)
	}
	w.problem(422, "POST", s.path("/input"), `{"line":"x\n"}`)
	w.problem(422, "POST", s.path("/input"), `{"line":"x","end":true}`)
	w.ask(204, "POST", s.path("/input"), fmt.Sprintf(`{"line":"two","seq":%d}`, second))
	ask()
	c.sendMessage(wire.Message{Type: wire.MessageInputEnd})
	c.readUntil(nil)
	if c.out != "one two\nend\n" {
		t.Errorf("%q %v", c.out, c.errs)
	}
	w.problem(409, "POST", s.path("/input"), `{"line":"x"}`)
	// Without interactive there is no input, and nothing waits.
	if r := s.execute("input()"); r.Error == nil || r.Error.Name != "EOFError" {
		t.Errorf("%+v", r)
	}
}

// A cell is interrupted, and the state survives; a session whose interpreter has ended is 410 with its cause until it is restarted.
func TestCellInterrupt(t *testing.T) {
	w := newSessionServer(t)
	s := w.session("python")
	s.execute("x = 7")
	var results sync.WaitGroup
	results.Go(func() {
		if r := s.execute("while True: pass", `"timeout":"4m"`); !r.Interrupted || r.Verdict != sandbox.VerdictCancelled {
			t.Errorf("%+v", r)
		}
	})
	s.untilBusy()
	s.ask(200, "POST", s.path("/interrupt"), "")
	results.Wait()
	if r := s.execute("x"); r.Value() != "7" {
		t.Errorf("%+v", r)
	}
	if r := s.execute("while True: pass", `"timeout":"300ms"`); r.Verdict != sandbox.VerdictTimeLimit {
		t.Errorf("%+v", r)
	}
	if r := s.execute("import os; os._exit(3)"); r.State != session.StateEnded || r.Cause == "" {
		t.Errorf("%+v", r)
	}
	for _, accept := range []string{wire.TypeJSON, wire.TypeSSE} {
		p := w.problem(410, "POST", s.path("/cells"), cellBody("1"), "Accept", accept)
		if p.Code != wire.CodeEnded || !strings.Contains(p.Detail, "exit code 3") {
			t.Errorf("%+v", p)
		}
	}
	w.problem(410, "GET", s.path("/variables"), "")
	var info session.Info
	decode(t, w.ask(200, "GET", s.path(""), ""), &info)
	if info.State != session.StateEnded || !strings.Contains(info.Cause, "exit code 3") {
		t.Errorf("%+v", info)
	}
	w.ask(200, "POST", s.path("/restart"), "")
	s.execute("open('f', 'w').write('x')")
	w.ask(200, "POST", s.path("/reset"), "")
	if r := s.execute("import os; os.listdir()"); r.Value() != "[]" {
		t.Errorf("%+v", r)
	}
}

// untilBusy waits until a cell runs.
func (s *testSession) untilBusy() {
	s.t.Helper()
	eventually(s.t, "a cell runs", func() bool {
		var info session.Info
		decode(s.t, s.ask(200, "GET", s.path(""), ""), &info)
		return info.State == session.StateBusy
	})
}

// Cells queue within the bound; more are refused.
func TestCellQueue(t *testing.T) {
	w := newSessionServer(t, func(o *Options) { o.Sessions.Bounds = session.Options{Waiting: 1, Sessions: 3, PerOwner: 2} })
	s := w.session("python")
	var results sync.WaitGroup
	results.Go(func() { s.execute("while True: pass", `"timeout":"4m"`) })
	s.untilBusy()
	results.Go(func() {
		if r := s.execute("'second'"); r.Cell != 2 || r.Value() != "'second'" {
			t.Errorf("%+v", r)
		}
	})
	eventually(t, "one waits", func() bool {
		var info session.Info
		decode(t, w.ask(200, "GET", s.path(""), ""), &info)
		return info.Waiting == 1
	})
	answer := w.request("POST", s.path("/cells"), cellBody("3"))
	answer.Body.Close()
	if answer.StatusCode != 429 || answer.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", answer.StatusCode, answer.Header)
	}
	s.ask(200, "POST", s.path("/interrupt"), "")
	results.Wait()
	// The number of sessions is bounded, too.
	w.session("python", `"name":"two"`)
	if p := w.problem(429, "POST", wire.PathSessions, `{"language":"python"}`); p.Code != wire.CodeTooMany || p.RetryAfter == 0 {
		t.Errorf("%+v", p)
	}
	w.ask(204, "DELETE", wire.PathSessions+"/two", "")
	w.session("python", `"idle":"200ms"`) // expires by itself
	eventually(t, "it has expired", func() bool { return w.SessionCount() == 1 })
}

func TestHostileSessions(t *testing.T) {
	w := newSessionServer(t)
	s := w.session("python")
	for _, c := range []struct {
		status             int
		method, path, body string
	}{
		{422, "POST", wire.PathSessions, `{"language":"python","code":"1"}`}, {422, "POST", wire.PathSessions, `{"language":"cobol"}`},
		{422, "POST", wire.PathSessions, `{"language":"python","name":"../x"}`}, {422, "POST", wire.PathSessions, `{"language":"python","idle":"48h"}`},
		{422, "POST", wire.PathSessions, `{"language":"python","idle":"-1s"}`}, {400, "POST", wire.PathSessions, `[]`},
		{400, "POST", wire.PathSessions, ``}, {403, "POST", wire.PathSessions, `{"language":"python","memory":"100TiB"}`},
		{403, "POST", wire.PathSessions, `{"language":"python","volumes":["/etc:/e"]}`},
		{403, "POST", wire.PathSessions, `{"language":"python","workspace":"w"}`}, {403, "POST", wire.PathSessions, `{"language":"python","require":"process"}`},
		{403, "POST", wire.PathSessions, `{"language":"python","network":"full"}`},
		{400, "POST", s.path("/cells"), `{`}, {400, "POST", s.path("/cells"), "{\"code\":\"\xff\"}"}, {422, "POST", s.path("/cells"), `{"cod":"1"}`},
		{422, "POST", s.path("/cells"), `{"code":"1","memory":"1GiB"}`}, {403, "POST", s.path("/cells"), `{"code":"1","timeout":"1000h"}`},
		{422, "POST", s.path("/cells?x=1"), cellBody("1")}, {404, "GET", s.path("/cells/99"), ""}, {404, "GET", s.path("/cells/x%2F1"), ""},
		{422, "POST", s.path("/complete"), `{"code":"x","cursor":9}`}, {422, "POST", s.path("/complete"), `{"code":"x","cursor":-1}`},
		{422, "POST", s.path("/input"), `{"line":1}`}, {426, "GET", s.path("/cells/ws"), ""}, {405, "PUT", s.path("/cells"), ""},
		{422, "PUT", s.path("/files/x?mode=9"), "x"}, {422, "PUT", s.path("/files/%2Fetc%2Fpasswd"), "x"}, {404, "GET", s.path("/files/none"), ""},
		{422, "PUT", s.path("/files/..%2F..%2Fetc%2Fx"), "x"},
	} {
		if p := w.problem(c.status, c.method, c.path, c.body); p.Detail == "" {
			t.Errorf("%s %s: %+v", c.method, c.body, p)
		}
	}
	// Control: the session still works.
	if r := s.execute("1+1"); r.Value() != "2" {
		t.Errorf("%+v", r)
	}
	none := newRealServer(t)
	for _, r := range [][2]string{{"POST", ""}, {"GET", ""}, {"GET", "/x"}, {"POST", "/x/cells"}} {
		if p := none.problem(501, r[0], wire.PathSessions+r[1], "{}"); !strings.Contains(p.Detail, "--max-sessions") {
			t.Errorf("%+v", p)
		}
	}
}

// The files of a session in a workspace stay after its end, and a fork shares the workspace.
func TestSessionWorkspace(t *testing.T) {
	store := t.TempDir()
	w := newSessionServer(t, func(o *Options) { o.Policy.Workspaces, o.Policy.WorkspaceStore = true, store })
	s := w.session("python", `"workspace":"mine"`, `"in":[{"path":"in.txt","content":"given "}]`)
	s.execute("open('kept.txt', 'w').write(open('in.txt').read() + 'made')")
	// Files of the workspace are not reached from outside, and no answer has its path on the host.
	for _, r := range [][2]string{{"GET", ""}, {"GET", "/kept.txt"}, {"PUT", "/new.txt"}, {"GET", "?path=%2F*"}, {"GET", "?path=%2Fworkspace%2F*"}} {
		answer := w.request(r[0], s.path("/files"+r[1]), "x")
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || strings.Contains(string(text), store) || r[1] != "?path=%2F*" && answer.StatusCode != 409 {
			t.Errorf("%s: %d %s", r[1], answer.StatusCode, text)
		}
	}
	w.ask(204, "PUT", s.path("/files/%2Ftmp%2Fx"), "control")
	w.ask(201, "POST", s.path("/fork"), `{"name":"fork"}`)
	w.ask(204, "DELETE", s.path(""), "")
	fork := &testSession{testServer: w}
	decode(t, w.ask(200, "GET", wire.PathSessions+"/fork", ""), &fork.Info)
	if r := fork.execute("open('kept.txt').read()"); r.Value() != "'given made'" {
		t.Errorf("%+v", r)
	}
	w.ask(204, "DELETE", fork.path(""), "")
	again := w.session("python", `"workspace":"mine"`)
	if r := again.execute("open('kept.txt').read()"); r.Value() != "'given made'" {
		t.Errorf("%+v", r)
	}
	// A session whose workspace exceeds its cap ends.
	small := w.session("python", `"workspace":"small"`, `"workspace_cap":"1MiB"`, `"name":"small"`)
	w.ask(200, "POST", small.path("/cells"), cellBody("open('big', 'wb').write(bytes(20_000_000)); import time; time.sleep(60)"))
	eventually(t, "it has ended", func() bool {
		answer := w.request("GET", small.path(""), "")
		answer.Body.Close()
		return answer.StatusCode == 404
	})
}

// A prestarted session serves the first request without further settings.
func TestPrestartedSession(t *testing.T) {
	w := newSessionServer(t, func(o *Options) { o.Sessions.Bounds.Stock = true })
	if err := w.PrestartSessions("python", "nonsense"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has started", func() bool { return w.IdleMemory() > 0 })
	ready := time.Now()
	began := func(s *testSession) time.Time {
		var uptime float64
		r := s.execute("import time; time.time() - float(open('/proc/uptime').read().split()[0]) + " +
			"int(open('/proc/self/stat').read().rsplit(') ', 1)[1].split()[19]) / 100")
		if _, err := fmt.Sscan(r.Value(), &uptime); err != nil {
			t.Fatalf("%v %+v", err, r)
		}
		return time.UnixMicro(int64(uptime * 1e6))
	}
	if at := began(w.session("python")); at.After(ready) {
		t.Errorf("it started %v after the prestarted one was ready", at.Sub(ready))
	}
	// Control: another kind of session starts with its request.
	if at := began(w.session("python", `"memory":"200MiB"`)); at.Before(ready) {
		t.Errorf("it started %v before its request", ready.Sub(at))
	}
}

// clientOf returns the Go client of a test server, over a socket of its own.
func clientOf(t *testing.T, w *testServer) *client.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: w.Handler(), ReadHeaderTimeout: testTimeout}
	go func() { _ = server.Serve(l) }()
	transport := &client.Unix{Path: filepath.Join(dir, "s")}
	t.Cleanup(func() {
		_ = transport.Close()
		_ = w.Close()
		_ = server.Close()
		_ = os.RemoveAll(dir)
	})
	return client.New(transport)
}

// The Go client has all of it.
func TestSessionClient(t *testing.T) {
	ctx := t.Context()
	all := clientOf(t, newSessionServer(t)).Sessions()
	asked, err := client.NewSession(&session.Request{Name: "mine", Idle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	asked.Run.Language = "python"
	s, err := all.Create(ctx, asked)
	if err != nil {
		t.Fatal(err)
	}
	if i := s.Info(); i.Name != "mine" || i.State != session.StateIdle || i.Limits.Memory == 0 || i.Isolation.Backend != "native" {
		t.Errorf("%+v", i)
	}
	if again, err := all.Get(ctx, "mine"); err != nil || again.ID() != s.ID() {
		t.Errorf("%v %+v", err, again)
	}
	r, err := s.Execute(ctx, session.Cell{Code: "x = 40\nx + 2"})
	if err != nil || r.Value() != "42" {
		t.Fatalf("%v %+v", err, r)
	}
	var out strings.Builder
	r, err = s.Execute(ctx, session.Cell{
		Code: "print('hello', flush=True); name = input('who? ')\nprint(name)",
		OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventStdout {
				out.Write(ev.Data)
			}
		},
		Input: func(_ context.Context, q protocol.Input) (string, bool) { return "you after " + q.Prompt, true },
	})
	if err != nil || r.Verdict != sandbox.VerdictOK || !strings.Contains(out.String(), "hello\n") || !strings.Contains(out.String(), "you after who? ") {
		t.Errorf("%v %q %+v", err, out.String(), r)
	}
	if again, err := s.Follow(ctx, r.Cell, 1, session.Cell{}); err != nil || string(again.Stdout.Bytes()) != string(r.Stdout.Bytes()) {
		t.Errorf("%v %+v", err, again)
	}
	// At the end of a context, the cell is interrupted, and its result follows.
	short, cancel := context.WithCancel(ctx)
	r, err = s.Execute(short, session.Cell{Code: "print('begun', flush=True)\nwhile True: pass", OnEvent: func(ev sandbox.Event) {
		if ev.Kind == sandbox.EventStdout {
			cancel()
		}
	}})
	if err != nil || r.Verdict != sandbox.VerdictCancelled {
		t.Errorf("%v %+v", err, r)
	}
	if c, err := s.Check(ctx, "for x in y:"); err != nil || c.Status != "incomplete" {
		t.Errorf("%v %+v", err, c)
	}
	if c, err := s.Complete(ctx, "pri", 3); err != nil || len(c.Matches) == 0 {
		t.Errorf("%v %+v", err, c)
	}
	if v, err := s.Variables(ctx); err != nil || len(v.Variables) == 0 {
		t.Errorf("%v %+v", err, v)
	}
	if i, err := s.Inspect(ctx, "x"); err != nil || !i.Found {
		t.Errorf("%v %+v", err, i)
	}
	testClientFiles(t, s)
	forked, err := s.Fork(ctx, session.ForkOptions{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := forked.Execute(ctx, session.Cell{Code: "x"}); err != nil || r.Value() != "40" || forked.Info().Forked != s.ID() {
		t.Errorf("%v %+v", err, r)
	}
	if h, err := s.History(ctx); err != nil || len(h) != 4 {
		t.Errorf("%v %+v", err, h)
	}
	if err := errors.Join(s.Interrupt(), s.Restart(ctx), s.Reset(ctx)); err != nil {
		t.Error(err)
	}
	if err := s.SetNetwork(ctx, network.Policy{Mode: network.Full}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("above the ceiling: %v", err)
	}
	if err := s.SetNetwork(ctx, network.Policy{Mode: network.None}); err != nil { // control
		t.Error(err)
	}
	if list, err := all.List(ctx); err != nil || len(list) != 2 {
		t.Errorf("%v %+v", err, list)
	}
	if err := all.Close(ctx, "other"); err != nil {
		t.Error(err)
	}
	if r, err = s.Execute(ctx, session.Cell{Code: "import os; os._exit(1)"}); err != nil || r.State != session.StateEnded {
		t.Errorf("%v %+v", err, r)
	}
	if _, err = s.Execute(ctx, session.Cell{Code: "1"}); !errors.Is(err, session.ErrEnded) {
		t.Errorf("%v", err)
	}
	s.Close()
	if _, err := s.Refresh(ctx); !errors.Is(err, session.ErrNotFound) || !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func testClientFiles(t *testing.T, s *client.Session) {
	t.Helper()
	ctx := t.Context()
	if err := s.Put(ctx, []sandbox.File{{Path: "a b/[1]*.txt", Data: []byte("in\xff"), Mode: 0o755},
		{Path: "/tmp/other", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("opened")), nil }}}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Execute(ctx, session.Cell{Code: "open('/tmp/other').read() + str(len(open('a b/[1]*.txt', 'rb').read()))"}); err != nil ||
		r.Value() != "'opened3'" {
		t.Errorf("%v %+v", err, r)
	}
	list, _, err := s.Files(ctx, "")
	if err != nil || len(list) != 1 || list[0].Path != "/workspace/a b/[1]*.txt" || list[0].Size != 3 || list[0].Mode.Perm() != 0o755 {
		t.Errorf("%v %+v", err, list)
	}
	taken := map[string]string{}
	if _, err := s.Take(ctx, sandbox.Selection{Patterns: []string{"a b", "/tmp/other"}}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		text, err := io.ReadAll(r)
		taken[f.Path] = string(text)
		return err
	}); err != nil || taken["/workspace/a b/[1]*.txt"] != "in\xff" || taken["/tmp/other"] != "opened" {
		t.Errorf("%v %q", err, taken)
	}
}
