package spawn

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		os.Setenv(binaryVariable, filepath.Join(dir, initproc.Name))
	}
	goleak.VerifyTestMain(m)
}

func needRoot(t *testing.T) {
	t.Helper()
	testenv.NeedRoot(t)
}

// mounts is the host's mount table. A test of an init that must not mount compares it.
func mounts(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func hostNS(t *testing.T, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// plain starts an init that builds no root, as the process backend does.
func plain(t *testing.T) *Init {
	t.Helper()
	i, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Setup(context.Background(), &initproto.Setup{Root: -1, Scratch: -1}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		i.Kill()
		i.Reap(10*time.Second, nil)
		i.Reap(10*time.Second, nil)
		i.Kill()
	})
	return i
}

func program(args ...string) *initproto.Exec {
	return &initproto.Exec{ID: ids.Add(1), Paths: Candidates(args[0], "/usr/bin:/bin"), Args: args, Dir: "/",
		Env: []string{"PATH=/usr/bin:/bin"}}
}

var ids atomic.Uint64

// run runs a program to its end and returns its output.
func run(t *testing.T, i *Init, m *initproto.Exec) (out string, code, signal int) {
	t.Helper()
	p, err := i.Run(context.Background(), m, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.CloseInput()
	out = readAll(p)[0]
	code, signal = p.Wait()
	return out, code, signal
}

// readAll reads both streams of a program to their end.
func readAll(p *Program) (streams [2]string) {
	for b := make([]byte, 4096); ; {
		stream, n, err := p.ReadOutput(b)
		streams[stream] += string(b[:n])
		if err != nil {
			return streams
		}
	}
}

// Run by hand the init refuses, whatever descriptor 3 is, and changes nothing.
func TestRefusesByHand(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := mounts(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	datagrams, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	datagram, other := os.NewFile(uintptr(datagrams[0]), "a"), os.NewFile(uintptr(datagrams[1]), "b")
	defer datagram.Close()
	defer other.Close()
	for name, extra := range map[string][]*os.File{"nothing": nil, "a file": {file}, "a pipe": {w}, "datagrams": {datagram}} {
		cmd := &exec.Cmd{Path: exe, Args: []string{initproc.Name}, ExtraFiles: extra, Env: []string{}}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if name == "datagrams" { // a process is at the other end, and gets the error
			if !errors.As(err, &exit) || exit.ExitCode() == 0 {
				t.Errorf("%s: %v, %q", name, err, out)
			}
			continue
		}
		if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(string(out), "started by sandbox-run only") {
			t.Errorf("with %s as descriptor 3: %v, %q", name, err, out)
		}
	}
	if !bytes.Equal(before, mounts(t)) {
		t.Error("the host's mounts have changed")
	}
}

// Outside fresh namespaces the init refuses before it mounts anything. (Even without that check the kernel would refuse:
// none of these inits has a privilege over the host's mount namespace that the test has not dropped, except for the
// first, which is not in a pid namespace and so never gets that far.)
func TestRefusesOutsideFreshNamespaces(t *testing.T) {
	needRoot(t)
	before := mounts(t)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0x6fff0000, Size: 1}}
	good := initproto.Setup{Namespaced: true, HostMountNS: hostNS(t, "mnt"), HostUserNS: hostNS(t, "user"), Root: -1, Scratch: -1}
	noMount, noUser := good, good
	noMount.HostMountNS, noUser.HostUserNS = 0, 0
	const user, pid, mnt = unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNS
	for _, c := range []struct {
		name       string
		namespaces uintptr
		setup      initproto.Setup
		stage      initproto.Stage
		detail     string
	}{
		{"none", 0, good, initproto.StageNamespaces, "pid namespace: this is process"},
		{"user and mount, not pid", user | mnt, good, initproto.StageNamespaces, "pid namespace: this is process"},
		{"user and pid, not mount", user | pid, good, initproto.StageNamespaces, "mnt namespace: is the supervisor's own"},
		{"a supervisor that does not say where it stands", user | pid | mnt, noMount, initproto.StageNamespaces,
			"mnt namespace: is the supervisor's own"},
		{"nor who it is", user | pid | mnt, noUser, initproto.StageNamespaces, "user namespace: is the supervisor's own"},
		{"all, and no root: it gets past the check", user | pid | mnt, good, initproto.StageProtocol, "descriptor -1"},
	} {
		i, err := Start(Options{Namespaces: c.namespaces, UIDs: ids, GIDs: ids})
		if err != nil {
			t.Fatal(err)
		}
		_, err = i.Setup(context.Background(), &c.setup, nil)
		var e *Error
		if !errors.As(err, &e) || e.Stage != c.stage || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !bytes.Equal(before, mounts(t)) {
			t.Fatalf("%s: the host's mounts have changed", c.name)
		}
	}
}

// A message that is no setup, or of another build, is answered and ends the init.
func TestMalformedSetup(t *testing.T) {
	version := initproto.Encode(&initproto.Setup{Root: -1, Scratch: -1})
	version[initproto.HeaderSize+1]++
	cut := initproto.Encode(&initproto.Setup{Root: -1, Scratch: -1})
	cut[0] -= 2
	for name, frame := range map[string][]byte{
		"another version": version, "cut short": cut[:len(cut)-2], "an exec": initproto.Encode(&initproto.Exec{}),
		"a signal":  initproto.Encode(&initproto.Signal{All: true, Num: 9}),
		"an answer": initproto.Encode(&initproto.Ready{}), "no length": {0, 0, 0, 0, 0}, "too long": {255, 255, 255, 255, 0},
		"an unknown kind":               {1, 0, 0, 0, 0, 200},
		"descriptors that did not come": {1, 0, 0, 0, 9, 4},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := Start(Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = i.Abandon() }()
			fds := 0
			if name == "descriptors that did not come" {
				fds = int(frame[4])
			}
			// As conn.send does, but without a change of the header.
			if err := i.conn.raw.Control(func(fd uintptr) { _, err = unix.Write(int(fd), frame) }); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			m, _, err := i.conn.receive()
			f, ok := m.(*initproto.Failed)
			if err != nil || !ok || f.Stage != initproto.StageProtocol {
				t.Errorf("answer %+v, %v (%d)", m, err, fds)
			}
			if m, _, err = i.conn.receive(); err == nil {
				t.Errorf("and then %+v", m)
			}
		})
	}
}

