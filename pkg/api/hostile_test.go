package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestHostileBodies: every field's error names the field (A4, A7).
func TestHostileBodies(t *testing.T) {
	w := newTestServer(t)
	code := `"language":"act","code":"out x"`
	for _, c := range []struct {
		body   string
		status int
		field  string // "" is that the body as a whole is wrong
	}{
		{``, 400, ""},
		{`null`, 400, ""},
		{`[]`, 400, ""},
		{`"x"`, 400, ""},
		{`{`, 400, ""},
		{`{"code":`, 400, ""},
		{`{"code":"x`, 400, ""},
		{`{"code":"x"} {}`, 400, ""},
		{`{"code":"x"}x`, 400, ""},
		{`{"code":"` + "\xff" + `"}`, 400, ""},
		{`{"code":"\ud800"}`, 400, ""},
		{`{"code":"\udc00\ud800"}`, 400, ""},
		{`{"vars":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, 400, ""},
		{strings.Repeat(`{"vars":`, 10000), 400, ""},
		{`{"memory":NaN,` + code + `}`, 400, ""},
		{`{"memory":Infinity}`, 400, ""},
		{`{"timeout":01}`, 400, ""},
		{`{}`, 422, "code"},
		{`{"language":"act"}`, 422, "code"},
		{`{"code":"x","files":[{"path":"a","content":""}],"language":"act"}`, 422, "code"},
		{`{"lang":"act"}`, 422, "lang"},
		{`{"Code":"x"}`, 422, "Code"},
		{`{"code":1}`, 422, "code"},
		{`{"code":{"a":1}}`, 422, "code"},
		{`{"code":"a","code":"b","language":"act"}`, 422, "code"},
		{`{"language":"cobol","code":"x"}`, 422, "language"},
		{`{"args":"x",` + code + `}`, 422, "args"},
		{`{"args":[1],` + code + `}`, 422, "args"},
		{`{"env":["A=b"],` + code + `}`, 422, "env"},
		{`{"env":{"A":1},` + code + `}`, 422, "env"},
		{`{"env":{"A=B":"x"},` + code + `}`, 422, "env"},
		{`{"strict":"yes",` + code + `}`, 422, "strict"},
		{`{"files":{},"language":"act"}`, 422, "files"},
		{`{"files":[1],"language":"act"}`, 422, "files[0]"},
		{`{"files":[{"path":"a","content":"x","colour":"red"}]}`, 422, "files[0].colour"},
		{`{"files":[{"path":"a.act","content":"!","encoding":"base64"}]}`, 422, "files[0].content"},
		{`{"files":[{"path":"a.act","content":"x","encoding":"rot13"}]}`, 422, "files[0].encoding"},
		{`{"files":[{"path":"a.act","content":"x","mode":"rwx"}]}`, 422, "files[0].mode"},
		{`{"files":[{"path":"a.act","content":"x","mode":"4755"}]}`, 422, "files[0].mode"},
		{`{"files":[{"path":"../a.act","content":"x"}]}`, 422, "files"},
		{`{"files":[{"path":"/etc/passwd","content":"x"}],"language":"act"}`, 422, "files"},
		{`{"files":[{"path":"a\u0000b.act","content":"x"}]}`, 422, "files"},
		{`{"files":[{"path":"` + strings.Repeat("a/", 2500) + `a.act","content":"x"}]}`, 422, "files"},
		{`{"files":[{"path":"a.act","content":"x"},{"path":"a.act","content":"y"}]}`, 422, "files"},
		{`{"in":[{"path":"..","content":"x"}],` + code + `}`, 422, "in"},
		{`{"out":["../*"],` + code + `}`, 422, "out"},
		{`{"out":["/etc/*"],` + code + `}`, 422, "out"},
		{`{"out":["["],` + code + `}`, 422, "out"},
		{`{"stdin":"!","stdin_encoding":"base64",` + code + `}`, 422, "stdin"},
		{`{"stdin":"x","stdin_encoding":"utf-16",` + code + `}`, 422, "stdin_encoding"},
		{`{"network":"host",` + code + `}`, 422, "network"},
		{`{"scratch":"cloud",` + code + `}`, 422, "scratch"},
		{`{"require":"none",` + code + `}`, 422, "require"},
		{`{"workdir":"relative",` + code + `}`, 422, "workdir"},
		{`{"hostname":"-x-",` + code + `}`, 422, "hostname"},
		{`{"tty":{"rows":0,"cols":80},` + code + `}`, 422, "tty"},
		{`{"tty":{"rows":70000,"cols":80},` + code + `}`, 422, "tty.rows"},
		{`{"tty":true,` + code + `}`, 422, "tty"},
		{`{"interactive":true,` + code + `}`, 422, "interactive"},
		{`{"webhook":"http://x/",` + code + `}`, 422, "webhook"}, {`{"webhook":{"url":"http://x/"},` + code + `}`, 422, "webhook"},
		{`{"receipt":true,` + code + `}`, 501, "receipt"},
		{`{"release":true,` + code + `}`, 422, "release"},
		{`{"vars":{"a":1},` + code + `}`, 422, "vars"},
	} {
		p := w.problem(c.status, "POST", wire.PathRun, c.body)
		field := ""
		if len(p.Errors) > 0 {
			field = p.Errors[0].Field
		}
		if field != c.field || c.field != "" && !strings.Contains(p.Detail, c.field) {
			t.Errorf("%.120s: field %q instead of %q: %+v", c.body, field, c.field, p)
		}
	}
	// Limits: zero, negative, overflowing, and not a number.
	for _, field := range []string{
		"timeout", "grace", "cpus", "cpu_time", "memory", "disk", "inodes", "pids", "open_files", "output_limit", "compile_timeout",
		"compile_memory", "uid", "gid", "workspace_cap", "workspace_inodes",
	} {
		for _, value := range []string{`0`, `-1`, `9223372036854775808`, `1e300`, `"NaN"`, `"-1"`, `"0"`, `""`, `"x"`, `true`, `[]`, `{}`, `-0.0`,
			`1e-400`, `"9223372036854775808"`} {
			var p wire.Problem
			answer := w.request("POST", wire.PathRun, fmt.Sprintf(`{%q:%s,%s}`, field, value, code))
			b, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			decode(t, b, &p)
			if answer.StatusCode != 422 && answer.StatusCode != 403 || len(p.Errors) != 1 || p.Errors[0].Field != field {
				t.Errorf("%s = %s: %d %s", field, value, answer.StatusCode, b)
			}
		}
	}
	// Control: the same request without an error.
	w.ask(200, "POST", wire.PathRun, `{"timeout":"10s","grace":1,"cpus":0.5,"memory":"64MiB","disk":1e8,"pids":10,"output_limit":1000,`+
		`"stdin":null,`+code+`}`)
}

// TestPolicy (A9): fields that the operator must allow are refused by name unless the operator allows them.
func TestPolicy(t *testing.T) {
	shown := t.TempDir()
	cases := map[string]string{
		"volumes":   fmt.Sprintf(`"volumes":["%s:/data:ro"]`, shown),
		"workspace": `"workspace":"mine"`,
		"backend":   `"backend":"process"`,
		"runtime":   `"runtime":"runc"`,
		"pass_env":  `"pass_env":["HOME"]`,
		"require":   `"require":"namespace"`,

		"writable_root": `"writable_root":true`,
	}
	w := newTestServer(t)
	for field, text := range cases {
		p := w.problem(403, "POST", wire.PathRun, body("out x", text))
		if p.Code != wire.CodeRefused || len(p.Errors) != 1 || p.Errors[0].Field != field || p.Hint == "" {
			t.Errorf("%s: %+v", field, p)
		}
	}
	t.Setenv("API_TEST_PASSED", "on")
	used := ""
	allowing := newTestServer(t, func(o *Options) {
		engine := o.Executor
		o.ExecutorFor = func(backend, runtime string) (Executor, error) {
			used = backend + "," + runtime
			return engine, nil
		}
		o.Policy = Policy{
			VolumeRoots: []string{filepath.Dir(shown)}, Backends: []string{"process"}, Runtimes: []string{"runc"},
			PassEnv: []string{"API_TEST_PASSED"}, Require: sandbox.TierProcess, WritableRoot: true,
			Images: []string{"ours/*"},
		}
	})
	for _, text := range []string{cases["volumes"], cases["require"], cases["writable_root"], `"pass_env":["API_TEST_PASSED"]`,
		cases["backend"] + "," + cases["runtime"]} {
		allowing.ask(200, "POST", wire.PathRun, body("out x", text))
	}
	if used != "process,runc" {
		t.Errorf("%q", used)
	}
	for _, text := range []string{
		`"volumes":["/etc:/data:ro"]`, fmt.Sprintf(`"volumes":["%s:/data:rw"]`, shown),
		fmt.Sprintf(`"volumes":["%sx/y:/data:ro"]`, filepath.Dir(shown)),
		`"pass_env":["HOME"]`, `"image":"theirs/x"`, cases["workspace"],
	} {
		allowing.problem(403, "POST", wire.PathRun, body("out x", text))
	}
	if p := allowing.problem(422, "POST", wire.PathRun, body("out x",
		fmt.Sprintf(`"volumes":["%s/../../etc:/data"]`, shown))); p.Errors[0].Field != "volumes" {
		t.Errorf("%+v", p)
	}
}

// TestCeilings: a limit above a ceiling is refused by name; a default above it is lowered.
func TestCeilings(t *testing.T) {
	w := newTestServer(t, func(o *Options) {
		o.Auth = keys{"small": {ID: "s", Limits: KeyLimits{Limits: sandbox.Limits{Memory: 64 * sandbox.MiB, Wall: 2 * time.Second}}},
			"free": {ID: "f"}}
	})
	w.token = "small"
	p := w.problem(403, "POST", wire.PathRun, body("out x", `"memory":"65MiB"`))
	if p.Code != wire.CodeCeiling || p.Errors[0].Field != "memory" || !strings.Contains(p.Detail, "64 MiB") {
		t.Errorf("%+v", p)
	}
	r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, body("out x")))
	if err != nil || r.Limits.Memory != 64*sandbox.MiB || r.Limits.Wall != 2*time.Second ||
		!strings.Contains(strings.Join(r.Notes, "\n"), "memory: the default of 512 MiB lowered to 64 MiB, the most that the operator allows") {
		t.Errorf("%v: %+v %q", err, r.Limits, r.Notes)
	}
	w.token = "free"
	w.ask(200, "POST", wire.PathRun, body("out x", `"memory":"65MiB"`))
	for _, field := range []string{`"timeout":"1h"`, `"pids":100000`, `"disk":"1TiB"`, `"output_limit":"500MiB"`, `"compile_memory":"1TiB"`,
		`"grace":"1m"`, `"inodes":100000000`} {
		if p := w.problem(403, "POST", wire.PathRun, body("out x", field)); p.Code != wire.CodeCeiling {
			t.Errorf("%s: %+v", field, p)
		}
	}
}

// TestLargeBodies: 413, with memory bounded, whether or not a length was announced.
func TestLargeBodies(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Policy.MaxBody = sandbox.MiB })
	big := `{"language":"act","code":"` + strings.Repeat("#", 2<<20) + `"}`
	w.problem(413, "POST", wire.PathRun, big)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	endless := io.LimitReader(zeros{}, 1<<30)
	answer := w.requestContext(t.Context(), "POST", wire.PathRun, io.MultiReader(strings.NewReader(`{"code":"`), endless))
	answer.Body.Close()
	runtime.ReadMemStats(&after)
	if answer.StatusCode != 413 {
		t.Errorf("%d", answer.StatusCode)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("it took %d bytes", grown)
	}
	w.ask(200, "POST", wire.PathRun, `{"language":"act","code":"`+strings.Repeat("#", 1<<19)+`"}`)
	eventually(t, "nothing is counted any more", func() bool { return w.bodies.total() == 0 })
	release := w.bodies.count("others", maxAccount)
	w.problem(503, "POST", wire.PathRun, body("out x"))
	release()
}

// TestShareOfMemory: one client's bodies and results leave room for others, and an unsent body takes no memory.
func TestShareOfMemory(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}} })
	release := w.bodies.count("a", maxAccount/2)
	w.token = "a"
	if p := w.problem(429, "POST", wire.PathRun, body("out x")); p.RetryAfter == 0 {
		t.Errorf("%+v", p)
	}
	w.token = "b"
	w.ask(200, "POST", wire.PathRun, body("out x"))
	release()
	release()
	w.token = "a"
	for range maxAccount/(32<<20) + 1 { // of bodies as large as they may be
		w.dialPath(wire.PathTalk)
	}
	for _, w.token = range []string{"a", "b"} {
		w.ask(200, "POST", wire.PathRun, body("out x"))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("0"), len(p))), nil }

