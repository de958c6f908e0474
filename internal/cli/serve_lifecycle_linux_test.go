package cli

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sleepRequest is a request whose program prints "ready" and sleeps for a time that identifies it.
func sleepRequest(seconds string) string {
	return fmt.Sprintf(`{"language":"shell","code":"echo ready; sleep %s; echo done","timeout":"100s"}`, seconds)
}

// startRun starts an asynchronous run, and waits until it runs.
func (s *serverProcess) startRun(body string) (id string) {
	s.t.Helper()
	r := s.request(0, "POST", "/v1/runs", body)
	if id = r.field(s.t, "id"); r.code != 202 || id == "" {
		s.t.Fatalf("%d %s", r.code, r.body)
	}
	for end := time.Now().Add(serveTime); !slices.Contains([]string{"running", "done"}, s.state(id)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("it does not run: %s", s.request(0, "GET", "/v1/runs/"+id, "").body)
		}
	}
	return id
}

func (s *serverProcess) state(id string) string {
	s.t.Helper()
	return s.request(0, "GET", "/v1/runs/"+id, "").field(s.t, "state")
}

// sleepExists reports whether a sleep process with that argument exists on this machine.
func sleepExists(argument string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), "sleep\x00"+argument) {
			return true
		}
	}
	return false
}

func waitUntilGone(t *testing.T, argument string) {
	t.Helper()
	for end := time.Now().Add(serveTime); sleepExists(argument); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program goes on")
		}
	}
}

func waitUntilThere(t *testing.T, argument string) {
	t.Helper()
	for end := time.Now().Add(serveTime); !sleepExists(argument); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program does not begin")
		}
	}
}

// SIGTERM drains: accepted runs end, and their results exist after a restart. A second signal ends the runs at once.
func TestServeDrain(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	socket := filepath.Join(dir, "run", "s")
	args = append(args, "--listen", "unix://"+socket)
	s := startServer(t, append(args, "--drain-timeout", "100s")...)
	id := s.startRun(sleepRequest("8.00471")) // still runs after SIGTERM, also on a busy machine
	s.signal(syscall.SIGTERM)
	s.waitForLog("draining")
	for end := time.Now().Add(serveTime); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err != nil {
			break
		} else if c.Close(); time.Now().After(end) {
			t.Fatal("it still accepts")
		}
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.log())
	}
	again := startServer(t, args...)
	r := again.request(0, "GET", "/v1/runs/"+id, "")
	if r.code != 200 || r.field(t, "verdict") != "ok" || !strings.Contains(r.body, `ready\ndone`) {
		t.Errorf("%d %s", r.code, r.body)
	}
	id = again.startRun(sleepRequest("99.00472"))
	waitUntilThere(t, "99.00472")
	began := time.Now()
	again.signal(syscall.SIGTERM)
	again.waitForLog("draining")
	if !sleepExists("99.00472") {
		t.Error("the server did not wait for the run")
	}
	again.signal(syscall.SIGTERM)
	if code := again.wait(); code != 0 || time.Since(began) > 60*time.Second {
		t.Errorf("exit code %d after %v\n%s", code, time.Since(began), again.log())
	}
	waitUntilGone(t, "99.00472")
	// --drain-timeout ends the runs like a second signal.
	third := startServer(t, append(args, "--drain-timeout", "1s")...)
	if r := third.request(0, "GET", "/v1/runs/"+id, ""); r.code != 200 || r.field(t, "verdict") != "cancelled" {
		t.Errorf("%d %s", r.code, r.body)
	}
	third.startRun(sleepRequest("99.00473"))
	third.signal(syscall.SIGTERM)
	if code := third.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, third.log())
	}
	waitUntilGone(t, "99.00473")
}