// Garbage later on ends the init, and its programs.
func TestMalformedLater(t *testing.T) {
	i := plain(t)
	p, err := i.Run(context.Background(), program("sleep", "60"), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_ = i.conn.raw.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), []byte{1, 0, 0, 0, 0, 99}) })
	if _, signal := p.Wait(); signal != 9 {
		t.Errorf("signal %d", signal)
	}
	<-i.Done()
}

func TestRun(t *testing.T) {
	i := plain(t)
	keep, err := i.Run(context.Background(), program("sleep", "60"), nil, nil, nil) // an init ends with its last program
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	if out, code, signal := run(t, i, program("sh", "-c", "echo $0 $PATH; pwd; exit 7", "zero")); out != "zero /usr/bin:/bin\n/\n" ||
		code != 7 || signal != 0 {
		t.Errorf("%q, %d, %d", out, code, signal)
	}
	if _, code, signal := run(t, i, program("sh", "-c", "kill -USR1 $$")); code != 0 || signal != int(unix.SIGUSR1) {
		t.Errorf("%d, %d", code, signal)
	}
	// The init's own timers are coarse; the program's must not be.
	if out, _, _ := run(t, i, program("cat", "/proc/self/timerslack_ns")); out != "50000\n" {
		t.Errorf("timer slack %q", out)
	}
	p, err := i.Run(context.Background(), program("cat"), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Resize(1, 1); !errors.Is(err, ErrNoTerminal) {
		t.Error(err)
	}
	if err := p.Signal(unix.SIGTERM, false); err != nil {
		t.Error(err)
	}
	if _, signal := p.Wait(); signal != int(unix.SIGTERM) {
		t.Errorf("signal %d", signal)
	}
	select {
	case <-i.Done():
		t.Error("the neighbour is gone, too")
	default:
	}
	if err := keep.Signal(unix.SIGKILL, true); err != nil {
		t.Error(err)
	}
	if _, signal := keep.Wait(); signal != 9 {
		t.Errorf("signal %d", signal)
	}
	<-i.Done()
	if _, err := i.Run(context.Background(), program("true"), nil, nil, nil); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

// A supervisor that the kernel spares when memory runs out does not pass that on.
func TestNotSpared(t *testing.T) {
	before, err := os.ReadFile("/proc/self/oom_score_adj")
	if err == nil {
		err = os.WriteFile("/proc/self/oom_score_adj", []byte("7"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	was := spared
	defer func() {
		spared = was
		_ = os.WriteFile("/proc/self/oom_score_adj", before, 0)
	}()
	// the former is the control; a negative one takes CAP_SYS_RESOURCE
	for adjusted, want := range map[bool]string{false: "7\n", true: "0\n"} {
		spared = func() bool { return adjusted }
		if out, _, _ := run(t, plain(t), program("cat", "/proc/self/oom_score_adj")); out != want {
			t.Errorf("%v: %q, want %q", adjusted, out, want)
		}
	}
}

// A living init is not reported as dead because a signal interrupts the check: Go sends itself many.
func TestAliveAmongSignals(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(self)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.PidfdSendSignal(self, unix.SIGURG, nil, 0)
			}
		}
	}()
	i := &Init{pidfd: self}
	for n := range 200_000 {
		if !i.Alive() {
			t.Errorf("dead at look %d", n)
			break
		}
	}
	close(stop)
	<-stopped
}

// Each failure has its exact stage and cause; the init continues while another program runs.
func TestExecErrors(t *testing.T) {
	i := plain(t)
	keep, err := i.Run(context.Background(), program("sleep", "60"), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "junk": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("no program"), mode); err != nil {
			t.Fatal(err)
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	change := func(f func(*initproto.Exec), args ...string) *initproto.Exec {
		m := program(args...)
		f(m)
		return m
	}
	same := func(*initproto.Exec) {}
	for _, c := range []struct {
		m     *initproto.Exec
		join  []*os.File
		stage initproto.Stage
		errno syscall.Errno
		text  string
	}{
		{change(same, "no-such-program"), nil, initproto.StageExec, unix.ENOENT, "no-such-program (searched in PATH)"},
		{change(same, dir+"/none"), nil, initproto.StageExec, unix.ENOENT, dir + "/none"},
		{change(same, dir+"/plain/x"), nil, initproto.StageExec, unix.ENOENT, dir + "/plain/x"},
		{change(same, dir+"/plain"), nil, initproto.StageExec, unix.EACCES, dir + "/plain"},
		{change(same, dir), nil, initproto.StageExec, unix.EACCES, dir},
		{change(same, dir+"/junk"), nil, initproto.StageExec, unix.ENOEXEC, dir + "/junk"},
		{change(func(m *initproto.Exec) { m.Paths = nil }, "x"), nil, initproto.StageExec, unix.ENOENT, "program"},
		{change(func(m *initproto.Exec) { m.Args = append(m.Args, strings.Repeat("x", 1<<18)) }, "true"), nil, initproto.StageExec,
			unix.E2BIG, "true"},
		{change(func(m *initproto.Exec) { m.Args = append(m.Args, "a\x00b") }, "true"), nil, initproto.StageExec, unix.EINVAL, ""},
		{change(func(m *initproto.Exec) { m.Dir = "/nowhere" }, "true"), nil, initproto.StageWorkdir, unix.ENOENT, "enter /nowhere"},
		{change(func(m *initproto.Exec) { m.Dir = "/dev/null" }, "true"), nil, initproto.StageWorkdir, unix.ENOTDIR, "enter /dev/null"},
		{change(func(m *initproto.Exec) { m.Dir = "a\x00" }, "true"), nil, initproto.StageWorkdir, unix.EINVAL, ""},
		{change(same, "true"), []*os.File{null}, initproto.StageCgroup, unix.EBADF, "join cgroup"},
		{change(func(m *initproto.Exec) { m.Rlimits = []initproto.Rlimit{{Resource: 999}} }, "true"), nil, initproto.StageLimits, unix.EINVAL,
			"set resource limits"},
		{change(func(m *initproto.Exec) {
			m.Rlimits = []initproto.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 9, Max: 8}}
		}, "true"), nil, initproto.StageLimits, unix.EINVAL, ""},
		{change(func(m *initproto.Exec) { m.Seccomp = []byte{1, 2, 3} }, "true"), nil, initproto.StageSeccomp, unix.EINVAL, "install filter"},
		{change(func(m *initproto.Exec) { m.Seccomp = make([]byte, 8) }, "true"), nil, initproto.StageSeccomp, unix.EINVAL, "install filter"},
		{change(func(m *initproto.Exec) {
			m.Landlock = initproto.Ruleset{Rules: []initproto.Rule{{Path: "/", Access: 1}}, FS: 1 << 60}
		}, "true"), nil, initproto.StageLandlock, unix.EINVAL, "create ruleset"},
		{change(func(m *initproto.Exec) {
			m.Landlock = initproto.Ruleset{Rules: []initproto.Rule{{Path: "/", Access: 1 << 60}}, FS: 1}
		}, "true"), nil, initproto.StageLandlock, unix.EINVAL, "rule for /"},
	} {
		p, err := i.Run(context.Background(), c.m, c.join, nil, nil)
		var e *Error
		if err == nil {
			p.Close()
		}
		if !errors.As(err, &e) || e.Stage != c.stage || e.Errno != c.errno || !strings.Contains(e.Detail, c.text) || !errors.Is(err, c.errno) {
			t.Errorf("%.80q: got %.200v, want stage %s, %v, %q", c.m.Args, err, c.stage, c.errno, c.text)
		}
		if err != nil && e != nil && !strings.Contains(err.Error(), "(stage "+c.stage.String()+")") {
			t.Errorf("%v", err)
		}
	}
	// Descriptors that are missing from the message.
	m := program("true")
	m.Stdio = [3]int{0, 1, 7}
	if _, err := i.exec(context.Background(), m, []int{int(null.Fd()), int(null.Fd())}, nil); err == nil {
		t.Error("descriptors that do not exist are taken")
	}
	if out, code, _ := run(t, i, program("echo", "control")); out != "control\n" || code != 0 {
		t.Errorf("control: %q, %d", out, code)
	}
}

// An init whose only program fails to start ends, and reports the failure first.
func TestOnlyProgramFails(t *testing.T) {
	i := plain(t)
	var e *Error
	if _, err := i.Run(context.Background(), program("no-such-program"), nil, nil, nil); !errors.As(err, &e) ||
		e.Stage != initproto.StageExec {
		t.Error(err)
	}
	select {
	case <-i.Done():
	case <-time.After(30 * time.Second):
		t.Error("the init lives on")
	}
}

// After a kill at any point no caller waits for ever, and errors say that the init is gone.
func TestKilledAtEachPoint(t *testing.T) {
	t.Run("before setup", func(t *testing.T) {
		i, err := Start(Options{})
		if err != nil {
			t.Fatal(err)
		}
		i.Kill()
		if _, err := i.Setup(context.Background(), &initproto.Setup{Root: -1, Scratch: -1}, nil); err == nil {
			t.Error("a dead init is set up")
		}
		i.Kill()
	})
	t.Run("never set up", func(t *testing.T) {
		i, err := Start(Options{})
		if err != nil {
			t.Fatal(err)
		}
		i.Abandon()
	})
	t.Run("setup is cancelled", func(t *testing.T) {
		i, err := Start(Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := i.Setup(ctx, &initproto.Setup{Root: -1, Scratch: -1}, nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("an exec is cancelled", func(t *testing.T) {
		for n := range 30 {
			i := plain(t)
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*100*time.Microsecond)
			p, err := i.Run(ctx, program("sleep", "62"), nil, nil, nil)
			if err == nil { // the start was faster; then it is an ordinary program
				p.Close()
				i.End()
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
			i.Reap(10*time.Second, nil)
		}
		if out := outliving("sleep 62"); out != "" {
			t.Errorf("they run, unwatched: %s", out)
		}
	})
	t.Run("while programs start", func(t *testing.T) {
		for n := range 30 {
			i := plain(t)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					p, err := i.Run(context.Background(), program("sleep", "60"), nil, nil, nil)
					if err != nil {
						if !errors.Is(err, ErrGone) {
							t.Error(err)
						}
						return
					}
					defer p.Close()
					if code, signal := p.Wait(); signal != 9 {
						t.Errorf("%d, %d", code, signal)
					}
				})
			}
			time.Sleep(time.Duration(n) * 200 * time.Microsecond)
			i.End()
			wg.Wait()
			<-i.Done()
			i.Reap(10*time.Second, nil)
			if err := i.Signal(&initproto.Signal{All: true, Num: 15}); !errors.Is(err, ErrGone) {
				t.Errorf("signal to a dead init: %v", err)
			}
		}
	})
	t.Run("hung up on", func(t *testing.T) {
		i := plain(t)
		p, err := i.Run(context.Background(), program("sh", "-c", "setsid sleep 61 & echo on; sleep 61"), nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, _, _ = p.ReadOutput(make([]byte, 10))
		i.HangUp()
		i.HangUp()
		if _, signal := p.Wait(); signal != 9 {
			t.Errorf("signal %d", signal)
		}
		i.Reap(10*time.Second, nil)
		if out := outliving("sleep 61"); out != "" {
			t.Errorf("descendants live on: %s", out)
		}
	})
}

// outliving lists the processes with that command line after a grace period: on a busy machine, a killed process is not
// gone at once.
func outliving(line string) (pids string) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, _ := exec.Command("pgrep", "-fx", line).Output()
		if len(out) == 0 || time.Now().After(end) {
			return string(out)
		}
	}
}

// Nothing is left of an init: no descriptor, no zombie.
func TestLeavesNothing(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	once := func() {
		i, err := Start(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Setup(context.Background(), &initproto.Setup{Root: -1, Scratch: -1}, nil); err != nil {
			t.Fatal(err)
		}
		m := program("echo", "x")
		m.Terminal = ids.Load()%2 == 0
		p, err := i.Run(context.Background(), m, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		readAll(p)
		p.Wait()
		p.Close()
		p.Close()
		i.Reap(10*time.Second, nil)
	}
	once()
	once()
	before := count()
	for range 20 {
		once()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == nil && info.Signo != 0 {
		t.Error("a zombie is left")
	}
}
