package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// Calls that no tool can serve are answered with the reason, and the server goes on.
func TestMCPBadCalls(t *testing.T) {
	a, _ := streamAgent(t, "", nil)
	for _, c := range []struct {
		tool string
		in   args
		text string
	}{
		{"run_code", args{"language": "python"}, "code"},
		{"run_code", args{"language": "python", "code": 1}, "code"},
		{"run_code", args{"language": "cobol", "code": "x"}, "cobol"},
		{"run_code", args{"language": "python", "code": "x", "more": 1}, "more"},
		{"run_code", args{"language": "python", "code": "x", "timeout": -1}, "timeout"},
		{"run_code", args{"language": "python", "code": "x", "timeout": 1e300}, "timeout"},
		{"run_code", args{"language": "python", "code": "x", "timeout": 1e6}, "ceiling"},
		{"run_code", args{"language": "python", "code": "x", "memory": "much"}, "memory"},
		{"run_code", args{"language": "python", "code": "x", "network": "sometimes"}, "network"},
		{"run_code", args{"language": "python", "code": "x", "verbosity": "loud"}, "verbosity"},
		{"run_code", args{"language": "python", "code": "x", "allow_hosts": []string{"example.com"}}, "ceiling"},
		{"run_code", args{"language": "python", "code": "x", "packages": []string{"requests"}}, ""},
		{"run_project", args{"files": []args{{"path": "../x.py", "content": "1"}}}, "../x.py"},
		{"run_project", args{"files": []args{}}, ""},
		{"check_code", args{"language": "sql", "code": "SELECT 1"}, "can not be checked"},
		{"check_code", args{}, ""},
		{"get_output", args{"run": ""}, ""},
		{"get_output", args{"run": "../../keys"}, "not_found"},
		{"get_output", args{"run": "0123456789abcdef0123456789abcdef"}, "not_found"},
		{"get_output", args{"run": "a/b/c"}, "not_found"},
		{"get_output", args{"run": "x", "offset": -1}, "offset"},
		{"cancel_run", args{"run": "none"}, "not_found"},
		{"explain_error", args{"run": "none"}, "not_found"},
		{"session_create", args{"language": "cobol"}, "cobol"},
		{"session_run", args{"session": "none", "code": "1"}, "not_found"},
		{"session_run", args{"session": "", "code": "1"}, ""},
		{"session_interrupt", args{"session": "none"}, "not_found"},
		{"session_fork", args{"session": "none"}, "not_found"},
		{"session_close", args{"session": "none"}, "not_found"},
		{"files_list", args{"session": "none"}, "not_found"},
		{"files_read", args{"session": "none", "path": "x"}, "not_found"},
		{"files_write", args{"session": "none", "path": "x", "content": ""}, "not_found"},
		{"install_packages", args{"session": "none", "packages": []string{"x"}}, "not_found"},
	} {
		a.bad(c.tool, c.in, c.text)
	}
	for _, uri := range []string{
		"sandbox-run://runs/none", "sandbox-run://runs/", "sandbox-run://runs/%2e%2e/stdout", "sandbox-run://sessions/none", "file:///etc/passwd",
		"sandbox-run://sessions/none/files/x", "sandbox-run://sessions/none/cells/1",
	} {
		if r, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s: %+v", uri, r)
		}
	}
	if _, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "none"}); err == nil {
		t.Error("there is a tool none")
	}
	a.contains(a.good("run_code", args{"language": "shell", "code": "echo still here"}), "still here")
}

// What programs print does not reach the client's terminal as it is, and is not larger than asked for.
func TestMCPHostileOutput(t *testing.T) {
	a, _ := streamAgent(t, "", nil)
	got := a.good("run_code", args{
		"language": "shell", "code": `printf '\033]0;title\007\033[2J a\rb \377\376 \342\200\256x\n' | tee /workspace/out.txt; printf '\033[31m' >&2; exit 3`,
		"out": []string{"out.txt"},
	})
	a.contains(got, `\x1b]0;title\x07\x1b[2J a\x0db`, "\uFFFD", `\u202ex`, `\x1b[31m`)
	if strings.ContainsAny(got.text, "\x1b\x07\r\u202e") {
		t.Errorf("%q", got.text)
	}
	part := a.good("get_output", args{"run": got.id("run"), "encoding": "base64"})
	data, err := base64.StdEncoding.DecodeString(part.data["text"].(string))
	must(t, err)
	if want := "\x1b]0;title\a\x1b[2J a\rb \xff\xfe \u202ex\n"; string(data) != want {
		t.Errorf("%q", data)
	}
	r, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: got.id("uri") + "/stdout"})
	must(t, err)
	if !bytes.Equal(r.Contents[0].Blob, data) {
		t.Errorf("%+v", r.Contents[0])
	}

	got = a.good("run_code", args{"language": "shell", "code": "head -c 50000000 /dev/zero | tr '\\0' 'ä'", "timeout": 60})
	if len(got.text) > 10_000 {
		t.Errorf("%d bytes of text", len(got.text))
	}
	a.contains(got, "bytes left out", "violation output_limit", "output_limit")
	part = a.good("get_output", args{"run": got.id("run"), "offset": 20_000_000, "length": 10})
	if part.data["missing"] == nil || part.data["bytes"] != 5e7 {
		t.Errorf("%v", part.data)
	}
	got = a.good("run_code", args{"language": "python", "code": "raise ValueError('\\x1b[31m' + 'x' * 100000)"})
	if strings.Contains(got.text, "\x1b") || len(got.text) > 10_000 {
		t.Errorf("%d %.200q", len(got.text), got.text)
	}
}