// TestSlowBody: a body that does not arrive times out.
func TestSlowBody(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Policy.BodyTimeout = 100 * time.Millisecond })
	conn, err := w.client.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"code\":",
		wire.PathRun)
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 408") || !strings.Contains(string(b), wire.CodeTooSlow) {
		t.Errorf("%v: %s", err, b)
	}
	// So does the rest of a refused body.
	again, err := w.client.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	fmt.Fprintf(again, "POST %s HTTP/1.1\r\nHost: server\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nx", wire.PathRun)
	_ = again.SetReadDeadline(time.Now().Add(testTimeout))
	if b, err := io.ReadAll(again); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 415") {
		t.Errorf("%v: %s", err, b)
	}
	// Control: a slow program does not time out.
	w.ask(200, "POST", wire.PathRun, body("sleep 400\nout x"))
}

// TestTruncatedBody: a body that ends before its Content-Length is refused.
func TestTruncatedBody(t *testing.T) {
	w := newTestServer(t)
	conn, err := w.client.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"code\":",
		wire.PathRun)
	_ = conn.(*net.UnixConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	b, _ := io.ReadAll(conn)
	if len(b) > 0 && !strings.HasPrefix(string(b), "HTTP/1.1 400") {
		t.Errorf("%s", b)
	}
}

