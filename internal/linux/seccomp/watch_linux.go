package seccomp

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxNotifications is how many refused calls are answered for one program. Each costs us some time that is not in the
// program's own CPU limit, so a program must not be able to cause many (S10). After the last the listener is closed,
// and the kernel refuses by itself, with ENOSYS.
const MaxNotifications = 64

// notification is struct seccomp_notif; the kernel's may be longer.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    uint32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32 // never SECCOMP_USER_NOTIF_FLAG_CONTINUE: the program could change its mind in between
}

// notifySizes is struct seccomp_notif_sizes.
type notifySizes struct{ notification, response, data uint16 }

var sizes = sync.OnceValues(func() (notifySizes, error) {
	var s notifySizes
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return s, fmt.Errorf("this kernel does not tell of refused calls: %w", errno)
	}
	if uintptr(s.notification) < unsafe.Sizeof(notification{}) || uintptr(s.response) < unsafe.Sizeof(response{}) {
		return s, errors.New("this kernel tells of refused calls in a form that is not understood")
	}
	return s, nil
})

// Notifiable reports why refused calls can not be counted on this machine, or nil.
func Notifiable() error {
	_, err := sizes()
	return err
}

// Watch counts the calls that a filter refuses to a program and to all that descend from it, and refuses them.
type Watch struct {
	policy Policy
	file   *os.File
	first  chan Refusal  // never full: there are no more refusals than it has room for
	done   chan struct{} // closed when nothing more is counted

	// Of the goroutine that serves.
	left    int     // notifications until the listener is closed
	idle    int     // times that we were woken for nothing
	last    *uint64 // the latest notification's id
	in, out []byte

	mu        sync.Mutex
	refusals  []Refusal
	saturated bool
}

// NewWatch serves the listener of a filter that was compiled from p with Notify. The listener is non-blocking, and the
// watch's from here on; the caller closes the watch.
func NewWatch(listener *os.File, p Policy) (*Watch, error) {
	s, err := sizes()
	var raw syscall.RawConn
	if err == nil {
		raw, err = listener.SyscallConn()
	}
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	w := &Watch{
		policy: p, file: listener, first: make(chan Refusal, MaxNotifications), done: make(chan struct{}),
		left: MaxNotifications, in: make([]byte, s.notification), out: make([]byte, s.response),
	}
	go w.serve(raw)
	return w, nil
}

// First has each kind of call when it is first refused, and ends with the watch.
func (w *Watch) First() <-chan Refusal { return w.first }

// Refusals are the calls that were refused so far, in order of their first time. When saturated, there may have been
// more of all of them, and others.
func (w *Watch) Refusals() (list []Refusal, saturated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.refusals), w.saturated
}

// Close ends the counting; calls that are refused later fail with ENOSYS. Twice is fine.
func (w *Watch) Close() {
	_ = w.file.Close()
	<-w.done
}

func (w *Watch) serve(raw syscall.RawConn) {
	defer close(w.done)
	defer close(w.first)
	defer w.file.Close()
	_ = raw.Read(func(fd uintptr) (over bool) { return w.look(int(fd)) }) // fails when closed, which is an end like another
}

// maxIdle bounds how often we are woken for nothing. Once per notification is ordinary: several come at one waking.
const maxIdle = 2 * MaxNotifications

// look answers what there is, and reports whether that was all there will ever be. It does not block: the kernel has at
// least as many tickets for the receiver as there are notifications to receive, and nobody else takes any.
func (w *Watch) look(fd int) (over bool) {
	for found := false; ; found = true {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return true
		case n == 0:
			if !found {
				w.idle++
			}
			return w.exhausted(w.idle > maxIdle)
		case ready[0].Revents&unix.POLLIN == 0: // the last process under the filter is gone
			return true
		}
		if err := w.answer(fd); err != nil {
			return true
		}
		if w.exhausted(w.left <= 0) {
			return true
		}
	}
}

func (w *Watch) exhausted(is bool) bool {
	if is {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.saturated = true
	}
	return is
}

// answer takes one notification, counts it, and refuses the call as the plain filter would.
func (w *Watch) answer(fd int) error {
	clear(w.in)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&w.in[0])))
	switch errno {
	case 0:
	case unix.EINTR:
		return nil
	case unix.ENOENT: // interrupted, or killed, before we came
		w.left--
		return nil
	default:
		return errno
	}
	n := (*notification)(unsafe.Pointer(&w.in[0]))
	w.spend(n.id)
	w.count(n)

	refusal := unix.EPERM
	if act, err := Decide(w.policy, "", n.nr, n.args); err == nil && act.Errno() != 0 {
		refusal = unix.Errno(act.Errno())
	}
	clear(w.out)
	*(*response)(unsafe.Pointer(&w.out[0])) = response{id: n.id, error: -int32(refusal)}
	for {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&w.out[0])))
		switch errno {
		case unix.EINTR:
			continue
		case 0, unix.ENOENT: // ENOENT: it was killed meanwhile
			return nil
		}
		return errno
	}
}

// spend takes a notification off what is left, and with it those that we were woken for and never saw: a program can have
// its own calls interrupted by signals. The kernel numbers them without gaps.
func (w *Watch) spend(id uint64) {
	cost := uint64(1)
	if w.last != nil {
		cost = id - *w.last
	}
	w.last = &id
	w.left -= int(min(cost, math.MaxInt32))
}

func (w *Watch) count(n *notification) {
	call := Call("", n.nr, n.args)
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.IndexFunc(w.refusals, func(r Refusal) bool { return r.Call == call })
	if at >= 0 {
		w.refusals[at].Count++
		return
	}
	r := Refusal{Name: Name("", n.nr), Call: call, Count: 1}
	w.refusals = append(w.refusals, r)
	w.first <- r
}
