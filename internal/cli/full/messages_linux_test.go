package full

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// commandLines are command lines that fail, as a user types them; arguments are separated by |. The texts are in testdata/messages.txt.
var commandLines = []string{
	// The program.
	"python", "python|hello.py", "hello", "helo.py", "missing.py", "no/such/dir/x.py", "frobnicate", "exce|ls", "empty.py",
	"binary.py", "unknown.xyz",
	"-c|print(1)", "-l|c|-c|x", "-l|pyhton|-c|1", "-l|python|-c|", "-c|1|hello.py", "-c|1|--file|hello.py", "project",
	"project|--entry|none.py", "-",
	// Flags and their values.
	"-c", "--timeout|-l|python|hello.py", "--memory|--strict|hello.py", "--timeout|0|hello.py", "--timeout|soon|hello.py",
	"--memory|lots|hello.py",
	"--memory|-1|hello.py", "--memory|1k|hello.py", "--pids|abc|hello.py", "--cpus|many|hello.py", "--memroy|1g|hello.py",
	"--frobnicate|hello.py",
	"--backend|foo|hello.py", "--network|host|hello.py", "--require|strong|hello.py", "--volume|data|hello.py", "--volume|/a:b|hello.py",
	"--in|none.csv|hello.py", "--workspace-cap|1g|hello.py", "--output|xml|hello.py", "--server|ftp://x|hello.py", "--env|=1|hello.py",
	"--server|http://127.0.0.1:1|-l|python|-c|1", "exec", "exec|--memory|1z|--|ls",
	// Policy.
	"hello.py", "--strict|hello.py", "exec|--|ls",
	// Subcommands of the full executable.
	"image|show", "image|inspect|none", "image|rm", "image|build|none", "key|create", "key|create|--name|x|--limits|memory=lots", "key|show",
	"key|show|none", "key|create|--name|x|--expires|yesterday", "key|create|--name|x|--scopes|all", "workspace|show|none", "workspace|rm",
	"audit|prune", "audit|query|--since|yesterday", "audit|tail|--lines|0", "audit|verify|x", "receipt|verify|none.json", "languages|x",
	"serve|--listen|nowhere", "serve|--max-memory|0", "serve|--config|none.yaml", "serve|--listen|0.0.0.0:0", "template|new",
	"completion|tcsh", "setup|x",
}

// thinCommandLines need sandbox-rund, which is not installed.
var thinCommandLines = []string{"serve", "--backend|docker|-l|python|-c|print(1)", "doctor|--attack"}

// badVariables are variables of the environment with values that no run accepts.
var badVariables = []string{"SANDBOX_RUN_TIMEOUT=never", "SANDBOX_RUN_MEMORY=0", "SANDBOX_RUN_LANG=cobol"}

// httpRequests are requests that fail: token, method, path and body.
var httpRequests = []struct{ token, method, path, body string }{
	{"", "POST", "/v1/run", `{"language":"python","code":"1"}`},
	{"none", "GET", "/v1/runs", ""},
	{"reader", "POST", "/v1/run", `{"language":"python","code":"1"}`},
	{"all", "GET", "/nope", ""},
	{"all", "DELETE", "/v1/run", ""},
	{"all", "POST", "/v1/run", ``},
	{"all", "POST", "/v1/run", `{`},
	{"all", "POST", "/v1/run", `[]`},
	{"all", "POST", "/v1/run", `{}`},
	{"all", "POST", "/v1/run", `{"code":"print(1)"}`},
	{"all", "POST", "/v1/run", `{"language":"c","code":"x"}`},
	{"all", "POST", "/v1/run", `{"language":"pyhton","code":"x"}`},
	{"all", "POST", "/v1/run", `{"code":"1","files":[{"path":"a.py","content":"1"}]}`},
	{"all", "POST", "/v1/run", `{"code":"1","memroy":"1g"}`},
	{"all", "POST", "/v1/run", `{"code":1}`},
	{"all", "POST", "/v1/run", `{"code":"1","code":"2"}`},
	{"all", "POST", "/v1/run", `{"code":"1","memory":"lots"}`},
	{"all", "POST", "/v1/run", `{"code":"1","memory":-1}`},
	{"all", "POST", "/v1/run", `{"code":"1","memory":1.5}`},
	{"all", "POST", "/v1/run", `{"code":"1","memory":"1000g"}`},
	{"all", "POST", "/v1/run", `{"code":"1","pids":"abc"}`},
	{"all", "POST", "/v1/run", `{"code":"1","pids":1.5}`},
	{"all", "POST", "/v1/run", `{"code":"1","cpus":"many"}`},
	{"all", "POST", "/v1/run", `{"code":"1","timeout":"soon"}`},
	{"all", "POST", "/v1/run", `{"code":"1","timeout":0,"memory":0}`},
	{"all", "POST", "/v1/run", `{"code":"1","network":"host"}`},
	{"all", "POST", "/v1/run", `{"code":"1","volumes":["data"]}`},
	{"all", "POST", "/v1/run", `{"code":"1","volumes":["/a:/b"]}`},
	{"all", "POST", "/v1/run", `{"code":"1","workspace":"w"}`},
	{"all", "POST", "/v1/run", `{"code":"1","workspace_cap":"1g"}`},
	{"all", "POST", "/v1/run", `{"code":"1","backend":"process"}`},
	{"all", "POST", "/v1/run", `{"code":"1","require":"process"}`},
	{"all", "POST", "/v1/run", `{"language":"act","code":"1","require":"microvm"}`},
	{"all", "POST", "/v1/run", `{"code":"1","pass_env":["HOME"]}`},
	{"all", "POST", "/v1/run", `{"code":"1","writable_root":true}`},
	{"all", "POST", "/v1/run", `{"code":"1","webhook":{"url":"https://example.com"}}`},
	{"all", "POST", "/v1/run", `{"language":"act","files":[{"path":"../x.act","content":"1"}]}`},
	{"all", "POST", "/v1/run", `{"files":[{"path":"a.py","content":"1"},{"path":"b.go","content":"1"}]}`},
	{"all", "POST", "/v1/run", `{"language":"act","entry":"none.act","files":[{"path":"a.act","content":"1"}]}`},
	{"all", "POST", "/v1/run", `{"language":"act","files":[{"path":"a.act","content":" "}]}`},
	{"all", "POST", "/v1/run", `{"language":"act","code":"1","args":["a\u0000b"]}`},
	{"all", "POST", "/v1/run", `{"language":"act","code":"1","gid":70000}`},
	{"all", "POST", "/v1/run", `{"template":"none"}`},
	{"all", "GET", "/v1/runs/none", ""},
	{"all", "DELETE", "/v1/runs/none", ""},
	{"all", "GET", "/v1/runs/none/events", ""},
	{"all", "GET", "/v1/runs?limit=many", ""},
	{"all", "GET", "/v1/runs?colour=red", ""},
	{"all", "GET", "/v1/files/none", ""},
	{"all", "GET", "/v1/health?check=well", ""},
	{"all", "GET", "/v1/run/ws", ""},
}

