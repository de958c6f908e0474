package spawn

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
)

// running is a program that was executed.
type running struct {
	ended    <-chan exit // its wait status; closed without one when the init died first
	began    uint64
	pid      int      // in the sandbox's own pid namespace
	master   *os.File // the terminal's, if one was asked for
	listener *os.File // non-blocking; nil if its filter does not notify, or the kernel has none
	examined bool
}

// exec makes the init run a program. It returns after the program's exec. The caller still owns the descriptors.
func (i *Init) exec(ctx context.Context, m *initproto.Exec, fds []int, examiner Examiner) (running, error) {
	ans, status := make(chan answer, 1), make(chan exit, 1)
	var waits chan *os.File
	if m.Probe = examiner != nil && measures(); m.Probe {
		waits = make(chan *os.File, 1)
	}
	i.mu.Lock()
	select {
	case <-i.done:
		i.mu.Unlock()
		return running{}, ErrGone
	default:
	}
	i.waiting[m.ID], i.exits[m.ID] = ans, status
	if waits != nil {
		i.examiners[m.ID] = waits
	}
	i.mu.Unlock()
	forget := func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.waiting, m.ID)
		delete(i.exits, m.ID)
		delete(i.examiners, m.ID)
	}
	fds = weakenExec(m, fds)
	if err := i.conn.send(initproto.Encode(m), fds); err != nil {
		forget()
		return running{}, errors.Join(ErrGone, err)
	}
	if m.Probe {
		examiner.Prepare()
	}
	r := running{ended: status}
	var a answer
	var ok bool
	var refusal error // by the examiner
	for answered := false; !answered; {
		select {
		case a, ok = <-ans:
			answered = true
		case l := <-waits:
			stop := context.AfterFunc(ctx, i.End) // ends the process, and with it the wait for its probe
			r.examined, refusal = answerProbe(l, examiner)
			stop()
		case <-ctx.Done():
			// A program that is being started must not run unsupervised.
			i.End()
			forget()
			select {
			case a = <-ans: // just now
				closeFiles(a.files)
				closeFiles([]*os.File{a.listener})
			default:
			}
			return running{}, ctx.Err()
		}
	}
	i.mu.Lock()
	delete(i.examiners, m.ID)
	i.mu.Unlock()
	switch m := a.msg.(type) {
	case *initproto.Started:
		if refusal != nil { // the process was killed before the answer
			forget()
			closeFiles(append(a.files, a.listener))
			return running{}, refusal
		}
		r.began, r.pid, r.listener = m.At, int(m.PID), a.listener
		if len(a.files) > 0 {
			r.master = a.files[0]
			closeFiles(a.files[1:])
		}
		return r, nil
	case *initproto.Failed:
		forget()
		closeFiles(a.files)
		if refusal != nil {
			return running{}, refusal
		}
		return running{}, &Error{Stage: m.Stage, Detail: m.Detail, Errno: syscall.Errno(m.Errno)}
	}
	if !ok {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.lost != nil {
			return running{}, i.lost
		}
		return running{}, ErrGone
	}
	return running{}, initproto.ErrMalformed
}

// answerProbe calls the examiner for a process that waits at a listener, and lets the process continue or end. A
// process that is gone was not examined, which is no error: the init reports its end.
func answerProbe(listener *os.File, examiner Examiner) (examined bool, refusal error) {
	for {
		probe, err := seccomp.WaitForProbe(listener)
		if err != nil {
			_ = listener.Close() // a process that made another call must not wait for an answer
			return false, nil
		}
		refusal = examiner.Examine(probe)
		if err = probe.Answer(refusal == nil); err == nil || refusal != nil {
			return err == nil && refusal == nil, refusal
		}
		// The process is gone, or a signal has interrupted its call, which it repeats: kernels before 5.19 let signals
		// do that.
	}
}

// Signal reaches one program, or all.
func (i *Init) Signal(m *initproto.Signal) error {
	if err := i.conn.send(initproto.Encode(m), nil); err != nil {
		return errors.Join(ErrGone, err)
	}
	return nil
}
