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

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The protocols of systemd, as sd_listen_fds(3) and sd_notify(3) have them:
//
//	LISTEN_PID=our pid, LISTEN_FDS=n, LISTEN_FDNAMES=a:b   sockets are descriptors 3 … 3+n-1
//	NOTIFY_SOCKET=/path or @abstract                       datagrams of lines: READY=1, STATUS=…, STOPPING=1, WATCHDOG=1
//	WATCHDOG_USEC=µs, WATCHDOG_PID=our pid                 a WATCHDOG=1 is due within that time
//
// coreos/go-systemd takes an LISTEN_FDS that is no number for none, writes without a deadline, and reads NOTIFY_SOCKET at every message, so
// that it would have to stay in the environment, where runc and other children find it. The rest of it would save 20 lines.
const firstInherited = 3

// Inherited is a listener that somebody has opened for us.
type Inherited struct {
	Name     string
	Listener net.Listener
}

// Activated takes over what systemd has opened, and forgets how it was told: children are not meant. None is fine.
func Activated() ([]Inherited, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // it can only fail for names that are none
	}
	if count == "" || pid != strconv.Itoa(os.Getpid()) { // it was somebody else's
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 1024 {
		return nil, &sandbox.Error{Op: fmt.Sprintf("LISTEN_FDS=%q", count), Kind: sandbox.ErrInvalid, Err: errors.New("not a number of descriptors")}
	}
	all := make([]Inherited, 0, n)
	called := strings.Split(names, ":")
	for i := range n {
		name := ""
		if i < len(called) {
			name = called[i]
		}
		// A file of its own closes the descriptor; the listener has a copy, which no child inherits.
		f := os.NewFile(uintptr(firstInherited+i), name)
		l, err := net.FileListener(f)
		_ = f.Close() // it was nothing, or is in the listener
		if err != nil {
			for _, in := range all {
				_ = in.Listener.Close() // what is wrong with the other comes first
			}
			return nil, &sandbox.Error{
				Op: fmt.Sprintf("descriptor %d (%s) of LISTEN_FDS", firstInherited+i, name), Err: cause(err), Hint: "ListenStream= in the socket unit",
			}
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it is systemd's, who goes on listening
		}
		all = append(all, Inherited{name, l})
	}
	return all, nil
}

// Notifier tells systemd how a service is doing. A nil one, where nobody wants to know, may be used as well.
type Notifier struct {
	conn  net.Conn
	every time.Duration // a sign of life is due; 0 is never

	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once
}

// NewNotifier looks who wants to know, and forgets how it was told. The caller closes it.
func NewNotifier() (*Notifier, error) {
	path, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // it can only fail for names that are none
	}
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, sandbox.Invalid(fmt.Sprintf("NOTIFY_SOCKET=%q", path), "neither a path nor an abstract name")
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // an @ in front is the NUL of an abstract name
	if err != nil {
		return nil, &sandbox.Error{Op: "NOTIFY_SOCKET " + path, Err: cause(err)}
	}
	n := &Notifier{conn: c, stop: make(chan struct{})}
	if pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseInt(usec, 10, 64); err == nil && us > 0 {
			n.every = time.Duration(us) * time.Microsecond / 2 // as is recommended
		}
	}
	return n, nil
}

const notifyTimeout = time.Second

// Say sends lines. What can not be sent is lost: no server stops for that.
func (n *Notifier) Say(lines ...string) {
	if n == nil {
		return
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	_, _ = n.conn.Write([]byte(strings.Join(lines, "\n")))
}

// Ready says that requests are taken, and begins to give signs of life, each after alive has agreed.
func (n *Notifier) Ready(status string, alive func() bool) {
	if n == nil {
		return
	}
	n.Say("READY=1", "STATUS="+status, "MAINPID="+strconv.Itoa(os.Getpid()))
	if n.every <= 0 {
		return
	}
	n.stopped.Add(1)
	go func() {
		defer n.stopped.Done()
		tick := time.NewTicker(n.every)
		defer tick.Stop()
		for {
			if alive() {
				n.Say("WATCHDOG=1")
			}
			select {
			case <-n.stop:
				return
			case <-tick.C:
			}
		}
	}()
}

// Close ends the signs of life. Twice is fine.
func (n *Notifier) Close() (err error) {
	if n == nil {
		return nil
	}
	n.once.Do(func() {
		close(n.stop)
		n.stopped.Wait()
		err = n.conn.Close()
	})
	return err
}