// TestMessages holds the texts of errors that users see in testdata/messages.txt, and checks the form of each.
func TestMessages(t *testing.T) {
	dir := enterTestDirectory(t)
	var all strings.Builder
	plain := strings.NewReplacer(dir, "$DIR")
	parts := fullParts()
	for _, line := range commandLines {
		checkCommand(t, &all, plain, &parts, line)
	}
	for _, line := range thinCommandLines {
		checkCommand(t, &all, plain, nil, line)
	}
	for _, variable := range badVariables {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
		all.WriteString(variable + "\n")
		checkCommand(t, &all, plain, &parts, "-c|1")
		t.Setenv(name, "")
	}
	handler := messageHandler(t)
	for _, r := range httpRequests {
		checkProblem(t, &all, handler, r.token, r.method, r.path, r.body)
	}
	compareMessages(t, all.String())
}

// enterTestDirectory makes the files of the command lines, and an environment in which their errors are the same everywhere: no server,
// no toolchain, no settings of the user, and the one backend that every machine has.
func enterTestDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"hello.py": "print(1)\n", "empty.py": " \n", "binary.py": "a\x00b", "unknown.xyz": "x\n", "project/a.py": "1\n", "project/b.py": "1\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "SANDBOX_RUN_") {
			t.Setenv(name, "")
		}
	}
	home := filepath.Join(dir, "home")
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, home)
	}
	t.Setenv("PATH", filepath.Join(dir, "none"))
	t.Setenv("SANDBOX_RUN_BACKEND", "process")
	t.Setenv("SANDBOX_RUN_SERVER", "never")
	t.Chdir(dir)
	return dir
}

// runCommand executes a command line in this process.
func runCommand(t *testing.T, parts *cli.Full, args []string) (stderr string, code int) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code = cli.Run(parts, args, cli.Streams{In: null, Out: out, Err: out})
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data), code
}

var (
	// commandForm is `sandbox-run: object: cause; next step`, in the first line.
	commandForm = regexp.MustCompile(`^sandbox-run: (.+?): (.+?); (try: .+|write it like .+|use one of .+|leave out .+|.*; try: .+)$`)
	fieldName   = regexp.MustCompile(`\b[a-z]+_[a-z_]+\b`)
	flagName    = regexp.MustCompile(`(^|[ "(])--?[a-z]`)
	machineSize = regexp.MustCompile(`…[0-9.]+ .iB, the memory`)
	otherNames  = regexp.MustCompile(`(?i)\bAPI[- ]token|access token|api secret|password|credential`)
)