// W6: a server takes over or removes what a killed server left. Two servers do not share a socket.
func TestServeKilled(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	socket := filepath.Join(dir, "run", "s")
	args = append(args, "--listen", "unix://"+socket)
	s := startServer(t, args...)
	done := s.startRun(sleepRequest("0.1"))
	for end := time.Now().Add(serveTime); s.state(done) != "done" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
	}
	id := s.startRun(sleepRequest("99.00474"))
	waitUntilThere(t, "99.00474")
	out, err := command(t, append([]string{"serve"}, args...)...).CombinedOutput()
	want := fmt.Sprintf("a server is running on this socket (pid %d)", s.cmd.Process.Pid)
	if code := exitCode(t, err); code == 0 || !strings.Contains(string(out), want) {
		t.Errorf("a second one: %d %s", code, out)
	}
	s.checkRun(0) // the second has not disturbed the first
	s.signal(syscall.SIGKILL)
	<-s.over
	waitUntilGone(t, "99.00474")
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("it has left nothing, and this test tests nothing: %v", err)
	}
	again := startServer(t, args...)
	again.checkRun(0)
	if state := again.state(id); state != "lost" {
		t.Errorf("%s", state)
	}
	if r := again.request(0, "GET", "/v1/runs/"+done, ""); r.field(t, "verdict") != "ok" {
		t.Errorf("%s", r.body)
	}
	again.signal(syscall.SIGTERM)
	if code := again.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, again.log())
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(socket), "*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// A4: the server closes the connection of a client that sends a request header slowly, but not that of a client whose program runs long.
func TestServeSlowClients(t *testing.T) {
	needRoot(t)
	_, args := newServerDir(t)
	s := startServer(t, append(args, "--listen", "127.0.0.1:0")...)
	slow, err := net.Dial("tcp", s.at[0])
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	began := time.Now()
	ended := make(chan time.Duration, 1)
	go func() {
		defer func() { ended <- time.Since(began) }()
		fmt.Fprintf(slow, "POST /v1/run HTTP/1.1\r\nHost: localhost\r\n")
		for i := range 600 {
			if _, err := fmt.Fprintf(slow, "X-%d: 1\r\n", i); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	r := s.request(0, "POST", "/v1/run", sleepRequest("12"))
	if r.code != 200 || r.field(t, "verdict") != "ok" {
		t.Errorf("%d %s", r.code, r.body)
	}
	if took := <-ended; took > 40*time.Second {
		t.Errorf("it was let go on for %v", took)
	}
	large, err := net.Dial("tcp", s.at[0])
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	_ = large.SetDeadline(time.Now().Add(serveTime))
	fmt.Fprintf(large, "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
	if answer, err := http.ReadResponse(bufio.NewReader(large), nil); err != nil || answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%+v, %v", answer, err)
	}
}

// The server supports systemd's socket activation and notification, also if systemd starts the thin executable.
func TestServeActivated(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	path := filepath.Join(dir, "held")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	held, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	notifications, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notifications.Close()
	readNotification := func() string {
		t.Helper()
		_ = notifications.SetReadDeadline(time.Now().Add(serveTime))
		buf := make([]byte, 4096)
		n, err := notifications.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	const activate = `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=api exec "$@"`
	cmd := exec.Command("/bin/sh", append([]string{"-c", activate, "sh", binary(t), "serve"}, args...)...)
	cmd.ExtraFiles = []*os.File{held}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=600000")
	s := startCommand(t, cmd)
	if s.at[0] != "unix://"+path || len(s.at) != 1 {
		t.Errorf("%q", s.at)
	}
	if got := readNotification(); !strings.HasPrefix(got, "READY=1\n") || !strings.Contains(got, fmt.Sprintf("MAINPID=%d", cmd.Process.Pid)) {
		t.Errorf("%q", got)
	}
	if got := readNotification(); got != "WATCHDOG=1" {
		t.Errorf("%q", got)
	}
	s.checkRun(0)
	s.signal(syscall.SIGTERM)
	for got := ""; !strings.HasPrefix(got, "STOPPING=1"); got = readNotification() {
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.log())
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it is systemd's socket, and was removed: %v", err)
	}
}

// An ordinary user's server listens on the default socket, and only that user and root can use it.
func TestServeOfAnotherUser(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "sandbox-run-serve-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const user, stranger = 65533, 65534
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir = "/"
		cmd.Env = []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	s := startCommand(t, as(user, binary(t), "serve", "--backend", "process", "--require", "process"))
	socket := filepath.Join(dir, "sandbox-run", "server.sock")
	if s.at[0] != "unix://"+socket {
		t.Fatalf("%q", s.at)
	}
	if r := s.request(0, "GET", "/v1/health", ""); r.code != 200 { // root may
		t.Errorf("%d %s", r.code, r.body)
	}
	// The mode of the socket keeps other users out. If the mode is changed, the check of the peer's uid does.
	const connect = `import socket, sys
c = socket.socket(socket.AF_UNIX); c.settimeout(60); c.connect(sys.argv[1])
c.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); print(c.recv(12))`
	connectAs := func(uid uint32) string {
		out, _ := as(uid, "/usr/bin/python3", "-c", connect, socket).CombinedOutput()
		return string(out)
	}
	if got := connectAs(user); !strings.Contains(got, "HTTP/1.1 200") {
		t.Errorf("the positive control: %s", got)
	}
	if got := connectAs(stranger); !strings.Contains(got, "PermissionError") {
		t.Errorf("%s", got)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Dir(socket): 0o755, socket: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if got := connectAs(stranger); strings.Contains(got, "HTTP") || strings.Contains(got, "PermissionError") {
		t.Errorf("%s", got)
	}
	s.waitForLog(`"uid":65534`)
	if got := connectAs(user); !strings.Contains(got, "HTTP/1.1 200") {
		t.Errorf("after that: %s", got)
	}
}

// SIGHUP reloads ceilings and the log level. An invalid file changes nothing.
func TestServeReload(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	config := filepath.Join(dir, "server.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("max_memory: 256m\n")
	s := startServer(t, append(args, "--listen", "unix://"+filepath.Join(dir, "run", "s"), "--config", config)...)
	const big = `{"language":"shell","code":"echo big","memory":"300m"}`
	r := s.request(0, "POST", "/v1/run", big)
	if r.code != 403 || !strings.Contains(r.body, "above_ceiling") || !strings.Contains(r.body, "256 MiB") {
		t.Errorf("%d %s", r.code, r.body)
	}
	// A default above the ceiling is lowered to the ceiling.
	if r := s.request(0, "POST", "/v1/run", hello); r.code != 200 || !strings.Contains(r.body, `"memory":268435456`) {
		t.Errorf("%d %s", r.code, r.body)
	}
	write("max_memory: 512m\nqueue: 7\nlog_level: debug\n")
	s.signal(syscall.SIGHUP)
	s.waitForLog(`"settings reloaded"`)
	s.waitForLog(`"settings":["queue"]`) // needs a restart
	if r := s.request(0, "POST", "/v1/run", big); r.code != 200 {
		t.Errorf("%d %s", r.code, r.body)
	}
	write("max_memory: nonsense\n")
	s.signal(syscall.SIGHUP)
	s.waitForLog("settings reload failed")
	if r := s.request(0, "POST", "/v1/run", big); r.code != 200 {
		t.Errorf("%d %s", r.code, r.body)
	}
}
