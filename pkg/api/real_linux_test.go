package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// realParts are a real executor over the native backend.
type realParts struct {
	once    sync.Once
	err     error
	dir     string
	backend *native.Backend
	manager *sandbox.Manager
	engine  *executor.Executor
}

var real realParts

func (p *realParts) make() {
	if p.dir, p.err = os.MkdirTemp("/var/tmp", "api-test-"); p.err != nil {
		return
	}
	if p.backend, p.err = native.New(native.Options{CacheDir: filepath.Join(p.dir, "disks")}); p.err != nil {
		return
	}
	var kit string
	if kit, p.err = kitpath.Find(); p.err != nil {
		return
	}
	p.manager = sandbox.NewManager(p.backend, sandbox.Options{})
	p.engine = executor.New(p.manager, executor.Options{
		Toolchains: &toolchain.Finder{Store: filepath.Join(p.dir, "toolchains")}, Cache: &executor.Cache{Dir: filepath.Join(p.dir, "compiled")},
		Kit: kit, WarmDir: filepath.Join(p.dir, "warm"),
	})
}

func closeReal() {
	if real.manager != nil {
		if err := errors.Join(real.manager.Close(), real.backend.Close()); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
		}
	}
	if real.dir != "" {
		_ = os.RemoveAll(real.dir)
	}
}

// newRealServer serves over real sandboxes.
func newRealServer(t testing.TB, change ...func(*Options)) *testServer {
	t.Helper()
	testenv.NeedRoot(t)
	real.once.Do(real.make)
	if real.err != nil {
		t.Fatal(real.err)
	}
	w := &testServer{t: t, engine: real.engine}
	w.open(change...)
	return w
}

func shell(code string, fields ...string) string {
	return fmt.Sprintf(`{"language":"shell","code":%s%s}`, quote(code), strings.Join(append([]string{""}, fields...), ","))
}

func TestRealRun(t *testing.T) {
	w := newRealServer(t)
	r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, shell("cat; id -u; printf '\\377'; exit 7", `"stdin":"in\n"`)))
	if err != nil || string(r.Stdout.Bytes()) != "in\n1000\n\xff" || r.Exit.Code != 7 || r.Isolation.Tier != sandbox.TierContainer ||
		r.Isolation.Backend != "native" {
		t.Errorf("%v: %+v", err, r)
	}
	var h wire.Health
	decode(t, w.ask(200, "GET", wire.PathHealth+"?deep=1", ""), &h)
	if h.Deep == nil || !h.Deep.OK || h.Deep.Tier != "container" {
		t.Errorf("%+v", h.Deep)
	}
}

// TestRealFiles: a file is uploaded, copied in, copied out and downloaded.
func TestRealFiles(t *testing.T) {
	w := newRealServer(t)
	w.ask(201, "PUT", wire.PathFiles+"/data", "\x00\xff uploaded")
	var info wire.RunInfo
	decode(t, w.ask(202, "POST", wire.PathRuns, shell("mkdir copy; cp data.txt copy/out.bin",
		`"in":[{"path":"data.txt","id":"data"}],"out":["copy/*"]`)), &info)
	w.waitForEnd(info.ID)
	if b := w.ask(200, "GET", wire.PathRuns+"/"+info.ID+"/files/copy/out.bin", ""); string(b) != "\x00\xff uploaded" {
		t.Errorf("%q", b)
	}
}

// TestRealSocket: a real program gets input, signals and terminal sizes.
func TestRealSocket(t *testing.T) {
	w := newRealServer(t)
	var info wire.RunInfo
	decode(t, w.ask(202, "POST", wire.PathRuns, shell(`trap 'echo got it; exit 4' USR1; read line; echo "line: $line"; while :; do sleep `+
		`0.05; done`, `"interactive":true,"timeout":"60s"`)), &info)
	c := w.dial(info.ID, "")
	c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "hello\n"})
	c.readUntil(func() bool { return strings.Contains(c.out, "line: hello") })
	c.sendMessage(wire.Message{Type: wire.MessageSignal, Signal: "SIGUSR1"})
	c.readUntil(nil)
	if c.last.Result == nil || c.last.Result.Exit.Code != 4 || !strings.Contains(c.out, "got it") {
		t.Errorf("%q, %+v", c.out, c.last.Result)
	}
	// The program itself waits for its terminal size, because only it can see the change.
	decode(t, w.ask(202, "POST", wire.PathRuns, shell(`until test "$(stty size)" = "33 111"; do sleep 0.05; done; read x; stty size; echo `+
		`"x=$x"`, `"interactive":true,"timeout":"60s","tty":{"rows":24,"cols":80}`)), &info)
	c = w.dial(info.ID, "")
	c.readUntil(func() bool { return c.last.Seq > 0 })
	c.sendMessage(wire.Message{Type: wire.MessageResize, Rows: 33, Cols: 111})
	c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "typed\r"})
	c.readUntil(nil)
	if !strings.Contains(c.out, "33 111") || !strings.Contains(c.out, "x=typed") {
		t.Errorf("%q", c.out)
	}
}