func TestMediaTypes(t *testing.T) {
	w := newTestServer(t)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1",
		"application/jsonx"} {
		w.problem(415, "POST", wire.PathRun, body("out x"), "Content-Type", kind)
	}
	w.problem(415, "POST", wire.PathRun, body("out x"), "Content-Encoding", "gzip")
	w.ask(200, "POST", wire.PathRun, body("out x"), "Content-Type", "application/json; charset=UTF-8")
	for accept, kind := range map[string]string{
		"*/*": wire.TypeJSON, "application/*": wire.TypeJSON, "text/*": wire.TypeSSE, "application/json;q=0.5, text/event-stream": wire.TypeSSE,
		"text/event-stream;q=0, */*;q=0.1": wire.TypeJSON, "text/html, application/x-ndjson;q=0.9": wire.TypeNDJSON, "": wire.TypeJSON,
	} {
		answer := w.request("POST", wire.PathRun, body("out x"), "Accept", accept)
		answer.Body.Close()
		if got := answer.Header.Get("Content-Type"); accept != "" && got != kind {
			t.Errorf("%s: %s", accept, got)
		}
	}
	for _, accept := range []string{"text/html", "image/*", "application/json;q=0", "x"} {
		w.problem(406, "POST", wire.PathRun, body("out x"), "Accept", accept)
	}
	w.problem(422, "POST", wire.PathRun+"?wait=1", body("out x"))
}

