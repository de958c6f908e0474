package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// sessionPlace is where the sessions of a test are.
type sessionPlace struct {
	*testing.T
	dir string
	as  *syscall.Credential // nil: this user
}

func newSessionPlace(t *testing.T) *sessionPlace {
	t.Helper()
	needRoot(t)
	p := &sessionPlace{T: t, dir: t.TempDir()}
	t.Cleanup(func() {
		for name := range p.supervisors() {
			cmd := exec.Command(binary(t), "session", "close", name) // the test's context has ended
			cmd.Env, cmd.SysProcAttr = p.environ(), &syscall.SysProcAttr{Credential: p.as}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("close %s: %v\n%s", name, err, out)
			}
		}
	})
	return p
}

func (p *sessionPlace) environ() []string {
	env := append(os.Environ(), wire.SocketVariable+"="+filepath.Join(p.dir, "none.sock"))
	if p.as != nil { // another user can not replace the suite's files of coverage
		env = append(env, "GOCOVERDIR="+p.dir)
	}
	return env
}

func (p *sessionPlace) command(args ...string) *exec.Cmd {
	cmd := command(p.T, args...)
	cmd.Env = p.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as}
	return cmd
}

func (p *sessionPlace) run(args ...string) (code int, out string) {
	p.Helper()
	text, err := p.command(args...).CombinedOutput()
	return exitCode(p.T, err), string(text)
}

func (p *sessionPlace) must(want string, args ...string) {
	p.Helper()
	if code, out := p.run(args...); code != 0 || out != want {
		p.Fatalf("%q: exit code %d, %q, want %q", args, code, out, want)
	}
}

// supervisors are the process ids of the supervisors, by the name of their session.
func (p *sessionPlace) supervisors() map[string]int {
	found := map[string]int{}
	locks, _ := filepath.Glob(filepath.Join(p.dir, "sessions", "*", "s.lock"))
	for _, lock := range locks {
		text, err := os.ReadFile(lock)
		pid, parsed := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && parsed == nil {
			found[filepath.Base(filepath.Dir(lock))] = pid
		}
	}
	return found
}

// processesBelow are the processes that a process has started, with those that they have started.
func processesBelow(pid int) (below []int) {
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
		parent, _ := strconv.Atoi(fields[1])
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parents[child] = parent
	}
	for child := range parents {
		for at := child; at > 1; at = parents[at] {
			if parents[at] == pid {
				below = append(below, child)
				break
			}
		}
	}
	return below
}

// isRunning reports whether a process exists and has not ended: pid 1 of a machine may reap late.
func isRunning(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// A supervisor of a session has nothing of the process that has started it: no terminal, no descriptor, no working directory.
func TestSupervisorIsDetached(t *testing.T) {
	p := newSessionPlace(t)
	leaked, err := os.Open(filepath.Join(p.dir))
	if err != nil {
		t.Fatal(err)
	}
	defer leaked.Close()
	s := newScreen(t)
	cmd := p.command("session", "create", "--name", "one")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	cmd.ExtraFiles = []*os.File{leaked, leaked, leaked}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, s.text())
	}
	pid := p.supervisors()["one"]
	if pid == 0 {
		t.Fatal("there is no supervisor")
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	if session, terminal := fields[3], fields[4]; session != strconv.Itoa(pid) || terminal != "0" {
		t.Errorf("session %s, terminal %s of process %d", session, terminal, pid)
	}
	if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); cwd != "/" {
		t.Error(cwd, err)
	}
	descriptors, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil || len(descriptors) < 5 {
		t.Fatal(descriptors, err)
	}
	for _, d := range descriptors {
		target, _ := os.Readlink(filepath.Join(proc, "fd", d.Name()))
		if target == p.dir || strings.HasPrefix(target, "/dev/pts/") {
			t.Errorf("descriptor %s is %s", d.Name(), target)
		}
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "s": 0o600, "s.lock": 0o600, "log": 0o600} {
		if st, err := os.Stat(filepath.Join(p.dir, "sessions", "one", path)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", path, st, err)
		}
	}
	p.must("42\n", "session", "exec", "one", "--code", "6 * 7")
	if code, out := p.run("session", "close", "one"); code != 0 {
		t.Fatal(out)
	}
	if left, err := os.ReadDir(filepath.Join(p.dir, "sessions")); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	for end := time.Now().Add(testTimeout); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the supervisor lives after the end of its session")
		}
	}
}

