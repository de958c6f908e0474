package delegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// address is a socket of the user's service manager, or of a bus that it is on.
type address struct {
	path string // beginning with a zero byte for an abstract one
	bus  bool   // a bus is in between
}

func (a address) String() string { return strings.Replace(a.path, "\x00", "@", 1) }

// addresses lists the sockets in the order in which systemctl tries them: the manager's own socket is one hop less and exists
// without a bus; the bus is the documented way.
func addresses(getenv func(string) string, euid int) []address {
	runtime := getenv("XDG_RUNTIME_DIR")
	if !strings.HasPrefix(runtime, "/") {
		runtime = "/run/user/" + strconv.Itoa(euid)
	}
	list := []address{{path: runtime + "/systemd/private"}}
	// unix:path=/run/user/1000/bus,guid=…;unix:abstract=…
	for entry := range strings.SplitSeq(getenv("DBUS_SESSION_BUS_ADDRESS"), ";") {
		options, ok := strings.CutPrefix(entry, "unix:")
		if !ok {
			continue
		}
		for option := range strings.SplitSeq(options, ",") {
			name, value, _ := strings.Cut(option, "=")
			switch value = unescape(value); {
			case value == "":
			case name == "path":
				list = append(list, address{value, true})
			case name == "abstract":
				list = append(list, address{"\x00" + value, true})
			}
		}
	}
	if standard := (address{runtime + "/bus", true}); list[len(list)-1] != standard {
		list = append(list, standard)
	}
	return list
}

// unescape undoes %2f and the like; what is no escape stays.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(v))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// conn is a connection on which one goroutine writes and reads, never longer than until the deadline.
type conn struct {
	fd       int
	deadline time.Time
	in       []byte // read and not yet taken
}

// dial connects and authenticates: the kernel passes this process's credentials, and nothing else is sent.
func dial(a address, deadline time.Time) (*conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	c := &conn{fd: fd, deadline: deadline}
	name := a.path
	if strings.HasPrefix(name, "\x00") {
		name = "@" + name[1:] // as x/sys spells it
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	if err == nil {
		err = c.authenticate()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

func (c *conn) authenticate() error {
	if err := c.write([]byte("\x00AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n")); err != nil {
		return err
	}
	for {
		line, rest, found := bytes.Cut(c.in, []byte("\r\n"))
		if !found {
			if len(c.in) > 4096 {
				return fmt.Errorf("authentication: %w", errMalformed)
			}
			if err := c.read(c.deadline); err != nil {
				return err
			}
			continue
		}
		c.in = rest
		switch word, _, _ := bytes.Cut(line, []byte(" ")); string(word) {
		case "DATA":
		case "OK":
			return nil
		default:
			return fmt.Errorf("%w: authentication: %q", ErrRefused, line)
		}
	}
}

func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if err := c.wait(unix.POLLOUT, c.deadline); err != nil {
				return err
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			b = b[n:]
		}
	}
	return nil
}

// read waits for more data, until then at most.
func (c *conn) read(then time.Time) error {
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(c.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if err := c.wait(unix.POLLIN, then); err != nil {
				return err
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		default:
			c.in = append(c.in, buf[:n]...)
			return nil
		}
	}
}

func (c *conn) wait(events int16, until time.Time) error {
	for {
		left := time.Until(until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		fds := []unix.PollFd{{Fd: int32(c.fd), Events: events}} //nolint:gosec // a descriptor is small
		n, err := unix.Poll(fds, int((left+time.Millisecond-1)/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			return nil
		}
	}
}

// receive returns the next message, or os.ErrDeadlineExceeded when none arrives before then.
func (c *conn) receive(then time.Time) (message, error) {
	for {
		n, err := messageLength(c.in)
		if err != nil {
			return message{}, err
		}
		if n > 0 && len(c.in) >= n {
			m, err := parseMessage(c.in[:n:n])
			c.in = c.in[n:]
			return m, err
		}
		if err := c.read(then); err != nil {
			return message{}, err
		}
	}
}

// deadline is the end of ctx, and at most timeout from now.
func deadline(ctx context.Context) time.Time {
	end := time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		return d
	}
	return end
}
