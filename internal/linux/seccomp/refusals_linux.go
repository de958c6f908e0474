package seccomp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxNotifications is how many refused calls are answered for one program. Each costs the supervisor time that is not in the
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
	// SECCOMP_USER_NOTIF_FLAG_CONTINUE for interface sockets alone. A program could change what a pointer leads to before the call goes on;
	// all arguments of socket are in registers, and no process inside may trace another.
	flags uint32
}

// notifySizes is struct seccomp_notif_sizes.
type notifySizes struct{ notification, response, data uint16 }

var sizes = sync.OnceValues(func() (notifySizes, error) {
	var s notifySizes
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return s, fmt.Errorf("seccomp: read notification sizes: %w; refused calls are not counted: use Linux 5.0 or later", errno)
	}
	if uintptr(s.notification) < unsafe.Sizeof(notification{}) || uintptr(s.response) < unsafe.Sizeof(response{}) {
		return s, errors.New("seccomp: read notification sizes: the kernel's structures are smaller than those of Linux 5.0")
	}
	return s, nil
})

// Notifiable reports why refused calls can not be counted on this machine, or nil.
func Notifiable() error {
	_, err := sizes()
	return err
}

// RefusalCounter counts and refuses the calls that a filter refuses to a program and to its descendants.
type RefusalCounter struct {
	policy Policy
	file   *os.File
	first  chan Refusal  // never full: it has room for every refusal
	done   chan struct{} // closed when counting has ended

	// Used by the serving goroutine only.
	left    int     // notifications until the listener is closed
	admits  int     // interface sockets that were admitted
	idle    int     // times that the goroutine was woken without a notification
	last    *uint64 // the latest notification's id
	in, out []byte

	mu        sync.Mutex
	refusals  []Refusal
	saturated bool
}

// NewRefusalCounter serves the listener of a filter that was compiled from p with Notify. The listener must be non-blocking;
// the counter owns it from here on. The caller closes the counter.
func NewRefusalCounter(listener *os.File, p Policy) (*RefusalCounter, error) {
	s, err := sizes()
	var raw syscall.RawConn
	if err == nil {
		raw, err = listener.SyscallConn()
	}
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	c := &RefusalCounter{
		policy: p, file: listener, first: make(chan Refusal, MaxNotifications), done: make(chan struct{}),
		left: MaxNotifications, in: make([]byte, s.notification), out: make([]byte, s.response),
	}
	go c.serve(raw)
	return c, nil
}

// First receives each kind of call when it is refused for the first time, and is closed when counting ends.
func (c *RefusalCounter) First() <-chan Refusal { return c.first }

// Refusals are the calls refused so far, in order of their first time. If saturated, the counts are lower bounds and other
// calls may be missing.
func (c *RefusalCounter) Refusals() (list []Refusal, saturated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refusals), c.saturated
}

// Close ends the counting; calls that are refused later fail with ENOSYS. It may be called twice.
func (c *RefusalCounter) Close() {
	_ = c.file.Close()
	<-c.done
}

func (c *RefusalCounter) serve(raw syscall.RawConn) {
	defer close(c.done)
	defer close(c.first)
	defer c.file.Close()
	_ = raw.Read(func(fd uintptr) (over bool) { return c.serveReady(int(fd)) }) // fails when closed, which ends the counting as well
}

// maxIdle bounds wake-ups without a notification. One per notification is ordinary: several may arrive with one wake-up.
const maxIdle = 2 * MaxNotifications

// serveReady answers the notifications that are ready, and reports whether none will follow. It does not block: the kernel has
// at least as many tickets for the receiver as notifications, and this goroutine is the only receiver.
func (c *RefusalCounter) serveReady(fd int) (over bool) {
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
				c.idle++
			}
			return c.exhausted(c.idle > maxIdle)
		case ready[0].Revents&unix.POLLIN == 0: // the last process under the filter has ended
			return true
		}
		if err := c.answer(fd); err != nil {
			return true
		}
		if c.exhausted(c.left <= 0) {
			return true
		}
	}
}