// TestRealVanish: a client that disconnects leaves no process.
func TestRealVanish(t *testing.T) {
	w := newRealServer(t)
	mark := "vanish" + NewID()[:8]
	ctx, vanish := context.WithCancel(t.Context())
	defer vanish()
	over := make(chan struct{})
	go func() {
		defer close(over)
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://server"+wire.PathRun,
			strings.NewReader(shell("exec -a "+mark+" sleep 250", `"timeout":"280s"`)))
		r.Header.Set("Content-Type", wire.TypeJSON)
		if answer, err := w.client.Do(r); err == nil {
			answer.Body.Close()
		}
	}()
	eventually(t, "it runs", func() bool { return processes(mark) == 1 })
	vanish()
	<-over
	eventually(t, "no process is left", func() bool { return processes(mark) == 0 })
	eventually(t, "no sandbox is left", func() bool { return len(real.manager.List()) == 0 })
}

// processes counts the processes of this machine whose command line contains a text.
func processes(mark string) (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.HasPrefix(string(line), mark) {
			n++
		}
	}
	return n
}

// The victim is a server in a process of its own, which the test kills.
const (
	victimVariable = "SANDBOX_RUN_TEST_VICTIM"
	victimSocket   = "SANDBOX_RUN_TEST_VICTIM_SOCKET"
)

func victim() {
	real.make()
	if real.err == nil {
		var s *Server
		if s, real.err = New(Options{
			Executor: real.engine, Dir: os.Getenv(victimVariable), Keep: Keep{Memory: 1}, Sessions: &SessionOptions{Executor: real.engine},
		}); real.err == nil {
			var l net.Listener
			if l, real.err = net.Listen("unix", os.Getenv(victimSocket)); real.err == nil {
				_, _ = os.Stdout.WriteString("ready " + real.dir + "\n")
				real.err = http.Serve(l, s.Handler())
			}
		}
	}
	_, _ = os.Stderr.WriteString(real.err.Error() + "\n")
	os.Exit(1)
}

// TestKilled (W6): after SIGKILL under load, reported results are still there, running runs are reported as lost, and no process is left.
func TestKilled(t *testing.T) {
	w := newRealServer(t) // skips without root
	dir := filepath.Join(t.TempDir(), "state")
	short, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	socket := filepath.Join(short, "s")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), victimVariable+"="+dir, victimSocket+"="+socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	ready, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(strings.TrimSpace(strings.TrimPrefix(ready, "ready ")))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	other := &testServer{t: t, client: &http.Client{Transport: transport}}

	mark := "killed" + NewID()[:8]
	var done, under wire.RunInfo
	decode(t, other.ask(202, "POST", wire.PathRuns, shell("echo kept")), &done)
	decode(t, other.ask(202, "POST", wire.PathRuns, shell("echo seen; exec -a "+mark+" sleep 250", `"timeout":"280s"`)), &under)
	s := other.session("python")
	s.execute("import subprocess; p = subprocess.Popen(['bash', '-c', 'exec -a " + mark + "s sleep 250'])")
	done = other.waitForEnd(done.ID)
	eventually(t, "both run", func() bool { return processes(mark) == 2 })
	eventually(t, "it has said something", func() bool { return other.info(under.ID).Events.Last >= 2 })
	events := other.ask(200, "GET", wire.PathRuns+"/"+done.ID+"/events", "")
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "no process is left", func() bool { return processes(mark) == 0 })

	w.open(func(o *Options) { o.Dir, o.Sessions = dir, &SessionOptions{Executor: real.engine} })
	// Nothing of a session is left.
	w.problem(404, "GET", s.path(""), "")
	w.problem(404, "GET", s.path("/cells/1"), "")
	again := w.info(done.ID)
	if again.State != wire.StateDone || string(again.Result) != string(done.Result) {
		t.Errorf("%+v", again)
	}
	if b := w.ask(200, "GET", wire.PathRuns+"/"+done.ID+"/events", ""); string(b) != string(events) {
		t.Errorf("other events:\n%s%s", events, b)
	}
	lost := w.info(under.ID)
	if lost.State != wire.StateLost || lost.Error == nil || lost.Error.Code != wire.CodeLost {
		t.Errorf("%+v", lost)
	}
	if b := w.ask(200, "GET", wire.PathRuns+"/"+under.ID+"/events", ""); !strings.Contains(string(b), "seen") ||
		!strings.Contains(string(b), wire.CodeLost) {
		t.Errorf("%s", b)
	}
}

