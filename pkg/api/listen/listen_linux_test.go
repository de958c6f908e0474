package listen

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const patience = 30 * time.Second

func open(t *testing.T, o Options) *Set {
	t.Helper()
	s, err := Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func socketIn(t *testing.T) string { return filepath.Join(t.TempDir(), "own", "s.sock") }

// greet accepts connections and writes to each of them.
func greet(t *testing.T, l *Listener) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			_, _ = io.WriteString(c, "hello")
			c.Close()
		}
	}()
	t.Cleanup(func() {
		must(t, l.Close())
		<-done
	})
}

func TestSocketIsPrivateFromTheStart(t *testing.T) {
	before := syscall.Umask(0) // the most open there is
	defer syscall.Umask(before)
	path := socketIn(t)
	s := open(t, Options{Addresses: []Address{{Path: path}}})
	for file, want := range map[string]fs.FileMode{path: 0o600 | fs.ModeSocket, path + ".lock": 0o600,
		filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Lstat(file); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", file, info.Mode(), err, want)
		}
	}
	if pid, err := os.ReadFile(path + ".lock"); err != nil || string(pid) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("%q, %v", pid, err)
	}
	must(t, s.Close())
	must(t, s.Close()) // twice is fine
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The socket has its mode before it has a name, even without the later chmod.
func TestModeIsSetBeforeBind(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	path := filepath.Join(t.TempDir(), "s")
	lc := net.ListenConfig{Control: makePrivate}
	l, err := lc.Listen(t.Context(), "unix", path)
	must(t, err)
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	other := filepath.Join(t.TempDir(), "s") // the positive control: this is what would be
	l, err = net.Listen("unix", other)
	must(t, err)
	defer l.Close()
	if info, err := os.Lstat(other); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestPeer(t *testing.T) {
	path := socketIn(t)
	l := open(t, Options{Addresses: []Address{{Path: path}}}).Listeners()[0]
	c, err := net.Dial("unix", path)
	must(t, err)
	defer c.Close()
	got, err := l.Accept()
	must(t, err)
	defer got.Close()
	via, ok := ViaOf(ConnContext(context.Background(), got))
	if !ok || via.Kind != Unix || via.Peer != (Peer{UID: os.Getuid(), PID: os.Getpid()}) || via.At != "unix://"+path || via.TLS {
		t.Errorf("%+v, %v", via, ok)
	}
	if _, ok := ViaOf(ConnContext(context.Background(), c)); ok {
		t.Error("a connection without a Listener has a Via")
	}
}

// A3: other users are refused, even if the socket's mode would let them in.
func TestOtherUsersAreRefused(t *testing.T) {
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("", "listen-test-")
	must(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s.sock")
	l := open(t, Options{Addresses: []Address{{Path: path}}}).Listeners()[0]
	refused := make(chan Peer, 10)
	l.Refused = func(p Peer) { refused <- p }
	greet(t, l)
	self := filepath.Join(dir, "self") // the test's own executable lies where others can not go
	copyFile(t, self)
	counters := filepath.Join(dir, "counters") // coverage counters of the executable, for every user
	must(t, errors.Join(os.Mkdir(counters, 0o700), os.Chmod(counters, 0o1777)))
	dial := func(uid uint32) (string, error) {
		cmd := exec.Command(self)
		cmd.Dir = "/"
		cmd.Env = []string{"LISTEN_TEST_PART=dial", "LISTEN_TEST_PATH=" + path, "GOCOVERDIR=" + counters}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must(t, os.Chmod(dir, 0o755))
	if out, err := dial(0); err != nil || out != "hello" {
		t.Fatalf("the positive control: %q, %v", out, err)
	}
	if out, err := dial(65534); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("by the mode: %q, %v", out, err)
	}
	must(t, os.Chmod(path, 0o666))
	if out, err := dial(65534); err == nil || strings.Contains(out, "hello") || strings.Contains(out, "permission denied") {
		t.Errorf("by who they are: %q, %v", out, err)
	}
	select {
	case p := <-refused:
		if p.UID != 65534 || p.PID == 0 {
			t.Errorf("%+v", p)
		}
	case <-time.After(patience):
		t.Error("the callback was not called")
	}
	if out, err := dial(0); err != nil || out != "hello" {
		t.Errorf("after that: %q, %v", out, err)
	}
}

func copyFile(t *testing.T, to string) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	must(t, err)
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(f, from)
	must(t, errors.Join(err, f.Close()))
	must(t, os.Chmod(to, 0o755))
}

func TestOneServerAtATime(t *testing.T) {
	path := socketIn(t)
	first := open(t, Options{Addresses: []Address{{Path: path}}})
	second, err := Open(t.Context(), Options{Addresses: []Address{{Path: path}}})
	if second != nil || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("a server is running on this socket (pid %d)", os.Getpid())) {
		t.Errorf("%v, %v", second, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the first one's socket: %v", err)
	}
	must(t, first.Close())
	open(t, Options{Addresses: []Address{{Path: path}}})
}

// W6: a server takes over the socket that a killed one left.
func TestAfterSIGKILL(t *testing.T) {
	path := socketIn(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LISTEN_TEST_PART=server", "LISTEN_TEST_PATH="+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if s, err := Open(t.Context(), Options{Addresses: []Address{{Path: path}}}); s != nil || err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("pid %d", cmd.Process.Pid)) {
		t.Errorf("while it lives: %v, %v", s, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Fatalf("it has left nothing, and this test tests nothing: %v, %v", info, err)
	}
	l := open(t, Options{Addresses: []Address{{Path: path}}}).Listeners()[0]
	greet(t, l)
	c, err := net.Dial("unix", path)
	must(t, err)
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestExistingFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte("precious"), 0o600))
	other := filepath.Join(dir, "other")
	l, err := net.Listen("unix", other) // a process that ignores the lock
	must(t, err)
	defer l.Close()
	open777 := filepath.Join(dir, "open")
	must(t, os.Mkdir(open777, 0o700))
	must(t, os.Chmod(open777, 0o777))
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(dir, link))
	for path, says := range map[string]string{
		file: "no socket", other: fmt.Sprintf("another process listens on it (pid %d)", os.Getpid()),
		filepath.Join(open777, "s"): "others can write", filepath.Join(link, "s"): "symlink", filepath.Join(file, "s"): "not a directory",
	} {
		if s, err := Open(t.Context(), Options{Addresses: []Address{{Path: path}}}); s != nil || err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v, want %q", path, s, err, says)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
	if c, err := net.Dial("unix", other); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// Open binds all or nothing: it closes the addresses that it bound before a failure.
func TestOpenBindsAllOrNothing(t *testing.T) {
	path := socketIn(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	a, err := Parse(t.Context(), taken.Addr().String())
	must(t, err)
	if s, err := Open(t.Context(), Options{Addresses: []Address{{Path: path}, a}}); s != nil || err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v, %v", s, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestExposedIsChecked(t *testing.T) {
	a, err := Parse(t.Context(), "0.0.0.0:0")
	must(t, err)
	if s, err := Open(t.Context(), Options{Addresses: []Address{a}}); s != nil || !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("%v, %v", s, err)
	}
	asked := ""
	s := open(t, Options{Addresses: []Address{a}, Exposed: func(where string) error { asked = where; return nil }})
	if via := s.Listeners()[0].Via(); via.Kind != Exposed || asked != "0.0.0.0:0" {
		t.Errorf("%+v, %q", via, asked)
	}
	loop, err := Parse(t.Context(), "127.0.0.1:0")
	must(t, err)
	if via := open(t, Options{Addresses: []Address{loop}}).Listeners()[0].Via(); via.Kind != Loopback {
		t.Errorf("%+v", via)
	}
}

// A4: a TCP client that does not read is cut off; clients on the unix socket are not.
func TestClientsThatDoNotReadAreCutOff(t *testing.T) {
	loop, err := Parse(t.Context(), "127.0.0.1:0")
	must(t, err)
	path := socketIn(t)
	s := open(t, Options{Addresses: []Address{loop, {Path: path}}, WriteTimeout: 200 * time.Millisecond})
	write := func(network, addr string, l *Listener, deadline time.Duration) error {
		c, err := net.Dial(network, addr)
		must(t, err)
		defer c.Close()
		got, err := l.Accept()
		must(t, err)
		defer got.Close()
		if deadline > 0 {
			_ = got.SetWriteDeadline(time.Now().Add(deadline))
		}
		for block := make([]byte, 1<<20); ; {
			if _, err := got.Write(block); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	if err := write("tcp", s.Listeners()[0].Addr().String(), s.Listeners()[0], 0); !errors.Is(err, os.ErrDeadlineExceeded) ||
		time.Since(began) > patience {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	began = time.Now() // the test's own deadline ends it, not ours
	if err := write("unix", path, s.Listeners()[1], time.Second); !errors.Is(err, os.ErrDeadlineExceeded) ||
		time.Since(began) < 900*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// A client that reads slowly is not cut off, even within one large write.
func TestSlowReadersAreNotCutOff(t *testing.T) {
	loop, err := Parse(t.Context(), "127.0.0.1:0")
	must(t, err)
	l := open(t, Options{Addresses: []Address{loop}, WriteTimeout: 2 * time.Second}).Listeners()[0]
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	must(t, c.(*net.TCPConn).SetReadBuffer(64<<10))
	got, err := l.Accept()
	must(t, err)
	const size = 32 << 20
	read := make(chan int64)
	go func() {
		var all int64
		for buf := make([]byte, 1<<20); ; {
			n, err := io.ReadFull(c, buf)
			if all += int64(n); err != nil {
				read <- all
				return
			}
			time.Sleep(100 * time.Millisecond) // more than three seconds in all
		}
	}()
	if n, err := got.Write(make([]byte, size)); n != size || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	got.Close()
	if n := <-read; n != size {
		t.Errorf("%d bytes came", n)
	}
}

func TestMostConnections(t *testing.T) {
	loop, err := Parse(t.Context(), "127.0.0.1:0")
	must(t, err)
	path := socketIn(t)
	s := open(t, Options{Addresses: []Address{loop, {Path: path}}, MaxConnections: 1})
	tcp, sock := s.Listeners()[0], s.Listeners()[1]
	dial := func(l *Listener) net.Conn {
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial(tcp)
	first, err := tcp.Accept()
	must(t, err)
	dial(tcp)
	second := make(chan net.Conn)
	go func() {
		c, err := tcp.Accept()
		if err != nil {
			t.Error(err)
		}
		second <- c
	}()
	dial(sock)
	c, err := sock.Accept() // which has its own way in
	must(t, err)
	c.Close()
	select {
	case <-second:
		t.Error("one more than there may be")
	case <-time.After(200 * time.Millisecond):
	}
	first.Close()
	first.Close() // twice is fine, and makes no second place
	select {
	case c := <-second:
		c.Close()
	case <-time.After(patience):
		t.Error("no connection got the free place")
	}
	must(t, s.Close())
	if _, err := tcp.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestActivation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	must(t, err)
	defer u.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer tcp.Close()
	exposed, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	defer exposed.Close()
	start := func(fds int, listeners ...interface{ File() (*os.File, error) }) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LISTEN_TEST_PART=activated", fmt.Sprintf("LISTEN_FDS=%d", fds), "LISTEN_FDNAMES=api:other")
		for _, l := range listeners {
			f, err := l.File()
			must(t, err)
			t.Cleanup(func() { _ = f.Close() })
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		must(t, cmd.Start())
		return cmd, &out
	}
	cmd, out := start(2, u.(*net.UnixListener), tcp.(*net.TCPListener))
	for _, test := range []struct {
		l    net.Listener
		says string
	}{{u, "api unix"}, {tcp, "other loopback"}} {
		c, err := net.Dial(test.l.Addr().Network(), test.l.Addr().String())
		must(t, err)
		_ = c.SetDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(c); string(got) != test.says {
			t.Errorf("%q, %v, want %q", got, err, test.says)
		}
		c.Close()
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it is systemd's socket, and was removed: %v", err)
	}
	cmd, out = start(1, exposed.(*net.TCPListener))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "exposed: ") {
		t.Errorf("%v: %s", err, out)
	}
	cmd, out = start(2, u.(*net.UnixListener))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "descriptor 4 (other)") {
		t.Errorf("one that is not there: %v: %s", err, out)
	}
}

// Sockets that are meant for another process are ignored.
func TestActivationOfAnotherProcess(t *testing.T) {
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1")
	if in, err := Activated(); in != nil || err != nil {
		t.Errorf("%v, %v", in, err)
	}
	t.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
	t.Setenv("LISTEN_FDS", "many")
	if _, err := Activated(); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
}

func TestNotify(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@sandbox-run-listen-test-%d", os.Getpid())} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		t.Setenv("NOTIFY_SOCKET", name)
		t.Setenv("WATCHDOG_USEC", "20000")
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
		n, err := NewNotifier()
		must(t, err)
		if os.Getenv("NOTIFY_SOCKET") != "" {
			t.Error("children would think that they are meant")
		}
		read := func() string {
			t.Helper()
			_ = l.SetReadDeadline(time.Now().Add(patience))
			buf := make([]byte, 1024)
			n, err := l.Read(buf)
			must(t, err)
			return string(buf[:n])
		}
		alive := make(chan bool, 100)
		n.Ready("here", func() bool { return <-alive })
		if got := read(); got != fmt.Sprintf("READY=1\nSTATUS=here\nMAINPID=%d", os.Getpid()) {
			t.Errorf("%q", got)
		}
		alive <- true
		alive <- false // no sign of life for that
		alive <- true
		for range 2 {
			if got := read(); got != "WATCHDOG=1" {
				t.Errorf("%q", got)
			}
		}
		n.Send("STOPPING=1")
		if got := read(); got != "STOPPING=1" {
			t.Errorf("%q", got)
		}
		close(alive)
		must(t, n.Close())
		must(t, n.Close()) // twice is fine
	}
	var none *Notifier
	none.Send("x")
	none.Ready("x", nil)
	must(t, none.Close())
	if n, err := NewNotifier(); n != nil || err != nil {
		t.Errorf("%v, %v", n, err)
	}
	for _, bad := range []string{"relative", "/nowhere/at/all"} {
		t.Setenv("NOTIFY_SOCKET", bad)
		if n, err := NewNotifier(); n != nil || err == nil {
			t.Errorf("%s: %v, %v", bad, n, err)
		}
	}
}