func (c *RefusalCounter) exhausted(is bool) bool {
	if is {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.saturated = true
	}
	return is
}

// answer receives one notification, counts it, and refuses the call as the plain filter would.
func (c *RefusalCounter) answer(fd int) error {
	clear(c.in)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&c.in[0])))
	switch errno {
	case 0:
	case unix.EINTR:
		return nil
	case unix.ENOENT: // the call was interrupted, or its process killed, before the notification was received
		c.left--
		return nil
	default:
		return errno
	}
	n := (*notification)(unsafe.Pointer(&c.in[0]))
	c.spend(n.id)
	if c.policy.Interfaces && c.admit(n) && c.respond(fd, response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}) == nil {
		c.left++
		return nil
	}
	c.count(n)

	refusal := unix.EPERM
	if act, err := Decide(c.policy, "", n.nr, n.args); err == nil && act.Errno() != 0 {
		refusal = unix.Errno(act.Errno())
	}
	return c.respond(fd, response{id: n.id, error: -int32(refusal)})
}

func (c *RefusalCounter) respond(fd int, r response) error {
	clear(c.out)
	*(*response)(unsafe.Pointer(&c.out[0])) = r
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&c.out[0])))
		switch errno {
		case unix.EINTR:
			continue
		case 0, unix.ENOENT: // ENOENT: the process was killed meanwhile
			return nil
		}
		return errno
	}
}

// Interface sockets are netlink sockets for the routing tables, of which libc opens one to list interfaces, and one for each name that it
// resolves to several addresses. Unread answers keep kernel memory that no limit counts, 600 KiB a socket: so few may be open at one time.
// Each thread may add one whose creation is not counted yet. The kernel allows programs, which have no capabilities, to read and not to
// change anything.
const (
	maxInterfaceSockets = 16
	freeAdmits          = 64               // at full speed
	admitInterval       = time.Millisecond // of the others: an admission takes the supervisor some 60 µs
)

// admit reports whether a call may go on: it makes an interface socket, and few are open in its namespace.
func (c *RefusalCounter) admit(n *notification) bool {
	family, kind, protocol := uint32(n.args[0]), uint32(n.args[1])&sockTypeMask, uint32(n.args[2])
	if Name("", n.nr) != "socket" || family != unix.AF_NETLINK || kind != unix.SOCK_RAW && kind != unix.SOCK_DGRAM ||
		protocol != unix.NETLINK_ROUTE || openNetlink(n.pid) >= maxInterfaceSockets {
		return false
	}
	if c.admits++; c.admits > freeAdmits {
		time.Sleep(admitInterval)
	}
	return true
}

// openNetlink returns how many netlink sockets are open in the network namespace of a process, bound or not. If that is unknown, it is
// more than may be.
func openNetlink(pid uint32) int {
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/net/protocols")
	if err != nil {
		return math.MaxInt
	}
	_, row, found := bytes.Cut(text, []byte("\nNETLINK "))
	columns := bytes.Fields(row[:min(len(row), 80)]) // size, sockets
	if !found || len(columns) < 2 {
		return math.MaxInt
	}
	n, err := strconv.Atoi(string(columns[1]))
	if err != nil {
		return math.MaxInt
	}
	return n
}

// spend subtracts a notification from the budget, and those that were never received: a program can have
// its own calls interrupted by signals. The kernel numbers notifications without gaps.
func (c *RefusalCounter) spend(id uint64) {
	cost := uint64(1)
	if c.last != nil {
		cost = id - *c.last
	}
	c.last = &id
	c.left -= int(min(cost, math.MaxInt32))
}

func (c *RefusalCounter) count(n *notification) {
	call := Call("", n.nr, n.args)
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.refusals, func(r Refusal) bool { return r.Call == call })
	if at >= 0 {
		c.refusals[at].Count++
		return
	}
	r := Refusal{Name: Name("", n.nr), Call: call, Count: 1}
	c.refusals = append(c.refusals, r)
	c.first <- r
}
