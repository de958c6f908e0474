package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/interval"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The protocols of systemd, by sd_listen_fds(3) and sd_notify(3):
//
//	LISTEN_PID=our pid, LISTEN_FDS=n, LISTEN_FDNAMES=a:b   sockets are descriptors 3 … 3+n-1
//	NOTIFY_SOCKET=/path or @abstract                       datagrams of lines: READY=1, STATUS=…, STOPPING=1, WATCHDOG=1
//	WATCHDOG_USEC=µs, WATCHDOG_PID=our pid                 a WATCHDOG=1 is due within that time
//
// coreos/go-systemd treats an invalid LISTEN_FDS as none, writes without a deadline, and reads NOTIFY_SOCKET at every message, so that the
// variable would have to stay in the environment, where runc and other children find it. The rest of it would save 20 lines.
const firstInherited = 3

// Inherited is a listener that systemd has opened.
type Inherited struct {
	Name     string
	Listener net.Listener
}

// Activated takes over the sockets of systemd, and unsets its variables so that children do not see them. It returns nil without sockets.
func Activated() ([]Inherited, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // fails only for invalid names
	}
	if count == "" || pid != strconv.Itoa(os.Getpid()) { // meant for another process
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 1024 {
		return nil, &sandbox.Error{
			Op: fmt.Sprintf("LISTEN_FDS=%q", count), Kind: sandbox.ErrInvalid, Err: errors.New("not a number of descriptors from 0 to 1024"),
		}
	}
	all := make([]Inherited, 0, n)
	called := strings.Split(names, ":")
	for i := range n {
		name := ""
		if i < len(called) {
			name = called[i]
		}
		// The listener has a duplicate that no child inherits; closing the file closes the original.
		f := os.NewFile(uintptr(firstInherited+i), name)
		l, err := net.FileListener(f)
		_ = f.Close() // the listener has a duplicate
		if err != nil {
			for _, in := range all {
				_ = in.Listener.Close() // the first error matters more
			}
			return nil, &sandbox.Error{
				Op: fmt.Sprintf("descriptor %d (%s) of LISTEN_FDS", firstInherited+i, name), Err: cause(err),
				Hint: "set ListenStream= in the socket unit",
			}
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // systemd owns the socket and keeps listening
		}
		all = append(all, Inherited{name, l})
	}
	return all, nil
}

// Notifier reports the state of a service to systemd. All methods of a nil Notifier do nothing.
type Notifier struct {
	conn  net.Conn
	every time.Duration // between two watchdog messages; 0 for none

	stop func() // ends the watchdog messages
	once sync.Once
}

// NewNotifier connects to systemd's notification socket, and unsets its variables. It returns nil if there is none. The caller closes it.
func NewNotifier() (*Notifier, error) {
	path, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails only for invalid names
	}
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, sandbox.Invalid(fmt.Sprintf("NOTIFY_SOCKET=%q", path), "not a path or an abstract name")
	}
	// net translates a leading @ to the NUL of an abstract name
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, &sandbox.Error{Op: "NOTIFY_SOCKET " + path, Err: cause(err)}
	}
	n := &Notifier{conn: c, stop: func() {}}
	if pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseInt(usec, 10, 64); err == nil && us > 0 {
			n.every = time.Duration(us) * time.Microsecond / 2 // as sd_watchdog_enabled(3) recommends
		}
	}
	return n, nil
}

const notifyTimeout = time.Second

// Send sends lines. It ignores failures, which must not stop the server, and blocks for at most a second.
func (n *Notifier) Send(lines ...string) {
	if n == nil {
		return
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	_, _ = n.conn.Write([]byte(strings.Join(lines, "\n")))
}

// Ready reports that the server accepts requests, and starts to send watchdog messages, each after alive has returned true.
func (n *Notifier) Ready(status string, alive func() bool) {
	if n == nil {
		return
	}
	n.Send("READY=1", "STATUS="+status, "MAINPID="+strconv.Itoa(os.Getpid()))
	if n.every <= 0 {
		return
	}
	n.stop = interval.Start(n.every, func() {
		if alive() {
			n.Send("WATCHDOG=1")
		}
	})
}

// Close stops the watchdog messages. It may be called twice.
func (n *Notifier) Close() (err error) {
	if n == nil {
		return nil
	}
	n.once.Do(func() {
		n.stop()
		err = n.conn.Close()
	})
	return err
}
