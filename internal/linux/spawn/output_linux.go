package spawn

import (
	"cmp"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outputs reads the pipes of stdout and stderr in the order in which they became readable. The kernel appends a
// descriptor to an epoll instance's list of ready ones within the write that makes the descriptor ready, and an
// edge-triggered descriptor leaves the list when it is reported. So the head of the list is the pipe with the oldest
// unread data, provided that the pipes were added before the first write.
type outputs struct {
	poll  *os.File // the epoll instance, which the runtime's poller watches
	raw   syscall.RawConn
	pipes [2]*os.File // of stdout and stderr; the runtime's poller does not know them
	fds   [2]int      // of the pipes; valid until close has ended the read
	ended int         // pipes
	stops atomic.Bool // read does not wait
}

// ErrNoOutput is the error of a read that found nothing and was told not to wait.
var ErrNoOutput = errors.New("no output")

// stopAtEmpty tells a read that waits, and later ones, whether to wait.
func (o *outputs) stopAtEmpty(stop bool) {
	o.stops.Store(stop)
	var until time.Time // none
	if stop {
		until = time.Unix(1, 0)
	}
	_ = o.poll.SetReadDeadline(until) // fails when closed, which ends the read as well
}

// edge: a level-triggered descriptor would stay in the list after it was read, ahead of the other.
const edge = unix.EPOLLIN | unix.EPOLLET

// newOutputs owns the pipes, also after an error.
func newOutputs(stdout, stderr int) (_ *outputs, err error) {
	o := &outputs{pipes: [2]*os.File{os.NewFile(uintptr(stdout), "stdout"), os.NewFile(uintptr(stderr), "stderr")}, fds: [2]int{stdout, stderr}}
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(poll, true) // for the runtime's poller
		o.poll = os.NewFile(uintptr(poll), "output")
	}
	for n, fd := range [...]int{stdout, stderr} {
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if err == nil {
			err = unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: edge, Fd: int32(n)})
		}
	}
	if err == nil {
		o.raw, err = o.poll.SyscallConn()
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// read waits for data, and reads from the pipe that has the oldest. It returns io.EOF when both pipes have ended.
func (o *outputs) read(p []byte) (stream, n int, err error) {
	found := false
	try := func(poll uintptr) bool {
		stream, n, found, err = o.tryRead(int(poll), p)
		return found
	}
	for {
		if o.stops.Load() { // past its deadline, Read would not even try
			failed := o.raw.Control(func(poll uintptr) { try(poll) })
			if failed == nil && !found {
				failed = ErrNoOutput
			}
			return stream, n, cmp.Or(failed, err)
		}
		failed := o.raw.Read(try)
		if !errors.Is(failed, os.ErrDeadlineExceeded) {
			return stream, n, cmp.Or(failed, err)
		}
	}
}

// tryRead does the same without waiting; false: there is no data yet.
func (o *outputs) tryRead(poll int, p []byte) (stream, n int, found bool, err error) {
	for o.ended < len(o.pipes) {
		var ready [1]unix.EpollEvent
		if events, err := unix.EpollWait(poll, ready[:], 0); err != nil || events == 0 {
			return 0, 0, err != nil, err
		}
		stream = int(ready[0].Fd)
		fd := o.fds[stream]
		switch n, err = unix.Read(fd, p); {
		case err == unix.EAGAIN: // an earlier read has taken the data
			continue
		case n == 0 && err == nil:
			o.ended++
			err = unix.EpollCtl(poll, unix.EPOLL_CTL_DEL, fd, nil)
		case err == nil:
			// If the pipe has more, this puts it at the end of the list. To read again instead could overtake the other stream.
			err = unix.EpollCtl(poll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: edge, Fd: ready[0].Fd})
			return stream, n, true, err
		}
		if err != nil {
			return stream, max(n, 0), true, err
		}
	}
	return 0, 0, true, io.EOF
}

// unread reports whether a pipe has output that was not read.
func (o *outputs) unread() (some bool) {
	_ = o.raw.Control(func(uintptr) { // keeps the pipes open meanwhile
		for _, fd := range o.fds {
			n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
			some = some || err == nil && n > 0
		}
	})
	return some
}

// close ends a read that is under way, and then closes the pipes. It may be called twice.
func (o *outputs) close() {
	for _, f := range [...]*os.File{o.poll, o.pipes[0], o.pipes[1]} { // the first returns after the read
		_ = f.Close()
	}
}
