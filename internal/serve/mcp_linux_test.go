package serve

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// agent is a client of the Model Context Protocol.
type agent struct {
	*mcp.ClientSession
	t *testing.T
}

// keyTransport adds a key to requests.
type keyTransport struct {
	base http.RoundTripper
	key  string
}

func (k *keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if k.key != "" {
		r.Header.Set("Authorization", "Bearer "+k.key)
	}
	return k.base.RoundTrip(r)
}

// connect connects a client. An empty revision means the newest.
func connect(t *testing.T, transport mcp.Transport, revision string, o *mcp.ClientOptions) *agent {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	session, err := c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	must(t, err)
	t.Cleanup(func() { _ = session.Close() }) // a test may have closed it
	return &agent{session, t}
}

// agent connects a client to the server over HTTP.
func (s *observedServer) agent(revision, key string, o *mcp.ClientOptions) *agent {
	s.t.Helper()
	web := &http.Client{Transport: &keyTransport{s.client.Transport, key}}
	return connect(s.t, &mcp.StreamableClientTransport{Endpoint: "http://server/mcp", HTTPClient: web, DisableStandaloneSSE: true}, revision, o)
}

// streamAgent connects a client to a server over a pair of streams. stop ends its input and waits for its end.
func streamAgent(t *testing.T, revision string, o *mcp.ClientOptions, change ...func(*operator.Settings)) (a *agent, stop func()) {
	t.Helper()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	settings := &operator.Settings{Backend: "native", Dir: filepath.Join(dir, "mcp"), AuditLog: filepath.Join(dir, "audit.jsonl"),
		Env: []string{}, LogLevel: slog.LevelWarn}
	for _, f := range change {
		f(settings)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	over := make(chan error, 1)
	go func() {
		err := MCP(context.WithoutCancel(t.Context()), Options{Settings: settings, Version: "test", Err: testWriter{t}}, inR, outW)
		_ = outW.Close()
		over <- err
	}()
	a = connect(t, &mcp.IOTransport{Reader: outR, Writer: inW}, revision, o)
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = inW.Close()
		go func() { _, _ = io.Copy(io.Discard, outR) }()
		select {
		case err := <-over:
			must(t, err)
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	}
	t.Cleanup(stop)
	return a, stop
}

// testWriter writes a log to that of a test that may be over.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

type args = map[string]any

// answered is the answer of a tool.
type answered struct {
	*mcp.CallToolResult
	text string
	data map[string]any
}

// call calls a tool, whose answer must be no error of the protocol.
func (a *agent) call(tool string, in args) answered {
	a.t.Helper()
	got, err := a.ask(a.t.Context(), tool, in)
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	return got
}

func (a *agent) ask(ctx context.Context, tool string, in args) (answered, error) {
	r, err := a.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		return answered{}, err
	}
	got := answered{CallToolResult: r}
	got.data, _ = r.StructuredContent.(map[string]any)
	if len(r.Content) > 0 {
		if text, ok := r.Content[0].(*mcp.TextContent); ok {
			got.text = text.Text
		}
	}
	return got, nil
}

// good calls a tool, which must succeed.
func (a *agent) good(tool string, in args) answered {
	a.t.Helper()
	got := a.call(tool, in)
	if got.IsError {
		a.t.Fatalf("%s: %s", tool, got.text)
	}
	return got
}

// bad calls a tool, which must fail with that text.
func (a *agent) bad(tool string, in args, text string) {
	a.t.Helper()
	if got := a.call(tool, in); !got.IsError || !strings.Contains(got.text, text) {
		a.t.Errorf("%s: want %q: %v %s", tool, text, got.IsError, got.text)
	}
}

// contains checks the text of an answer.
func (a *agent) contains(got answered, parts ...string) {
	a.t.Helper()
	for _, p := range parts {
		if !strings.Contains(got.text, p) {
			a.t.Errorf("no %q in %q", p, got.text)
		}
	}
}

// id is a handle in an answer.
func (got answered) id(field string) string {
	id, _ := got.data[field].(string)
	return id
}

