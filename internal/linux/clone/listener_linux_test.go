//go:build linux && (amd64 || arm64)

package clone

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// refused is a program that makes a refused call, under a filter that notifies. Its listener arrives at ours; said is
// its message about the errno.
type refused struct {
	Program
	ours int
	said *os.File
}

func newRefused(t *testing.T) refused {
	t.Helper()
	if err := seccomp.Notifiable(); err != nil {
		t.Skip(err)
	}
	filter, err := seccomp.Compile(seccomp.Policy{Notify: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(pair[0])
		_ = unix.Close(pair[1])
		_ = r.Close()
		_ = w.Close()
	})
	p := shell(t, "LC_ALL=C chroot /usr /bin/true 2>&1; echo done")
	p.Stdio[1] = int(w.Fd())
	p.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	p.Filter, p.Control, p.Listener = filter, pair[1], initproto.Encode(&initproto.Listener{ID: 7})
	return refused{p, pair[0], r}
}

// listener is the descriptor from the socket, or nil.
func (r refused) listener(t *testing.T) *os.File {
	t.Helper()
	buf, oob := make([]byte, 100), make([]byte, unix.CmsgSpace(8))
	n, oobn, _, _, err := unix.Recvmsg(r.ours, buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, err := initproto.Decode(buf[initproto.HeaderSize:n]); err != nil || m.(*initproto.Listener).ID != 7 {
		t.Errorf("message %q: %v", buf[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("descriptors %v, %v", fds, err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "listener")
}

func (r refused) words(t *testing.T, pid int) string {
	t.Helper()
	await(t, pid)
	b := make([]byte, 1000)
	n, err := r.said.Read(b)
	if err != nil {
		t.Error(err)
	}
	return string(b[:n])
}

const (
	notPermitted = "Operation not permitted"
	notThere     = "Function not implemented"
)

func TestListener(t *testing.T) {
	t.Run("control", func(t *testing.T) {
		testenv.NeedRoot(t)
		p := newRefused(t)
		p.Filter = nil
		pid, _, err := StartProgram(p.Program)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.words(t, pid); strings.Contains(got, notPermitted) || strings.Contains(got, notThere) || p.listener(t) != nil {
			t.Errorf("without a filter: %q", got)
		}
	})
	t.Run("served", func(t *testing.T) {
		p := newRefused(t)
		pid, _, err := StartProgram(p.Program)
		if err != nil {
			t.Fatal(err)
		}
		w, err := seccomp.NewRefusalCounter(p.listener(t), seccomp.Policy{Notify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if got := p.words(t, pid); !strings.Contains(got, notPermitted) {
			t.Errorf("said %q", got)
		}
		if list, saturated := w.Refusals(); len(list) != 1 || list[0] != (seccomp.Refusal{Name: "chroot", Call: "chroot", Count: 1}) ||
			saturated {
			t.Errorf("counted %+v", list)
		}
	})
	t.Run("closed", func(t *testing.T) {
		p := newRefused(t)
		pid, _, err := StartProgram(p.Program)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.listener(t).Close()
		if got := p.words(t, pid); !strings.Contains(got, notThere) {
			t.Errorf("said %q", got)
		}
	})
	// The listener could not be sent: the call is refused nevertheless.
	t.Run("unsent", func(t *testing.T) {
		p := newRefused(t)
		p.Control = 9999
		pid, _, err := StartProgram(p.Program)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.words(t, pid); !strings.Contains(got, notThere) {
			t.Errorf("said %q", got)
		}
	})
	// A filter can not have a listener below another that has one.
	t.Run("not to be had", func(t *testing.T) {
		p := newRefused(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine
			allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
			fprog := unix.SockFprog{Len: 1, Filter: &allow}
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				t.Error(err)
			}
			other, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
				uintptr(unsafe.Pointer(&fprog)))
			if errno != 0 {
				t.Error(errno)
				return
			}
			defer unix.Close(int(other))
			pid, _, err := StartProgram(p.Program)
			if err != nil {
				t.Error(err)
				return
			}
			if got := p.words(t, pid); !strings.Contains(got, notPermitted) {
				t.Errorf("said %q", got)
			}
		}()
		<-done
		if l := p.listener(t); l != nil {
			t.Error("there is a listener")
		}
	})
	// The supervisor dies while the program is held at the probe. StartProgram, which waits for the exec, returns, so that the init can exit.
	t.Run("lost while held", func(t *testing.T) {
		// StartProgram keeps its thread until the exec, and the runtime can not stop it: another processor and no collection are needed.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		p := newRefused(t)
		p.Probe, p.Held = true, true
		type outcome struct {
			stage initproto.Stage
			err   error
		}
		ended := make(chan outcome, 1)
		go func() {
			_, stage, err := StartProgram(p.Program)
			ended <- outcome{stage, err}
		}()
		var l *os.File
		for l = p.listener(t); l == nil; l = p.listener(t) {
			time.Sleep(time.Millisecond)
		}
		select {
		case o := <-ended:
			t.Fatalf("the program was not held: %+v", o)
		case <-time.After(50 * time.Millisecond):
		}
		_ = l.Close()
		select {
		case o := <-ended:
			if o.stage != initproto.StageProbe || !errors.Is(o.err, unix.ENOSYS) {
				t.Errorf("%+v", o)
			}
		case <-time.After(time.Minute):
			t.Error("StartProgram waits for a process that will never be answered")
			killChildren(t)
			<-ended
		}
	})
	// A program that is not executed leaves only the message.
	t.Run("not executed", func(t *testing.T) {
		p := newRefused(t)
		p.Paths = []string{"/nowhere"}
		before, _ := os.ReadDir("/proc/self/fd")
		for range 10 {
			if _, stage, err := StartProgram(p.Program); stage != initproto.StageExec || !errors.Is(err, unix.ENOENT) {
				t.Fatalf("%v, %v", stage, err)
			}
			if err := p.listener(t).Close(); err != nil {
				t.Error(err)
			}
		}
		if after, _ := os.ReadDir("/proc/self/fd"); len(after) != len(before) {
			t.Errorf("%d descriptors, %d before", len(after), len(before))
		}
	})
}

// The filter without a listener equals one that never had notifications.
func TestWithoutNotifications(t *testing.T) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF | 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF | 97},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | 38}, {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF}, // a constant that only looks like the action
	}
	plain := WithoutNotifications(filter)
	for i, in := range filter {
		want := in
		switch i {
		case 2:
			want.K = unix.SECCOMP_RET_ERRNO | 1
		case 3:
			want.K = unix.SECCOMP_RET_ERRNO | 97
		}
		if plain[i] != want {
			t.Errorf("instruction %d: %+v, want %+v", i, plain[i], want)
		}
	}
	if filter[2].K != unix.SECCOMP_RET_USER_NOTIF|1 {
		t.Error("the given filter was changed")
	}
	if same := WithoutNotifications(plain); &same[0] != &plain[0] {
		t.Error("a filter that tells of nothing was copied")
	}
}

// killChildren kills the child processes of this process.
func killChildren(t *testing.T) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