// A supervisor that is killed leaves no process; gc removes its directory, and the name is free.
func TestSupervisorIsKilled(t *testing.T) {
	p := newSessionPlace(t)
	p.must("one\n", "session", "create", "--name", "one")
	pid := p.supervisors()["one"]
	below := processesBelow(pid)
	if pid == 0 || len(below) < 2 { // the init and the interpreter
		t.Fatal(pid, below)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	alive := func() bool {
		return slices.ContainsFunc(below, isRunning)
	}
	for ; alive(); time.Sleep(5 * time.Millisecond) {
		if time.Since(killed) > testTimeout {
			t.Fatalf("of %v, processes live", below)
		}
	}
	t.Logf("gone after %v", time.Since(killed))
	dir := filepath.Join(p.dir, "sessions", "one")
	if _, out := p.run("session", "list"); out != "there are no sessions\n" {
		t.Error(out)
	}
	if code, out := p.run("gc", "--dry-run"); code != 0 || !strings.Contains(out, "found    session       "+dir) {
		t.Error(code, out)
	}
	if _, out := p.run("gc"); !strings.Contains(out, "removed  session       "+dir) {
		t.Error(out)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error(err)
	}
	p.must("one\n", "session", "create", "--name", "one")
	p.must("1\n", "session", "exec", "one", "--code", "1")
}

// Of creations of one name at a time, one succeeds.
func TestSessionNameRace(t *testing.T) {
	p := newSessionPlace(t)
	const creators = 4
	codes, outs := make([]int, creators), make([]string, creators)
	var all sync.WaitGroup
	for i := range creators {
		all.Go(func() { codes[i], outs[i] = p.run("session", "create", "--name", "one") })
	}
	all.Wait()
	made := 0
	for i, code := range codes {
		switch {
		case code == 0 && outs[i] == "one\n":
			made++
		case code != 2 || !strings.Contains(outs[i], `there is a session "one" already`):
			t.Errorf("exit code %d, %s", code, outs[i])
		}
	}
	if made != 1 {
		t.Errorf("%d were created", made)
	}
	p.must("1\n", "session", "exec", "one", "--code", "1")
}

// A session ends after its idle time, with its supervisor and its directory.
func TestSessionIdle(t *testing.T) {
	p := newSessionPlace(t)
	p.must("one\n", "session", "create", "--name", "one", "--idle", "300ms")
	for end := time.Now().Add(testTimeout); len(p.supervisors()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it lives")
		}
	}
}

// An ordinary user's session works alike, and root's are not the user's.
func TestSessionOfOrdinaryUser(t *testing.T) {
	root := newSessionPlace(t)
	root.must("one\n", "session", "create", "--name", "one")
	dir, err := os.MkdirTemp("", "s-") // t.TempDir is below a directory of root alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	p := newSessionPlace(t)
	p.dir, p.as = dir, &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, p.dir)
	}
	p.must("own\n", "session", "create", "--name", "own", "--require", "namespace")
	p.must("42\n", "session", "exec", "own", "--code", "6 * 7")
	if _, out := p.run("session", "list"); !strings.Contains(out, "own") || strings.Contains(out, "one") {
		t.Error(out)
	}
	stranger := &sessionPlace{t, root.dir, p.as}
	if code, out := stranger.run("session", "exec", "one", "--code", "1"); code == 0 {
		t.Error(out)
	}
	if code, out := p.run("session", "close", "own"); code != 0 {
		t.Error(fmt.Sprint(code), out)
	}
}
