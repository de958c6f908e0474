package spawn

import (
	"cmp"
	"io"
	"os"
	"syscall"

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
	failed := o.raw.Read(func(poll uintptr) bool {
		for o.ended < len(o.pipes) {
			var ready [1]unix.EpollEvent
			var found int
			if found, err = unix.EpollWait(int(poll), ready[:], 0); err != nil || found == 0 {
				return err != nil
			}
			stream = int(ready[0].Fd)
			fd := o.fds[stream]
			switch n, err = unix.Read(fd, p); {
			case err == unix.EAGAIN: // an earlier read has taken the data
				continue
			case n == 0 && err == nil:
				o.ended++
				err = unix.EpollCtl(int(poll), unix.EPOLL_CTL_DEL, fd, nil)
			case err == nil:
				// If the pipe has more, this puts it at the end of the list. To read again instead could overtake the other stream.
				err = unix.EpollCtl(int(poll), unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: edge, Fd: ready[0].Fd})
				return true
			}
			if err != nil {
				return true
			}
		}
		err = io.EOF
		return true
	})
	return stream, max(n, 0), cmp.Or(failed, err)
}

// close ends a read that is under way, and then closes the pipes. It may be called twice.
func (o *outputs) close() {
	for _, f := range [...]*os.File{o.poll, o.pipes[0], o.pipes[1]} { // the first returns after the read
		_ = f.Close()
	}
}
