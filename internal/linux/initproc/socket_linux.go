package initproc

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// socket is the init's end of the connection: plain blocking system calls, no poller.
type socket struct {
	fd    int
	inbox initproto.Inbox[int]
}

// receive returns the next message and the descriptors that came with it, which the caller owns.
func (s *socket) receive() (any, []int, error) {
	for {
		if m, fds, err := s.inbox.Take(); m != nil || err != nil {
			return m, fds, err
		}
		if err := s.fill(); err != nil {
			return nil, nil, err
		}
	}
}

// fill reads once.
func (s *socket) fill() error {
	buf := make([]byte, 16<<10)
	oob := make([]byte, unix.CmsgSpace(4*initproto.MaxDescriptors))
	n, oobn, flags, _, err := recvmsg(s.fd, buf, oob)
	if err != nil {
		return err
	}
	var fds []int
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return err
		}
		for i := range messages {
			some, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return err
			}
			fds = append(fds, some...)
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return initproto.ErrMalformed
	}
	if n == 0 {
		return io.EOF
	}
	s.inbox.Put(buf[:n], fds...)
	return nil
}

func recvmsg(fd int, p, oob []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(fd, p, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return
		}
	}
}

// send writes a frame with its descriptors, which the caller still owns.
func (s *socket) send(frame []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	initproto.Accompany(frame, len(fds))
	for len(frame) > 0 {
		n, err := unix.SendmsgN(s.fd, frame, oob, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		frame, oob = frame[n:], nil
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