// driveTools calls every tool.
func driveTools(a *agent) {
	t := a.t
	t.Helper()
	list, err := a.ListTools(t.Context(), nil)
	must(t, err)
	if len(list.Tools) != 16 {
		t.Errorf("%d tools", len(list.Tools))
	}
	for _, tool := range list.Tools {
		if len(tool.Description) < 20 || len(tool.Description) > 400 || tool.OutputSchema == nil || tool.Annotations == nil {
			t.Errorf("%+v", tool)
		}
	}
	a.contains(a.good("list_languages", nil), "python 3", "shell")

	got := a.good("run_code", args{"language": "python", "code": "print(6 * 7)"})
	a.contains(got, "ok, exit code 0", "stdout:\n42\n", "run="+got.id("run"))
	got = a.good("run_code", args{"language": "python", "code": "d = {}\nprint(d['key'])"})
	if got.data["success"] != false {
		t.Errorf("%v", got.data)
	}
	a.contains(got, "nonzero_exit, exit code 1", "KeyError: 'key' at main.py:2")
	a.contains(a.good("explain_error", args{"run": got.id("run")}), "KeyError", "main.py:2")
	a.contains(a.good("explain_error", args{"language": "python", "error": "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n    x\nNameError: name 'x' is not defined\n"}), "NameError")
	a.contains(a.good("explain_error", args{"language": "python", "error": "KeyError: 'aple'"}), "missing_key: KeyError: 'aple'")
	a.contains(a.good("explain_error", args{"language": "python", "error": "it does not work"}), "nothing is known")
	a.bad("explain_error", args{"language": "python"}, "give the handle of a run")

	a.contains(a.good("run_project", args{
		"files": []args{{"path": "main.py", "content": "import helper\nprint(helper.word)"}, {"path": "helper.py", "content": "word = 'from helper'"}},
	}), "from helper")
	got = a.good("run_code", args{
		"language": "python", "code": "print(open('a.txt').read()); open('b.csv', 'w').write('1,2')", "out": []string{"*.csv"},
		"inputs": []args{{"path": "a.txt", "content": "the input"}},
	})
	a.contains(got, "the input", "file b.csv (3 bytes):\n1,2")
	read, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: got.id("uri") + "/files/b.csv"})
	must(t, err)
	if read.Contents[0].Text != "1,2" {
		t.Errorf("%+v", read.Contents[0])
	}

	got = a.good("run_code", args{
		"language": "python", "code": "for n in 'a.png', 'b.PNG', 'c.bin': open(n, 'wb').write(b'\\x89PNG\\xff')", "out": []string{"*"},
	})
	images := 0
	for _, c := range got.Content[1:] {
		if image, ok := c.(*mcp.ImageContent); ok && image.MIMEType == "image/png" && string(image.Data) == "\x89PNG\xff" {
			images++
		}
	}
	if images != 2 || len(got.Content) != 3 {
		t.Errorf("%d images in %d parts: %s", images, len(got.Content), got.text)
	}

	a.contains(a.good("check_code", args{"language": "python", "code": "print(1)"}), "parsed, not run")
	a.contains(a.good("check_code", args{"language": "python", "code": "x = = 1"}), "compile_error", "SyntaxError", "main.py:1")

	driveOutput(a)
	driveSessions(a)
}

// driveOutput reads output that is too long for an answer, and a run that goes on.
func driveOutput(a *agent) {
	t := a.t
	t.Helper()
	got := a.good("run_code", args{"language": "python", "code": "for i in range(10000): print('line', i)", "verbosity": "brief"})
	a.contains(got, "line 0\n", "line 9999", "bytes left out; get_output run="+got.id("run"))
	if len(got.text) > 1000 {
		t.Errorf("%d bytes", len(got.text))
	}
	whole, offset := "", 0.0
	for {
		part := a.good("get_output", args{"run": got.id("run"), "offset": int(offset), "length": 40_000})
		whole += part.data["text"].(string)
		next, more := part.data["next_offset"].(float64)
		if offset = next; !more {
			break
		}
	}
	if !strings.HasPrefix(whole, "line 0\nline 1\n") || !strings.HasSuffix(whole, "line 9999\n") || len(whole) != 98890 {
		t.Errorf("%d bytes", len(whole))
	}
	got = a.good("run_code", args{"language": "shell", "code": "sleep 1000", "wait": false, "timeout": 100})
	a.contains(a.good("get_output", args{"run": got.id("run")}), "run="+got.id("run"))
	a.bad("explain_error", args{"run": got.id("run")}, "still under way")
	a.contains(a.good("cancel_run", args{"run": got.id("run")}), "cancelled")
	a.contains(a.good("get_output", args{"run": got.id("run"), "wait": 60}), "cancelled")
	a.contains(a.good("cancel_run", args{"run": got.id("run")}), "was over: cancelled")
}

