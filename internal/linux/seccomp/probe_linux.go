package seccomp

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Probe is a process that waits between its last isolation step and its program: it has made the call of initproto.ProbeMark,
// and the kernel stops it there until Answer. The arrival of the call proves that our filter is in force.
type Probe struct {
	PID   int           // in this process's pid namespace; the kernel does not reuse it before Answer succeeds
	Tried syscall.Errno // the errno of the attempt that only Landlock refuses; 0 if that succeeded

	raw syscall.RawConn
	id  uint64
}

// ErrNoProbe says that a process ended before it made the call, or made another one.
var ErrNoProbe = errors.New("the process ended before it could be measured")

// WaitForProbe waits for the call at the listener of a filter. The listener is non-blocking and stays the caller's. It returns
// when the process has made the call or has ended.
func WaitForProbe(listener *os.File) (*Probe, error) {
	s, err := sizes()
	if err != nil {
		return nil, err
	}
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	in := make([]byte, s.notification)
	p := &Probe{raw: raw}
	failed := ErrNoProbe
	err = raw.Read(func(fd uintptr) (over bool) {
		for {
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(ready, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n > 0 && ready[0].Revents&unix.POLLIN == 0 {
				return true
			}
			if n == 0 {
				return false
			}
			clear(in)
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&in[0])))
			if errno == unix.EINTR || errno == unix.ENOENT { // ENOENT: interrupted; the process repeats the call, or has ended
				continue
			}
			if n := (*notification)(unsafe.Pointer(&in[0])); errno == 0 && n.args[0] == initproto.ProbeMark && Name("", n.nr) == "seccomp" {
				p.PID, p.Tried, p.id, failed = int(n.pid), syscall.Errno(n.args[1]), n.id, nil
			}
			return true
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return p, nil
}

// Answer lets the process execute its program, or ends it. If the error is nil, the process existed until now.
func (p *Probe) Answer(proceed bool) error {
	s, err := sizes()
	if err != nil {
		return err
	}
	out := make([]byte, s.response)
	r := response{id: p.id, error: -int32(unix.ECANCELED)}
	if proceed {
		r = response{id: p.id, val: initproto.ProbeGo}
	}
	*(*response)(unsafe.Pointer(&out[0])) = r
	err = ErrNoProbe
	rawErr := p.raw.Control(func(fd uintptr) {
		for {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&out[0])))
			if errno == unix.EINTR {
				continue
			}
			if errno == 0 {
				err = nil
			}
			return
		}
	})
	return errors.Join(rawErr, err)
}