// TestRealWorkspace: a workspace of the server survives the run, is each principal's own, and has a cap.
func TestRealWorkspace(t *testing.T) {
	store := t.TempDir()
	w := newRealServer(t, func(o *Options) {
		o.Policy.Workspaces, o.Policy.WorkspaceStore = true, store
		o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}}
		o.Policy.MostWorkspaces = workspace.Most{Workspaces: 2, Bytes: 1100 * sandbox.MiB}
	})
	run := func(token, code string, fields ...string) *executor.Result {
		t.Helper()
		w.token = token
		r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, shell(code, append(fields, `"workspace":"mine"`)...)))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	run("a", "cat in.txt > kept.txt", `"in":[{"path":"in.txt","content":"of a"}]`)
	if r := run("a", "cat kept.txt"); string(r.Stdout.Bytes()) != "of a" {
		t.Errorf("%s%s", r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	if r := run("b", "cat kept.txt"); r.Verdict != sandbox.VerdictNonzeroExit {
		t.Errorf("b sees a's: %s", r.Stdout.Bytes())
	}
	r := run("a", "head -c 20000000 /dev/zero > big; sleep 30", `"workspace_cap":"1MiB"`, `"timeout":"60s"`)
	if r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%+v", r.Result.Verdict)
	}
	// Number and size of each principal's workspaces are bounded.
	w.token = "b" // has one of 1 GiB
	for field, want := range map[string]string{`"workspace":"large","workspace_cap":"100MiB"`: "workspace_cap",
		`"workspace":"mine","workspace_cap":"2GiB"`: "workspace_cap"} {
		if p := w.problem(403, "POST", wire.PathRun, shell("true", field)); p.Code != wire.CodeCeiling || len(p.Errors) != 1 ||
			p.Errors[0].Field != want || !strings.Contains(p.Detail, "1.07 GiB") {
			t.Errorf("%s: %+v", field, p)
		}
	}
	w.ask(200, "POST", wire.PathRun, shell("true", `"workspace":"small"`, `"workspace_cap":"10MiB"`))
	if p := w.problem(403, "POST", wire.PathRun, shell("true", `"workspace":"third"`, `"workspace_cap":"1MiB"`)); p.Code != wire.CodeCeiling ||
		len(p.Errors) != 1 || p.Errors[0].Field != "workspace" {
		t.Errorf("%+v", p)
	}
	run("b", "true") // those that are there are
	w.token = "a"    // and so are the other's
	w.ask(200, "POST", wire.PathRun, shell("true", `"workspace":"more"`, `"workspace_cap":"10MiB"`))
	for _, left := range []string{".third.lock", ".large.lock"} {
		if found, _ := filepath.Glob(filepath.Join(store, "*", left)); len(found) > 0 {
			t.Errorf("what was refused has left %v", found)
		}
	}
}

// TestRealExact compares the stream with the executor's own events for a real program.
func TestRealExact(t *testing.T) {
	w := newRealServer(t)
	code := `for i in 1 2 3; do printf 'line %s \377\n' $i; echo err >&2; done; head -c 300000 /dev/zero | tr '\0' 'x'`
	collect := func(events []executor.Event) (out, kinds string) {
		for i, ev := range events {
			if ev.Seq != uint64(i+1) {
				t.Fatalf("event %d has the number %d", i+1, ev.Seq)
			}
			if ev.Kind == sandbox.EventStdout {
				out += string(ev.Data)
			}
		}
		return out, string(events[len(events)-1].Kind)
	}
	var direct, served []executor.Event
	for ev, err := range w.engine.Stream(t.Context(), executor.Request{Language: "shell", Code: code}) {
		if err != nil {
			t.Fatal(err)
		}
		direct = append(direct, ev)
	}
	answer := w.request("POST", wire.PathRun, shell(code), "Accept", wire.TypeNDJSON)
	defer answer.Body.Close()
	for _, line := range lines(t, answer.Body) {
		ev, err := wire.DecodeEvent(line)
		if err != nil {
			t.Fatal(err)
		}
		served = append(served, ev)
	}
	wantOut, wantLast := collect(direct)
	gotOut, gotLast := collect(served)
	if gotOut != wantOut || gotLast != wantLast || len(wantOut) < 300_000 {
		t.Errorf("%d bytes and %s, not %d and %s", len(gotOut), gotLast, len(wantOut), wantLast)
	}
}