// awaitRunning waits until that many runs are under way.
func (s *observedServer) awaitRunning(n int) {
	s.t.Helper()
	want := fmt.Sprintf("\"running\":%d", n)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, _, text := s.ask(http.MethodGet, wire.PathHealth, "")
		if strings.Contains(text, want) || n == 0 && !strings.Contains(text, `"running":`) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("no %s in %s", want, text)
		}
	}
}

// A cancelled call, and a client that hangs up, end the run in every revision; sessions stay.
func TestMCPHangUp(t *testing.T) {
	s := startObserved(t)
	for _, revision := range revisions {
		a := s.agent(revision, s.token, nil)
		made := a.good("session_create", args{"language": "python"})
		a.good("session_run", args{"session": made.id("session"), "code": "x = 7"})
		for _, call := range []struct {
			tool string
			in   args
		}{
			{"run_code", args{"language": "shell", "code": "sleep 1000", "timeout": 200}},
			{"session_run", args{"session": made.id("session"), "code": "import time; time.sleep(1000)", "timeout": 200}},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() {
				_, err := a.ask(ctx, call.tool, call.in)
				over <- err
			}()
			s.awaitRunning(1)
			cancel()
			if err := <-over; err == nil {
				t.Errorf("%s: an answer to a cancelled call", call.tool)
			}
			s.awaitRunning(0)
		}
		a.contains(a.good("session_run", args{"session": made.id("session"), "code": "x"}), "value: 7")
	}
}

// A client that only closes its connection, without a word of the protocol, has hung up, too.
func TestMCPLostConnection(t *testing.T) {
	s := startObserved(t)
	for _, revision := range revisions {
		ctx, cancel := context.WithCancel(t.Context())
		r := s.mcpRequest(s.token).WithContext(ctx)
		r.Header.Set("Mcp-Protocol-Version", revision)
		r.Header.Set("Mcp-Method", "tools/call")
		r.Header.Set("Mcp-Name", "run_code")
		r.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code",
			"arguments":{"language":"shell","code":"sleep 1000","timeout":200},"_meta":{"io.modelcontextprotocol/protocolVersion":"` + revision +
			`","io.modelcontextprotocol/clientCapabilities":{}}}}`))
		r.ContentLength = -1
		over := make(chan error, 1)
		go func() {
			answer, err := s.client.Do(r)
			if err == nil {
				_, err = io.ReadAll(answer.Body)
				_ = answer.Body.Close()
			}
			over <- err
		}()
		s.awaitRunning(1)
		cancel()
		if err := <-over; err == nil {
			t.Error("a whole answer")
		}
		s.awaitRunning(0)
	}
}

// Over streams, a cancelled call ends its run, and the end of the input ends runs, sessions and the server.
func TestMCPEndOfInput(t *testing.T) {
	for _, revision := range revisions {
		a, stop := streamAgent(t, revision, nil)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			_, err := a.ask(ctx, "run_code", args{"language": "shell", "code": "sleep 1000", "timeout": 200})
			over <- err
		}()
		time.AfterFunc(300*time.Millisecond, cancel) // at any time, before or after its begin
		if err := <-over; err == nil {
			t.Error("an answer to a cancelled call")
		}
		a.good("session_create", args{"language": "python"})
		a.good("run_code", args{"language": "shell", "code": "sleep 1000", "timeout": 200, "wait": false})
		stop() // waits until everything has ended
	}
}