// checkCommand writes what a command line that fails prints, and checks the form.
func checkCommand(t *testing.T, to *strings.Builder, plain *strings.Replacer, parts *cli.Full, line string) {
	t.Helper()
	args := strings.Split(line, "|")
	if strings.HasPrefix(line, "--server|http") { // the backend is the server's
		t.Setenv("SANDBOX_RUN_BACKEND", "")
		defer t.Setenv("SANDBOX_RUN_BACKEND", "process")
	}
	text, code := runCommand(t, parts, args)
	text = machineSize.ReplaceAllString(plain.Replace(text), "…$$MEMORY, the memory")
	if head, details, found := strings.Cut(text, "\n      "); found && code == 126 { // the details of a refusal are the machine's
		text = head + "\n      …\n"
		if !strings.Contains(details, "fix: ") {
			t.Errorf("sandbox-run %s: no fix in %s", line, details)
		}
	}
	fmt.Fprintf(to, "$ sandbox-run %s\n%s[%d]\n\n", sandbox.ShellQuote(args...), text, code)
	first, _, _ := strings.Cut(text, "\n")
	switch {
	case code == 0:
		t.Errorf("sandbox-run %s: it succeeded", line)
	case !commandForm.MatchString(first):
		t.Errorf("sandbox-run %s: not of the form object: cause; next step: %s", line, text)
	case fieldName.MatchString(first):
		t.Errorf("sandbox-run %s: it names a field instead of a flag: %s", line, first)
	}
	checkWords(t, line, text)
}

// checkWords checks what holds for every message.
func checkWords(t *testing.T, of, text string) {
	t.Helper()
	if otherNames.MatchString(text) {
		t.Errorf("%s: an API credential is a key, and its secret a token: %s", of, text)
	}
	for _, word := range strings.Split(text, ": ") {
		if strings.Contains(text, word+": "+word+": ") {
			t.Errorf("%s: %q is doubled: %s", of, word, text)
		}
	}
	if len(strings.SplitN(text, "\n", 2)[0]) > 330 {
		t.Errorf("%s: the first line has %d bytes: %s", of, len(text), text)
	}
}

// messageHandler is the HTTP API with three keys, over a fake backend.
func messageHandler(t *testing.T) http.Handler {
	t.Helper()
	file := filepath.Join(t.TempDir(), "languages.yaml")
	const act = "languages:\n  - name: act\n    extensions: [.act]\n    run: [/bin/sh, '{file}']\n"
	if err := os.WriteFile(file, []byte(act), 0o600); err != nil {
		t.Fatal(err)
	}
	languages, err := executor.LoadLanguages(file)
	if err != nil {
		t.Fatal(err)
	}
	manager := sandbox.NewManager(conformance.NewFake(nil), sandbox.Options{})
	engine := executor.New(manager, executor.Options{Languages: languages, WarmDir: t.TempDir()})
	s, err := api.New(api.Options{Executor: engine, Log: slog.New(slog.DiscardHandler), Version: "test", Auth: testKeys{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := manager.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Handler()
}

// testKeys has the tokens all and reader.
type testKeys struct{}

func (testKeys) Authenticate(_ context.Context, token string) (*api.Principal, error) {
	switch token {
	case "all":
		return &api.Principal{ID: token, Name: token}, nil
	case "reader":
		return &api.Principal{ID: token, Name: token, Scopes: []string{api.ScopeRead}}, nil
	}
	return nil, api.ErrUnauthorized
}

// checkProblem writes the problem that a request gets, and checks the form.
func checkProblem(t *testing.T, to *strings.Builder, handler http.Handler, token, method, path, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" || method == http.MethodPost {
		r.Header.Set("Content-Type", wire.TypeJSON)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	of := method + " " + path + " " + body
	var p wire.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code < 400 {
		t.Errorf("%s: %d, not a problem: %s", of, w.Code, w.Body)
		return
	}
	fmt.Fprintf(to, "> %s\n%d %s: %s\n", strings.TrimSpace(token+" "+of), p.Status, p.Code, p.Detail)
	for _, e := range p.Errors {
		if e.Field+": "+e.Message != p.Detail {
			fmt.Fprintf(to, "  field %s: %s\n", e.Field, e.Message)
		}
	}
	fmt.Fprintf(to, "  hint: %s\n\n", p.Hint)
	switch text := p.Detail + "\n" + p.Hint; {
	case !strings.Contains(p.Detail, ": "):
		t.Errorf("%s: not of the form object: cause: %s", of, p.Detail)
	case p.Hint == "" && p.RetryAfter == 0:
		t.Errorf("%s: no next step: %s", of, p.Detail)
	case flagName.MatchString(text):
		t.Errorf("%s: it names a flag instead of a field: %s", of, text)
	}
	checkWords(t, of, p.Detail)
}

// compareMessages compares the texts with the golden file.
func compareMessages(t *testing.T, got string) {
	t.Helper()
	const golden = "messages.txt"
	path := filepath.Join(goldenDir, golden)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			t.Fatalf("line %d of %s (-update writes it):\n got %s\nwant %s", i+1, path, gotLines[i], wantLines[i])
		}
	}
	if !bytes.Equal([]byte(got), want) {
		t.Fatalf("%s has %d lines, not %d (-update writes it)", path, len(wantLines), len(gotLines))
	}
}

// goldenDir is absolute: the test changes its directory.
var goldenDir = func() string {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		panic(err)
	}
	return dir
}()
