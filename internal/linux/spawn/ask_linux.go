package spawn

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// ask sends a message to an init that runs programs, and returns its answer, whose files the caller owns. A failure is an *Error.
func (i *Init) ask(ctx context.Context, id uint64, m initproto.Message) (answer, error) {
	ans := make(chan answer, 1)
	i.mu.Lock()
	select {
	case <-i.done:
		i.mu.Unlock()
		return answer{}, ErrGone
	default:
	}
	i.waiting[id] = ans
	i.mu.Unlock()
	if err := i.conn.send(initproto.Encode(m), nil); err != nil {
		i.mu.Lock()
		delete(i.waiting, id)
		i.mu.Unlock()
		return answer{}, errors.Join(ErrGone, err)
	}
	var a answer
	var ok bool
	select {
	case a, ok = <-ans:
	case <-ctx.Done():
		i.mu.Lock()
		delete(i.waiting, id)
		i.mu.Unlock()
		select {
		case a = <-ans: // just now
			closeFiles(a.files)
		default:
		}
		return answer{}, ctx.Err()
	}
	if !ok {
		return answer{}, ErrGone
	}
	if failed, bad := a.msg.(*initproto.Failed); bad {
		closeFiles(a.files)
		return answer{}, &Error{Stage: failed.Stage, Detail: failed.Detail, Errno: syscall.Errno(failed.Errno)}
	}
	return a, nil
}

// MakeDevice makes the loopback and the device of a network for programs that run already. TakeDevice returns the device's frames.
func (i *Init) MakeDevice(ctx context.Context, id uint64, d initproto.Device) error {
	a, err := i.ask(ctx, id, &initproto.Expect{ID: id, Loopback: true, Device: d})
	closeFiles(a.files)
	return err
}

// Take makes the init take on a process that one of its programs has made and that is its child by now. Its number, in the sandbox's own pid
// namespace, is a program's word: the init checks it. Take owns the descriptors of the process's output, also after an error; the caller owns
// the pidfd.
func (i *Init) Take(ctx context.Context, id uint64, pid uint32, stdout, stderr int) (_ *Program, pidfd *os.File, err error) {
	status := make(chan exit, 1)
	p := &Program{init: i, id: id, running: running{ended: status}}
	if p.out, err = newOutputs(stdout, stderr); err != nil {
		return nil, nil, err
	}
	i.mu.Lock()
	i.exits[id] = status
	i.mu.Unlock()
	a, err := i.ask(ctx, id, &initproto.Take{ID: id, PID: pid})
	started, ok := a.msg.(*initproto.Started)
	if err == nil && (!ok || len(a.files) != 1) {
		closeFiles(a.files)
		err = initproto.ErrMalformed
	}
	if err != nil {
		i.mu.Lock()
		delete(i.exits, id)
		i.mu.Unlock()
		p.Close()
		return nil, nil, err
	}
	p.began, p.pid = started.At, int(started.PID)
	return p, a.files[0], nil
}