// TestOpenAPI compares the document with its golden file, and its fields of a run with those that are decoded.
func TestOpenAPI(t *testing.T) {
	w := newTestServer(t)
	doc := w.ask(200, "GET", "/openapi.json", "")
	golden := filepath.Join("testdata", "openapi.json")
	if *update {
		if err := os.WriteFile(golden, doc, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(doc, want) {
		t.Error("the OpenAPI document has changed; look at it, then: go test ./pkg/api -run TestOpenAPI -update")
	}
	var parsed struct {
		OpenAPI string                    `json:"openapi"`
		Paths   map[string]map[string]any `json:"paths"`
	}
	decode(t, doc, &parsed)
	if !strings.HasPrefix(parsed.OpenAPI, "3.1") || len(parsed.Paths) < 8 {
		t.Errorf("%s, %d paths", parsed.OpenAPI, len(parsed.Paths))
	}
	// The document has exactly the server's routes.
	for path, item := range parsed.Paths {
		for method := range item {
			r, _ := http.NewRequest(strings.ToUpper(method), strings.NewReplacer("{id}", "x", "{path}", "y").Replace(path), nil)
			if _, pattern := w.mux.Handler(r); pattern == "" {
				t.Errorf("%s %s is no route", method, path)
			}
		}
	}
	if b := w.ask(200, "GET", "/openapi.yaml", ""); !bytes.Contains(b, []byte("openapi: 3.1")) {
		t.Errorf("%.200s", b)
	}
	page := string(w.ask(200, "GET", "/docs", ""))
	for _, part := range []string{"POST", wire.PathRuns + "/{id}/events", "compile_memory", "Problem"} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %s", part)
		}
	}
}