// driveSessions uses a session with its files.
func driveSessions(a *agent) {
	t := a.t
	t.Helper()
	made := a.good("session_create", args{"language": "python", "files": []args{{"path": "in.txt", "content": "given"}}})
	id := made.id("session")
	in := func(more args) args {
		more["session"] = id
		return more
	}
	a.good("session_run", in(args{"code": "x = 40"}))
	got := a.good("session_run", in(args{"code": "print('out'); x + 2"}))
	a.contains(got, "value: 42", "stdout:\nout", "run="+id+"/2")
	a.contains(a.good("get_output", args{"run": id + "/2"}), "out\n")
	a.contains(a.good("session_run", in(args{"code": "1 / 0"})), "ZeroDivisionError")
	a.contains(a.good("explain_error", args{"run": id + "/3"}), "ZeroDivisionError")
	a.good("files_write", in(args{"path": "dir/new.txt", "content": "äb"}))
	a.contains(a.good("files_list", in(args{})), "in.txt 5", "dir/new.txt 3")
	a.contains(a.good("files_read", in(args{"path": "in.txt"})), "given")
	a.contains(a.good("files_read", in(args{"path": "dir/new.txt", "encoding": "base64"})), "w6Ri")
	a.bad("files_read", in(args{"path": "none"}), "no such file")

	fork := a.good("session_fork", in(args{}))
	a.contains(a.good("session_run", args{"session": fork.id("session"), "code": "x = 1; x"}), "value: 1")
	a.contains(a.good("session_run", in(args{"code": "x"})), "value: 40")
	a.good("session_close", args{"session": fork.id("session")})

	interrupted := make(chan answered, 1)
	go func() {
		got, _ := a.ask(t.Context(), "session_run", in(args{"code": "import time\nopen('begun', 'w').close()\ntime.sleep(1000)", "timeout": 100}))
		interrupted <- got
	}()
	for end := time.Now().Add(patience); !strings.Contains(a.good("files_list", in(args{})).text, "begun"); time.Sleep(50 * time.Millisecond) {
		select {
		case got := <-interrupted:
			t.Fatalf("the code has ended: %q", got.text)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the code does not begin")
		}
	}
	a.good("session_interrupt", in(args{}))
	if got := <-interrupted; !strings.Contains(got.text, "interrupted") {
		t.Errorf("%q", got.text)
	}
	a.contains(a.good("session_run", in(args{"code": "x"})), "value: 40")
	a.good("session_run", in(args{"code": "with open('holes', 'wb') as f: f.truncate(10 ** 13)"}))
	a.bad("files_read", in(args{"path": "holes", "offset": 1e12}), "offset")  // it is not read up to there
	a.bad("install_packages", in(args{"packages": []string{"requests"}}), "") // refused here: no registry is allowed
	read, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: made.id("uri")})
	must(t, err)
	if !json.Valid([]byte(read.Contents[0].Text)) || !strings.Contains(read.Contents[0].Text, id) {
		t.Errorf("%+v", read.Contents[0])
	}
	a.good("session_close", in(args{}))
	a.bad("session_run", in(args{"code": "x"}), "not_found")
}

// revisions are the newest revision of the protocol, and one that clients of today speak.
var revisions = []string{"2026-07-28", "2025-06-18"}

func TestMCPOverHTTP(t *testing.T) {
	s := startObserved(t)
	for _, r := range revisions {
		t.Run(r, func(t *testing.T) {
			s.t = t
			driveTools(s.agent(r, s.token, nil))
		})
	}
}

func TestMCPOverStreams(t *testing.T) {
	for _, r := range revisions {
		t.Run(r, func(t *testing.T) {
			state := t.TempDir()
			t.Setenv("XDG_STATE_HOME", state)
			a, stop := streamAgent(t, r, nil, func(s *operator.Settings) { s.Dir = "" })
			driveTools(a)
			stop()
			left, err := filepath.Glob(filepath.Join(state, "sandbox-run", "agents", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("%v, %v", left, err)
			}
		})
	}
}

// The official TypeScript SDK speaks two revisions with the server.
func TestMCPTypeScript(t *testing.T) {
	s := startObserved(t, func(o *operator.Settings) { o.Listen = append(o.Listen, "127.0.0.1:0") })
	url := "http://" + regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.log.String()) + "/mcp"
	for _, revision := range []string{"2025-11-25", "2025-03-26"} {
		testenv.RunTypeScriptAgent(t, revision, s.token, url)
	}
}
