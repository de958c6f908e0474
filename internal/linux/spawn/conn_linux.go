package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// conn is the supervisor's end of the socket. It goes through the runtime's poller, so that a
// thousand idle sandboxes cost no thread. (Package net could do this too; it would cost every start
// of the command its initialisers.)
type conn struct {
	file *os.File
	raw  syscall.RawConn

	sending sync.Mutex // keeps a frame and its descriptors together

	inbox initproto.Inbox[*os.File] // one reader only
	peer  int                       // the pid of the last sender, if identify is on
}

// identify switches on or off that the kernel reports the pid of the sender.
func (c *conn) identify(on int) error {
	var err error
	rawErr := c.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, on) })
	return errors.Join(rawErr, err)
}

func newConn(fd int) (*conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "sandbox-init control")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &conn{file: f, raw: raw}, nil
}

func (c *conn) close() { _ = c.file.Close() }

func (c *conn) send(frame []byte, fds []int) error {
	var oob []byte
	if len(fds) > initproto.MaxDescriptors {
		return fmt.Errorf("%d descriptors are more than one message carries", len(fds))
	}
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	initproto.Accompany(frame, len(fds))
	c.sending.Lock()
	defer c.sending.Unlock()
	var err error
	rawErr := c.raw.Write(func(fd uintptr) bool {
		for len(frame) > 0 {
			var n int
			n, err = unix.SendmsgN(int(fd), frame, oob, nil, unix.MSG_NOSIGNAL)
			switch {
			case errors.Is(err, unix.EAGAIN):
				err = nil
				return false
			case errors.Is(err, unix.EINTR):
				err = nil
				continue
			case err != nil:
				return true
			}
			frame, oob = frame[n:], nil
		}
		return true
	})
	return errors.Join(rawErr, err)
}

// receive returns the next message and its descriptors, which the caller owns.
func (c *conn) receive() (any, []*os.File, error) {
	for {
		if m, files, err := c.inbox.Take(); m != nil || err != nil {
			return m, files, err
		}
		if err := c.fill(); err != nil {
			return nil, nil, err
		}
	}
}

// fill reads once. Answers are small.
func (c *conn) fill() error {
	var buf [512]byte
	oob := make([]byte, unix.CmsgSpace(4*4)+unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn, flags int
	var err error
	rawErr := c.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), buf[:], oob, unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if rawErr != nil || err != nil {
		return errors.Join(rawErr, err)
	}
	var files []*os.File
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return err
		}
		for i := range messages {
			if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
				c.peer = int(who.Pid)
				continue
			}
			fds, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return err
			}
			for _, fd := range fds {
				// Non-blocking, so that a terminal's master is read through the poller too.
				_ = unix.SetNonblock(fd, true)
				files = append(files, os.NewFile(uintptr(fd), "sandbox-init"))
			}
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeFiles(files)
		return c.whyTruncated()
	}
	if n == 0 {
		return io.EOF
	}
	c.inbox.Put(buf[:n], files...)
	return nil
}

// whyTruncated is the error of a message with missing descriptors: it had more than the maximum, or this process can not
// open more. The kernel does not report which.
func (c *conn) whyTruncated() error {
	err := initproto.ErrMalformed
	_ = c.raw.Control(func(fd uintptr) {
		if spare, dupErr := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); dupErr != nil {
			err = dupErr
		} else {
			_ = unix.Close(spare)
		}
	})
	return err
}