// Progress has the handle of the run, so that a client can cancel it with a tool.
func TestMCPProgress(t *testing.T) {
	s := startObserved(t)
	for _, revision := range revisions {
		handles := make(chan string, 100)
		a := s.agent(revision, s.token, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				if _, id, ok := strings.Cut(r.Params.Message, "run="); ok {
					handles <- id
				}
			},
		})
		over := make(chan answered, 1)
		go func() {
			p := &mcp.CallToolParams{Name: "run_code", Arguments: args{"language": "shell", "code": "sleep 1000", "timeout": 200}}
			p.SetProgressToken("token")
			r, err := a.CallTool(t.Context(), p)
			if err != nil {
				t.Error(err)
			}
			got := answered{CallToolResult: r}
			over <- got
		}()
		first, second := <-handles, <-handles // the second one comes while it runs
		if first != second {
			t.Errorf("%s, %s", first, second)
		}
		a.good("cancel_run", args{"run": first})
		if got := <-over; got.CallToolResult == nil {
			t.Error("no answer to a run that was cancelled")
		}
	}
}

func TestMCPManyAtATime(t *testing.T) {
	s := startObserved(t)
	a := s.agent("", s.token, nil)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			got, err := a.ask(t.Context(), "run_code", args{"language": "shell", "code": fmt.Sprintf("echo number $((%d * 2))", i)})
			if err != nil || got.IsError || !strings.Contains(got.text, fmt.Sprintf("number %d\n", i*2)) {
				t.Errorf("%d: %v %q", i, err, got.text)
			}
		})
	}
	all.Wait()
}

// One key's sessions, runs and outputs are invisible to another key, and a key without the scope has no tools.
func TestMCPKeys(t *testing.T) {
	s := startObserved(t)
	store, err := key.Open(filepath.Join(s.dir, "keys.json"))
	must(t, err)
	_, other, err := store.Create(t.Context(), key.New{Name: "other", Scopes: []string{"run"}})
	must(t, err)
	_, reader, err := store.Create(t.Context(), key.New{Name: "reader", Scopes: []string{"read"}})
	must(t, err)
	a := s.agent("", s.token, nil)
	var b *agent
	for end := time.Now().Add(patience); b == nil; time.Sleep(50 * time.Millisecond) { // until the server has read the new key
		r, err := s.client.Do(s.mcpRequest(other))
		must(t, err)
		_ = r.Body.Close()
		if r.StatusCode == http.StatusOK {
			b = s.agent("", other, nil)
		} else if time.Now().After(end) {
			t.Fatal(r.Status)
		}
	}
	run := a.good("run_code", args{"language": "shell", "code": "echo secret"})
	made := a.good("session_create", args{"language": "python", "name": "mine"})
	a.good("session_run", args{"session": "mine", "code": "print('secret')"})
	unknown := b.call("get_output", args{"run": strings.Repeat("0", 32)}).text
	for _, handle := range []string{run.id("run"), made.id("session") + "/1", "mine/1"} {
		for _, tool := range []string{"get_output", "cancel_run", "explain_error"} {
			b.bad(tool, args{"run": handle}, "not_found")
		}
		if r, err := b.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox-run://runs/" + handle}); err == nil {
			t.Errorf("%+v", r)
		}
	}
	foreign := b.call("get_output", args{"run": run.id("run")}).text
	if strings.ReplaceAll(foreign, run.id("run"), "") != strings.ReplaceAll(unknown, strings.Repeat("0", 32), "") {
		t.Errorf("%q, %q", foreign, unknown)
	}
	for _, session := range []string{made.id("session"), "mine"} {
		for tool, in := range map[string]args{
			"session_run": {"code": "1"}, "session_interrupt": {}, "session_fork": {}, "session_close": {}, "files_list": {},
			"files_read": {"path": "x"}, "files_write": {"path": "x", "content": ""}, "install_packages": {"packages": []string{"x"}},
		} {
			in["session"] = session
			b.bad(tool, in, "not_found")
		}
		if r, err := b.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox-run://sessions/" + session}); err == nil {
			t.Errorf("%+v", r)
		}
	}
	a.contains(a.good("get_output", args{"run": run.id("run")}), "secret")
	for token, status := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, reader: http.StatusForbidden} {
		r, err := s.client.Do(s.mcpRequest(token))
		must(t, err)
		_ = r.Body.Close()
		if r.StatusCode != status {
			t.Errorf("%s instead of %d", r.Status, status)
		}
	}
}

// mcpRequest is a request for the list of tools.
func (s *observedServer) mcpRequest(token string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://server/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	must(s.t, err)
	r.Header.Set("Content-Type", wire.TypeJSON)
	r.Header.Set("Accept", wire.TypeJSON+", "+wire.TypeSSE)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}