func TestHealthAndLanguages(t *testing.T) {
	w := newTestServer(t)
	var h wire.Health
	decode(t, w.ask(200, "GET", wire.PathHealth, ""), &h)
	if !h.Live || !h.Ready || h.Version != "test" || h.Deep != nil {
		t.Errorf("%+v", h)
	}
	w.problem(422, "GET", wire.PathHealth+"?deep=2", "")
	w.problem(422, "GET", wire.PathHealth+"?check=x", "")
	// The fake backend runs no shell, so the deep check fails.
	decode(t, w.ask(503, "GET", wire.PathHealth+"?deep=1", ""), &h)
	if h.Deep == nil || h.Deep.OK || h.Deep.Error == "" || h.Ready {
		t.Errorf("%+v", h.Deep)
	}
	var l wire.Languages
	decode(t, w.ask(200, "GET", wire.PathLanguages, ""), &l)
	var names []string
	for _, one := range l.Languages {
		names = append(names, one.Name)
	}
	if !slices.Contains(names, "act") || !slices.Contains(names, "python") {
		t.Errorf("%v", names)
	}
}

// TestDo: mounted routes run programs through the same checks.
func TestDo(t *testing.T) {
	w := newTestServer(t)
	var all []byte
	f, err := w.Do(t.Context(), owner, &wire.Run{Language: "act", Code: "out x"},
		Call{OnEvent: func(line []byte) { all = append(all, line...) }})
	if err != nil || f.Err != nil || f.Result.Verdict != sandbox.VerdictOK || f.Way != WayBatch {
		t.Fatalf("%v: %+v", err, f)
	}
	got := lines(t, bytes.NewReader(all))
	text, err := f.Document.Bytes()
	if kindOf(got[len(got)-1]) == "result" || err != nil || string(text)+"\n" != string(wire.AppendJSON(nil, f.Result)) {
		t.Errorf("%s, %s, %v", all, text, err)
	}
	f.Close()
	if _, err := w.Do(t.Context(), owner, &wire.Run{Language: "act", Code: "out x", Backend: "process"}, Call{}); err == nil ||
		w.Problem(t.Context(), err).Status != 403 {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := w.Do(ctx, owner, &wire.Run{Language: "act", Code: "wait"}, Call{}); err == nil && f.Err == nil &&
		f.Result.Verdict == sandbox.VerdictOK {
		t.Errorf("%+v", f)
	}
}

// TestCeilingsOfWorkspaces: a workspace has the ceilings of the scratch disk.
func TestCeilingsOfWorkspaces(t *testing.T) {
	store := t.TempDir()
	w := newTestServer(t, func(o *Options) { o.Policy.Workspaces, o.Policy.WorkspaceStore = true, store })
	for field, value := range map[string]string{"workspace_cap": `"1TiB"`, "workspace_inodes": "10000000"} {
		p := w.problem(403, "POST", wire.PathRun, body("out x", `"workspace":"mine"`, `"`+field+`":`+value))
		if p.Code != wire.CodeCeiling || len(p.Errors) != 1 || p.Errors[0].Field != field || !strings.HasPrefix(p.Detail, field) {
			t.Errorf("%s: %+v", field, p)
		}
	}
}

// TestPanic: a panic is answered with a problem that has only an id.
func TestPanic(t *testing.T) {
	w := newTestServer(t)
	w.Mount("GET /v1/boom", Access{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret state") }))
	p := w.problem(500, "GET", "/v1/boom", "")
	if strings.Contains(fmt.Sprintf("%+v", p), "secret") || !strings.Contains(p.Instance, "failure:") {
		t.Errorf("%+v", p)
	}
	if p := w.problem(404, "GET", "/v1/nothing", ""); p.Code != wire.CodeNotFound {
		t.Errorf("%+v", p)
	}
	answer := w.request("PATCH", wire.PathRun, "")
	answer.Body.Close()
	if answer.StatusCode != 405 || answer.Header.Get("Allow") != "POST" || answer.Header.Get("Content-Type") != wire.TypeProblem {
		t.Errorf("%d %v", answer.StatusCode, answer.Header)
	}
}
