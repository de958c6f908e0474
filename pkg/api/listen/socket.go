//go:build linux || darwin

package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/peer"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	socketMode  = 0o600
	lockSuffix  = ".lock"
	dialTimeout = 2 * time.Second
)

// openSocket binds a private socket, and replaces the socket of a dead server. close removes the socket and its lock.
func openSocket(ctx context.Context, path string) (l net.Listener, close func() error, err error) {
	failed := func(err error, hint string) (net.Listener, func() error, error) {
		return nil, nil, &sandbox.Error{Op: "listen unix://" + path, Err: err, Hint: hint}
	}
	dir, err := userdir.OpenDir(filepath.Dir(path), userdir.Write)
	if err != nil {
		return failed(err, "use a directory of your own: --listen unix://"+filepath.Join(filepath.Dir(path), "NAME", filepath.Base(path)))
	}
	lock, err := takeLock(dir, filepath.Base(path)+lockSuffix)
	if err != nil {
		dir.Close()
		return failed(err, "stop that server, or --listen on another path")
	}
	release := func() error {
		// Remove the lock file while it is locked: a process that opened it meanwhile sees that the name is gone, and tries again.
		err := dir.Remove(filepath.Base(path) + lockSuffix)
		return errors.Join(err, lock.Close(), dir.Close())
	}
	if err := removeStaleSocket(ctx, path); err != nil {
		_ = release() // the first error matters more
		return failed(err, "use another path")
	}
	lc := net.ListenConfig{Control: makePrivate}
	l, err = lc.Listen(ctx, "unix", path)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert // always one for "unix"; close unlinks only our own socket
		err = os.Chmod(path, socketMode)              // for systems that ignore the descriptor's mode
	}
	if err != nil {
		if l != nil {
			l.Close()
		}
		_ = release() // as above
		return failed(cause(err), "use another path")
	}
	made, err := os.Lstat(path)
	if err != nil {
		l.Close()
		_ = release() // as above
		return failed(err, "use another path")
	}
	return l, func() error {
		err := l.Close()
		if now, e := os.Lstat(path); e == nil && os.SameFile(made, now) { // unless another process replaced it
			err = errors.Join(err, dir.Remove(filepath.Base(path)))
		}
		return errors.Join(err, release())
	}, nil
}

// makePrivate sets the socket's mode before it has a name: Linux takes it from the descriptor. Between bind and chmod, the umask alone
// would decide who may connect.
func makePrivate(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.Fchmod(int(fd), socketMode) // macOS refuses; openSocket calls chmod later
	})
}

// takeLock takes the lock of a socket for the life of this process, and writes its pid into the file.
func takeLock(dir *userdir.Dir, name string) (*os.File, error) {
	for {
		f, err := dir.Open(name, userdir.Write)
		if err != nil {
			return nil, err
		}
		err = userdir.Lock(f, false, 0)
		if err == nil && !dir.Is(name, f) { // its owner removed it and ended
			f.Close()
			continue
		}
		if errors.Is(err, userdir.ErrBusy) {
			err = fmt.Errorf("a server is running on this socket%s", pidIn(f))
		}
		if err == nil {
			if err = f.Truncate(0); err == nil {
				_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

func pidIn(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	pid, number := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || number != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// removeStaleSocket removes the socket of a dead server. The caller has the lock, but a process that ignores the lock may listen.
func removeStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the file is no socket (%s)", info.Mode().Type())
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		credentials, _ := peer.Of(c)
		c.Close()
		if credentials.PID > 0 {
			return fmt.Errorf("another process listens on it (pid %d)", credentials.PID)
		}
		return errors.New("another process listens on it")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("another process may listen on it: %w", cause(err))
	}
	return os.Remove(path)
}

// trustedPeer reports whether a user may connect: this user, and root.
func trustedPeer(p Peer) bool { return p.UID == os.Geteuid() || p.UID == 0 }
