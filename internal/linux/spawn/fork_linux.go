package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Foreign is a program of an init that a zygote forks into its namespaces. The zygote gets the descriptors; once the
// program runs and its parent has ended, it is like any other.
type Foreign struct {
	program *Program

	Stdio   [3]int   // the program's ends of its pipes
	PIDNS   *os.File // the init's
	UserNS  *os.File // the init's
	PIDFD   int      // the init's, by which its other namespaces are joined
	Ruleset *os.File // of Landlock, or nil
	Probe   bool     // as in initproto.Exec
}

// Expect prepares for a program that a zygote forks. The caller calls Adopt or Close.
func (i *Init) Expect(ctx context.Context, m *initproto.Expect) (_ *Foreign, err error) {
	f := &Foreign{program: &Program{init: i, id: m.ID}, Probe: measures(), PIDFD: -1, Stdio: [3]int{-1, -1, -1}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	ans := make(chan answer, 1)
	i.mu.Lock()
	select {
	case <-i.done:
		i.mu.Unlock()
		return nil, ErrGone
	default:
	}
	i.waiting[m.ID] = ans
	// Its pid can not be reused while it is not reaped, which takes this lock.
	namespaces := "/proc/" + strconv.Itoa(i.pid) + "/ns/"
	if f.UserNS, err = os.Open(namespaces + "user"); err == nil {
		f.PIDNS, err = os.Open(namespaces + "pid")
	}
	if err == nil {
		f.PIDFD, err = unix.FcntlInt(uintptr(i.pidfd), unix.F_DUPFD_CLOEXEC, 3)
	}
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		delete(i.waiting, m.ID)
		i.mu.Unlock()
	}()
	if err != nil {
		return nil, fmt.Errorf("open namespaces: %w", err)
	}
	weakenExpect(m)
	if err := i.conn.send(initproto.Encode(m), nil); err != nil {
		return nil, errors.Join(ErrGone, err)
	}
	theirs, err := f.program.openPipes(false) // while the init works
	copy(f.Stdio[:], theirs)
	if err != nil {
		return nil, err
	}
	var a answer
	var ok bool
	select {
	case a, ok = <-ans:
	case <-ctx.Done():
		i.End()
		i.mu.Lock()
		delete(i.waiting, m.ID)
		i.mu.Unlock()
		select {
		case a = <-ans: // just now
			closeFiles(a.files)
		default:
		}
		return nil, ctx.Err()
	}
	if !ok {
		return nil, ErrGone
	}
	switch m := a.msg.(type) {
	case *initproto.Expected:
		if len(a.files) > 0 {
			f.Ruleset = a.files[0]
			closeFiles(a.files[1:])
		}
		return f, nil
	case *initproto.Failed:
		closeFiles(a.files)
		return nil, &Error{Stage: m.Stage, Detail: m.Detail, Errno: syscall.Errno(m.Errno)}
	}
	closeFiles(a.files)
	return nil, initproto.ErrMalformed
}

// Adopt makes the init take on the program, which is its child and started at that time of the monotonic clock. The
// program owns the listener from here on; it may be nil. With a listener, the examiner inspects the process before it
// continues, as in Run. The caller still calls Close.
func (f *Foreign) Adopt(pid uint32, began uint64, listener *os.File, examiner Examiner) (*Program, error) {
	p, i := f.program, f.program.init
	status := make(chan exit, 1)
	p.running = running{ended: status, began: began, pid: int(pid), listener: listener}
	if listener != nil && f.Probe {
		var refusal error
		if p.examined, refusal = answerProbe(listener, examiner); refusal != nil {
			return nil, refusal
		}
		p.began = initproc.Monotonic()
	}
	i.mu.Lock()
	select {
	case <-i.done:
		i.mu.Unlock()
		p.Close()
		return nil, ErrGone
	default:
	}
	i.exits[p.id] = status
	i.mu.Unlock()
	if err := i.conn.send(initproto.Encode(&initproto.Adopt{ID: p.id, PID: pid}), nil); err != nil {
		i.mu.Lock()
		delete(i.exits, p.id)
		i.mu.Unlock()
		p.Close()
		return nil, errors.Join(ErrGone, err)
	}
	f.program = nil
	return p, nil
}

// Joined closes the namespaces: the fork has joined them.
func (f *Foreign) Joined() {
	if f.PIDFD >= 0 {
		_ = unix.Close(f.PIDFD)
		f.PIDFD = -1
	}
	closeFiles([]*os.File{f.PIDNS, f.UserNS}) // nil is allowed
}

// Close closes the program's descriptors, and the supervisor's ends of its pipes if it was not adopted. It may be called
// twice.
func (f *Foreign) Close() {
	for n, fd := range f.Stdio {
		if fd >= 0 {
			_ = unix.Close(fd)
			f.Stdio[n] = -1
		}
	}
	f.Joined()
	closeFiles([]*os.File{f.Ruleset}) // nil is allowed
	if f.program != nil {
		f.program.Close()
	}
}
