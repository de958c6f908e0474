package cli

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// fakeServer has the version and the environment digest of this command, or others, and sends the messages of a test.
type fakeServer struct {
	socket string

	mu       sync.Mutex
	messages []string // the first message of each connection
}

func (i *fakeServer) received() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.messages)
}

// ownVersion returns the version of the executable under test.
func ownVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(binary(t), "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), CommandName+" ")
}

func newFakeServer(t *testing.T, header map[string]string, talk func(context.Context, *websocket.Conn)) *fakeServer {
	t.Helper()
	needRoot(t)
	i := &fakeServer{socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", i.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderVersion, ownVersion(t))
		w.Header().Set(app.EnvironmentHeader, app.EnvironmentDigest(filepath.Join(binDir, fullName)))
		for name, value := range header {
			w.Header().Set(name, value)
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		_, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		i.mu.Lock()
		i.messages = append(i.messages, string(message))
		i.mu.Unlock()
		talk(r.Context(), c)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	t.Setenv(wire.SocketVariable, i.socket)
	return i
}

// sendMessages returns a function that sends messages and then waits until the client disconnects.
func sendMessages(messages ...string) func(context.Context, *websocket.Conn) {
	return func(ctx context.Context, c *websocket.Conn) {
		for _, m := range messages {
			if c.Write(ctx, websocket.MessageText, []byte(m)) != nil {
				return
			}
		}
		_, _, _ = c.Read(ctx)
	}
}

const (
	phaseEvent = `{"seq":1,"time":"2026-01-01T00:00:00Z","kind":"phase","phase":"run"}`
	weakReady  = `{"kind":"ready","run":"x","language":"python","language_version":"3",` +
		`"isolation":{"backend":"process","tier":"process","controls":{},"missing":[]}}`
	goodReady = `{"kind":"ready","run":"x","language":"python","language_version":"3",` +
		`"isolation":{"backend":"native","tier":"container","controls":{},"missing":[]}}`
	weakResult = `{"seq":2,"time":"2026-01-01T00:00:00Z","kind":"result","result":{"success":true,"verdict":"ok","exit_code":0,` +
		`"stdout":"","stderr":"","limits":{},"isolation":{"backend":"process","tier":"process","controls":{},"missing":[]},` +
		`"violations":[],"language":"python","language_version":"3","phases":[],"files":[]}}`
)

// A server of another version or environment digest gets no request.
func TestServerOfOtherVersion(t *testing.T) {
	if _, ok := debug.ReadBuildInfo(); !ok {
		t.Skip("needs build information")
	}
	for name, header := range map[string]map[string]string{
		"other version": {wire.HeaderVersion: "v0.0.1"}, "no version": {wire.HeaderVersion: ""}, "other world": {app.EnvironmentHeader: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newFakeServer(t, header, sendMessages())
			if got := runCommandIn(t, t.TempDir(), "", "-l", "python", "-c", "print(1)"); got != (commandResult{"1\n", "", 0}) || i.received() != 0 {
				t.Errorf("%+v, and it was told %d times", got, i.received())
			}
			if name == "other world" { // a server that --server names may have another environment
				return
			}
			got := runCommandIn(t, t.TempDir(), "", "--server", "unix://"+i.socket, "-l", "python", "-c", "print(1)")
			if got.code != codeOurs || got.stdout != "" || !strings.Contains(got.stderr, "it is version") || i.received() != 0 {
				t.Errorf("%+v, and it was told %d times", got, i.received())
			}
		})
	}
	t.Run("control", func(t *testing.T) {
		i := newFakeServer(t, nil, sendMessages(goodReady, phaseEvent, strings.ReplaceAll(weakResult, `"tier":"process"`, `"tier":"container"`)))
		if got := runCommandIn(t, t.TempDir(), "", "-l", "python", "-c", "print(1)"); got != (commandResult{"", "", 0}) || i.received() != 1 {
			t.Errorf("%+v, and it was told %d times", got, i.received())
		}
	})
}

// A server of another user gets no request (A2).
func TestSocketOfAnotherUser(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "sandbox-run-stranger-") // t.TempDir is not accessible to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("/usr/bin/python3", "-c", `
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print("ready", flush=True)
while True:
    c, _ = s.accept(); print("heard", len(c.recv(100)), flush=True); c.close()`, socket)
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := stranger.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	words := bufio.NewReader(out)
	if word, err := words.ReadString('\n'); err != nil || word != "ready\n" {
		t.Fatal(word, err)
	}
	t.Setenv(wire.SocketVariable, socket)
	if got := runCommandIn(t, t.TempDir(), "", "-l", "python", "-c", "print(1)"); got != (commandResult{"1\n", "", 0}) {
		t.Errorf("%+v", got)
	}
	if word, err := words.ReadString('\n'); word != "heard 0\n" {
		t.Errorf("it %q, %v", word, err)
	}
	got := runCommandIn(t, t.TempDir(), "", "--server", "unix://"+socket, "-l", "python", "-c", "print(1)")
	if got.code != codeRefused || !strings.Contains(got.stderr, "the server belongs to another user: uid 65534") {
		t.Errorf("%+v", got)
	}
	if word, err := words.ReadString('\n'); word != "heard 0\n" {
		t.Errorf("it %q, %v", word, err)
	}
}

// With any answer of a server the command ends, with a correct result or an error.
func TestHostileServer(t *testing.T) {
	const ours = codeOurs
	for name, c := range map[string]struct {
		talk func(context.Context, *websocket.Conn)
		code int
		out  string
		says string
	}{
		"weaker than asked": {sendMessages(weakReady, phaseEvent, weakResult), 0, "1\n", ""}, // the program runs here
		"weaker in the end": {sendMessages(goodReady, phaseEvent, weakResult), codeRefused, "", `tier "container" is required`},
		"gone at once":      {func(context.Context, *websocket.Conn) {}, ours, "", "may have run"},
		"gone after the start": {func(ctx context.Context, c *websocket.Conn) {
			_ = c.Write(ctx, websocket.MessageText, []byte(phaseEvent))
		}, ours, "", "may have run"},
		"closed politely": {func(ctx context.Context, c *websocket.Conn) {
			_ = c.Write(ctx, websocket.MessageText, []byte(phaseEvent))
			_ = c.Close(websocket.StatusNormalClosure, "")
		}, ours, "", "may have run"},
		"not JSON":  {sendMessages("\x1b[2Jhello"), ours, "", "server event: decode"},
		"no result": {sendMessages(phaseEvent, `{"seq":2,"kind":"result"}`), ours, "", "has no result"},
		"refused":   {sendMessages(`{"kind":"error","problem":{"title":"t","code":"refused","status":403}}`), 0, "1\n", ""},
		"refused late": {sendMessages(phaseEvent, `{"kind":"error","problem":{"title":"\u001b[2Jt","code":"internal_error","status":500}}`),
			ours, "", `\x1b[2Jt`},
		"files elsewhere": {sendMessages(goodReady, phaseEvent, strings.NewReplacer(`"tier":"process"`, `"tier":"container"`,
			`"files":[]`, `"files":[{"path":"../evil","content":"x"},{"path":"/etc/evil","content":"x"}]`).Replace(weakResult)), 0, "", ""},
		"binary": {func(ctx context.Context, c *websocket.Conn) {
			_ = c.Write(ctx, websocket.MessageBinary, []byte{0xff})
		}, ours, "", "server event: decode"},
		"very deep": {sendMessages(strings.Repeat("[", 200_000)), ours, "", "server event: decode"},
	} {
		t.Run(name, func(t *testing.T) {
			newFakeServer(t, nil, c.talk)
			dir := t.TempDir()
			began := time.Now()
			got := runCommandIn(t, dir, "", "--out", "*", "-l", "python", "-c", "print(1)")
			if got.code != c.code || got.stdout != c.out || !strings.Contains(got.stderr, c.says) || strings.Contains(got.stderr, "\x1b") {
				t.Errorf("%+v", got)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if _, err := os.Stat(filepath.Join(dir, "..", "evil")); err == nil {
				t.Error("it wrote a file elsewhere")
			}
		})
	}
}

// Output from a server is escaped on a terminal, like that of a run here (A6).
func TestEscapesFromServer(t *testing.T) {
	const output = `{"seq":2,"time":"2026-01-01T00:00:00Z","kind":"stdout","phase":"run","data":"a\u001b[2Jb\n"}`
	result := strings.NewReplacer(`"tier":"process"`, `"tier":"container"`,
		`"violations":[]`, `"violations":[],"notes":["\u001b]0;x\u0007"]`).Replace(weakResult)
	newFakeServer(t, nil, sendMessages(goodReady, phaseEvent, output, result))
	_, shown := newScreen(t).run("-l", "python", "-c", "print(1)")
	if strings.Contains(shown, "\x1b[2J") || strings.Contains(shown, "\x1b]0") || !strings.Contains(shown, `a\x1b[2Jb`) {
		t.Errorf("%q", shown)
	}
}

// Looking for a missing local server takes less than 300 µs.
func TestFindLocalServerCost(t *testing.T) {
	t.Setenv(wire.SocketVariable, filepath.Join(t.TempDir(), "none"))
	best := time.Hour
	for range 50 {
		began := time.Now()
		if findLocalServer() != nil {
			t.Fatal("there is one")
		}
		best = min(best, time.Since(began))
	}
	t.Logf("%v", best)
	if best > 300*time.Microsecond {
		t.Errorf("it takes %v", best)
	}
}
