package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// wire.Run.Request reverses NewRun.
func TestNewRun(t *testing.T) {
	req := executor.Request{
		Language: "python", Code: "print(1)", Name: "x.py", Entry: "x.py", Image: "python:3", Args: []string{"a", "ü"},
		Env: map[string]string{"A": "b"}, NoCache: true,
		Limits: sandbox.Limits{
			Wall: 1500 * time.Millisecond, Grace: time.Nanosecond * 12345, CPUs: 0.5, CPUTime: time.Second, Memory: 64 * sandbox.MiB,
			Disk: sandbox.GiB, Inodes: 100,
			Processes: 5, OpenFiles: 64, Output: 1000,
		},
		CompileLimits: sandbox.Limits{Wall: time.Minute, Memory: sandbox.GiB},
		Policy: executor.Policy{
			Network:        network.Policy{Allow: []string{"a.example:22"}, Deny: []string{"b.example"}, DNS: true, Publish: []string{"80"}},
			CompileNetwork: network.Policy{Registries: []string{"npm"}}, Workdir: "/tmp", Scratch: sandbox.ScratchAuto, WritableRoot: true, Hostname: "h",
			User:    sandbox.User{UID: 5, GID: 6},
			Require: sandbox.TierContainer, Strict: true, KillOnOutput: true, MergeOutput: true, Labels: map[string]string{"l": "m"},
			Volumes: []sandbox.Volume{{Source: "/a", Target: "/b"}},
		},
		Options: executor.LanguageOptions{Commands: []string{"ls"}, ForbidImports: []string{"os"}, Release: true, Edition: "2021", Test: true,
			Setup: []string{"s.sql"}},
		Inputs: []executor.File{{Path: "in", Mode: 0o755, Data: []byte("\xff\x00")}, {Path: "later", Open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("text")), nil
		}}},
		Outputs: sandbox.Selection{Patterns: []string{"*.png"}},
		TTY:     &sandbox.TTY{Rows: 2, Cols: 3},
	}
	run, err := NewRun(&req)
	if err != nil {
		t.Fatal(err)
	}
	back, err := run.Request()
	if err != nil {
		t.Fatal(err)
	}
	req.Inputs[1] = executor.File{Path: "later", Data: []byte("text")}
	for i := range req.Inputs { // functions can not be compared
		req.Inputs[i].Open, back.Inputs[i].Open = nil, nil
	}
	if !reflect.DeepEqual(req, back) {
		t.Errorf("%+v\n%+v", req, back)
	}
	// A new field of a request must be added here, too.
	n := 0
	for f := range reflect.TypeFor[executor.Request]().Fields() {
		if f.IsExported() {
			n++
		}
	}
	if n != 31 { // Tests are those of pkg/tests

		t.Errorf("a request has %d fields", n)
	}
	if n := reflect.TypeFor[executor.Policy]().NumField(); n != 14 { // Bounds are a server's own
		t.Errorf("a policy has %d fields", n)
	}
}

func TestUnsendable(t *testing.T) {
	many := make([]executor.File, maxInlineFiles+1)
	for name, c := range map[string]struct {
		req   executor.Request
		field string
	}{
		"argument":  {executor.Request{Args: []string{"\xff"}}, "args"},
		"code":      {executor.Request{Code: "\xff"}, "code"},
		"variable":  {executor.Request{Env: map[string]string{"A": "\xff"}}, "env"},
		"name":      {executor.Request{Files: []executor.File{{Path: "\xff"}}}, "files"},
		"spill":     {executor.Request{Spill: &sandbox.Spill{}}, "spill"},
		"variables": {executor.Request{Variables: map[string]any{"a": 1}}, "template"},
		"compile":   {executor.Request{CompileLimits: sandbox.Limits{CPUs: 1}}, "compile-limits"},
		"outputs":   {executor.Request{Outputs: sandbox.Selection{MaxFiles: 1}}, "out"},
		"large files": {executor.Request{Inputs: []executor.File{{Path: "a", Data: make([]byte, MaxInline)}, {Path: "b", Data: []byte("x")}}},
			"in"},
		"many files": {executor.Request{Files: many}, "files"},
	} {
		_, err := NewRun(&c.req)
		var not *UnsendableError
		if !errors.As(err, &not) || not.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewRun(&executor.Request{Inputs: []executor.File{{Path: "a",
		Open: func() (io.ReadCloser, error) { return nil, errors.New("gone") }}}}); err == nil || err.Error() != "gone" {
		t.Error(err)
	}
}

// A problem has the kind and the text of the error that the executor would have returned.
func TestProblem(t *testing.T) {
	for code, kind := range map[string]error{
		wire.CodeInvalid: sandbox.ErrInvalid, wire.CodeRefused: sandbox.ErrRefused, wire.CodeCeiling: sandbox.ErrRefused,
		wire.CodeUnauthorized: sandbox.ErrRefused,
		wire.CodeNotFound:     sandbox.ErrNotFound, wire.CodeUnsupported: sandbox.ErrUnsupported, wire.CodeNotStarted: sandbox.ErrNotStarted,
		wire.CodeInternal: nil, wire.CodeBusy: nil, "new": nil,
	} {
		p := &Problem{wire.Problem{Code: code, Title: "title", Detail: "detail"}}
		for _, k := range []error{sandbox.ErrInvalid, sandbox.ErrRefused, sandbox.ErrNotFound, sandbox.ErrUnsupported, sandbox.ErrNotStarted,
			sandbox.ErrState} {
			if errors.Is(fmt.Errorf("x: %w", p), k) != (k == kind) { //nolint:errorlint // the very values
				t.Errorf("%s is %v", code, k)
			}
		}
	}
	p := &Problem{wire.Problem{Code: wire.CodeInvalid, Title: "t", Hint: "h",
		Errors: []wire.FieldError{{Field: "compile_memory", Message: "too much"}, {Field: "language", Message: "x"}}}}
	var e *sandbox.Error
	if !errors.As(error(p), &e) || e.Op != "compile-memory" || p.Error() != "compile-memory: too much; language: x; try: h" {
		t.Errorf("%v", p)
	}
	noKey := &Problem{wire.Problem{Code: wire.CodeUnauthorized, Detail: "d", Hint: "Authorization: Bearer TOKEN"}}
	if !strings.Contains(noKey.Error(), "; try: --server-key-file FILE") {
		t.Errorf("%v", noKey)
	}
	path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
		if r.URL.Path == wire.PathLanguages {
			_, _ = io.WriteString(w, `{"title":"busy","code":"busy","status":200}`)
			return
		}
		_, _ = io.WriteString(w, "<html>\x1b[2J")
	}))
	c := New(newUnix(t, path))
	_, err := c.Languages(t.Context())
	if !errors.As(err, &p) || p.Status != 503 || p.Wait() != 7*time.Second || !p.Temporary() || !strings.Contains(err.Error(), "again in 7s") {
		t.Error(err)
	}
	if _, err := c.Get(t.Context(), "x"); !errors.As(err, &p) || strings.Contains(err.Error(), "\x1b") ||
		!strings.Contains(err.Error(), "503") {
		t.Error(err)
	}
}

