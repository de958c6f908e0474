//go:build linux && (amd64 || arm64)

package clone

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func null(t *testing.T) int { return opened(t, os.DevNull, os.O_RDWR) }

func opened(t *testing.T, path string, flag int) int {
	t.Helper()
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

func shell(t *testing.T, script string) Program {
	fd := null(t)
	return Program{Stdio: [3]int{fd, fd, fd}, Landlock: -1, Dir: "/", Paths: []string{"/bin/sh"}, Args: []string{"sh", "-c", script},
		Env: []string{"A=1"}}
}

func await(t *testing.T, pid int) unix.WaitStatus {
	t.Helper()
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			if err != nil {
				t.Error(err)
			}
			return ws
		}
	}
}

func TestStartProgram(t *testing.T) {
	pid, _, err := StartProgram(shell(t, "test \"$A\" = 1 && exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	if ws := await(t, pid); ws.ExitStatus() != 7 {
		t.Errorf("%+v", ws)
	}
	for _, c := range []struct {
		change func(*Program)
		stage  initproto.Stage
		errno  unix.Errno
	}{
		{func(p *Program) { p.Paths = []string{"/nowhere"} }, initproto.StageExec, unix.ENOENT},
		{func(p *Program) { p.Paths = []string{"/nowhere", "/etc/passwd", "/none"} }, initproto.StageExec, unix.EACCES},
		{func(p *Program) { p.Paths = []string{"a\x00b"} }, initproto.StageExec, unix.EINVAL},
		{func(p *Program) { p.Env = []string{"a\x00b"} }, initproto.StageExec, unix.EINVAL},
		{func(p *Program) { p.Args = []string{"a\x00b"} }, initproto.StageExec, unix.EINVAL},
		{func(p *Program) { p.Dir = "/nowhere" }, initproto.StageWorkdir, unix.ENOENT},
		{func(p *Program) { p.Dir = "a\x00b" }, initproto.StageWorkdir, unix.EINVAL},
		{func(p *Program) { p.Stdio[1] = 9999 }, initproto.StageStdio, unix.EBADF},
		{func(p *Program) { p.Terminal = true }, initproto.StageStdio, unix.ENOTTY},
		{func(p *Program) { p.Cgroups = []int{9999} }, initproto.StageCgroup, unix.EBADF},
		{func(p *Program) { p.IntoCgroup = 9999 }, initproto.StageCgroup, unix.EBADF},
		{func(p *Program) { p.Landlock = 9999 }, initproto.StageLandlock, unix.EBADF},
		{func(p *Program) { p.Rlimits = []initproto.Rlimit{{Resource: 99}} }, initproto.StageLimits, unix.EINVAL},
		{func(p *Program) { p.Filter = []byte{1} }, initproto.StageSeccomp, unix.EINVAL},
		{func(p *Program) { p.Filter = make([]byte, 16) }, initproto.StageSeccomp, unix.EINVAL},
	} {
		p := shell(t, "exit 0")
		c.change(&p)
		pid, stage, err := StartProgram(p)
		if stage != c.stage || !errors.Is(err, c.errno) || pid != 0 {
			t.Errorf("got pid %d, stage %s, %v; want %s, %v", pid, stage, err, c.stage, c.errno)
		}
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("children that failed are not buried: %v", err)
	}
}

func TestStartInit(t *testing.T) {
	fd, yes, sh := null(t), opened(t, "/bin/true", os.O_RDONLY), opened(t, "/bin/sh", os.O_RDONLY)
	for _, c := range []struct {
		d    Init
		want unix.Errno
	}{
		{Init{Binary: fd, Args: []string{"x"}, Files: []int{fd, fd, fd}}, unix.EACCES},
		{Init{Binary: yes, Args: []string{"a\x00b"}}, unix.EINVAL}, {Init{Binary: yes, Env: []string{"a\x00b"}}, unix.EINVAL},
		{Init{Binary: yes, Args: []string{"x"}, Files: []int{9999}}, unix.EBADF}, {Init{Binary: 9999, Args: []string{"x"}}, unix.EBADF},
		{Init{Binary: yes, Args: []string{"x"}, Namespaces: unix.CLONE_THREAD}, unix.EINVAL},
	} {
		if pid, pidfd, err := StartInit(c.d); !errors.Is(err, c.want) || pid != 0 || pidfd != -1 {
			t.Errorf("%+v: %d, %d, %v, want %v", c.d, pid, pidfd, err, c.want)
		}
	}
	// Descriptors come in the order given, and no others.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pid, pidfd, err := StartInit(Init{Binary: sh, Args: []string{"sh", "-c", "for f in /proc/self/fd/*; do echo ${f##*/}; done >&4"},
		Files: []int{fd, fd, fd, fd, int(w.Fd())}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	b := make([]byte, 1000)
	n, _ := r.Read(b)
	if ws := await(t, pid); ws.ExitStatus() != 0 {
		t.Errorf("%v", ws)
	}
	for _, f := range strings.Fields(string(b[:n])) {
		if !strings.Contains("0 1 2 3 4 5", f) && f != "10" { // 5 is the directory being read; dash keeps redirected descriptors at 10
			t.Errorf("inherited: %q", b[:n])
		}
	}
}

// Children share this process's memory: many at once, with the garbage collector and signals active, must not corrupt
// it.
func TestManyAtOnce(t *testing.T) {
	before, _ := os.ReadDir("/proc/self/fd")
	stop := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
				_ = make([]byte, 1<<20)
				time.Sleep(time.Millisecond)
			}
		}
	})
	var wg sync.WaitGroup
	for n := range 8 {
		p := shell(t, "exit "+string(rune('0'+n)))
		broken := p
		broken.Paths = []string{"/nowhere"}
		wg.Go(func() {
			for range 40 {
				pid, _, err := StartProgram(p)
				if err != nil {
					t.Error(err)
					return
				}
				if ws := await(t, pid); ws.ExitStatus() != n {
					t.Errorf("%d ended with %d", n, ws.ExitStatus())
				}
				if _, stage, err := StartProgram(broken); stage != initproto.StageExec || !errors.Is(err, unix.ENOENT) {
					t.Errorf("%s, %v", stage, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	noise.Wait()
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before)+8+2 { // /dev/null of eight shells
		t.Errorf("%d descriptors, %d before", len(after), len(before))
	}
}

// The thread that cloned has its signal mask restored.
func TestSignalMaskIsRestored(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after uint64
	setMask(nil, &before)
	pid, _, err := StartProgram(shell(t, "exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	setMask(nil, &after)
	await(t, pid)
	if before != after {
		t.Errorf("mask %x, before %x", after, before)
	}
}