const resultLine = `{"seq":9,"time":"2026-01-01T00:00:00Z","kind":"result","result":{"success":true,"verdict":"ok","exit_code":0,` +
	`"stdout":"",` +
	`"stderr":"","limits":{},"isolation":{"backend":"b","tier":"container","controls":{},"missing":[]}}}` + "\n"

func line(seq int, text string) string {
	return fmt.Sprintf(`{"seq":%d,"time":"2026-01-01T00:00:00Z","kind":"stdout","data":%q}`+"\n", seq, text)
}

// Events reconnects after a lost connection and yields no event twice.
func TestEventsResume(t *testing.T) {
	var tries atomic.Int32
	path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := tries.Add(1); n {
		case 1:
			_, _ = io.WriteString(w, line(1, "a")+line(2, "b")+line(3, "c")[:20]) // cut off in the middle
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"title":"draining","code":"draining"}`)
		case 3:
			if r.URL.RawQuery != "from=3" {
				t.Errorf("asked for %q", r.URL.RawQuery)
			}
			_, _ = io.WriteString(w, line(2, "b")+line(3, "c")+`{"kind":"gap","from":4,"to":8}`+"\n\n"+resultLine)
		default:
			t.Error("asked again after the end")
		}
	}))
	got := ""
	for ev, err := range New(newUnix(t, path)).Events(t.Context(), "id", 0) {
		var gap *Gap
		switch {
		case errors.As(err, &gap):
			got += fmt.Sprintf("[%d-%d]", gap.From, gap.To)
		case err != nil:
			t.Fatal(err)
		case ev.Result != nil:
			got += "."
		default:
			got += string(ev.Data)
		}
	}
	if got != "abc[4-8]." {
		t.Error(got)
	}
}

// Every kind of broken stream ends with an error.
func TestStreamsEnd(t *testing.T) {
	for name, c := range map[string]struct{ body, says string }{
		"whole":          {line(1, "a") + resultLine, ""},
		"cut":            {line(1, "a"), "connection to the server was lost"},
		"half a result":  {resultLine[:100], "connection to the server was lost"},
		"not JSON":       {"<html>\n", "server event"},
		"no result":      {`{"seq":1,"kind":"result"}` + "\n", "has no result"},
		"a problem":      {`{"kind":"error","problem":{"title":"t","code":"refused"}}` + "\n", "t"},
		"deep":           {strings.Repeat("[", 100_000) + "\n", "server event"},
		"bad encoding":   {`{"seq":1,"kind":"stdout","data":"%","encoding":"base64"}` + "\n", "base64"},
		"wrong head":     {strings.Replace(resultLine, `"stdout":""`, `"stdout":"x","stdout_head_bytes":99,"stdout_dropped_bytes":5`, 1), "head"},
		"nothing at all": {"", "connection to the server was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.body) }))
			_, err := New(newUnix(t, path)).Run(t.Context(), &wire.Run{Code: "x"})
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Error(err)
			}
			n := 0
			for _, err := range New(newUnix(t, path)).Stream(t.Context(), &wire.Run{Code: "x"}) {
				if n++; n > 3 {
					t.Fatal("it does not end")
				}
				_ = err
			}
		})
	}
}
