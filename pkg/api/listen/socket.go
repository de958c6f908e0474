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

// openSocket takes a path for a socket of this user's alone, from a server that is dead if need be. close gives it back.
func openSocket(ctx context.Context, path string) (l net.Listener, close func() error, err error) {
	failed := func(err error, hint string) (net.Listener, func() error, error) {
		return nil, nil, &sandbox.Error{Op: "listen unix://" + path, Err: err, Hint: hint}
	}
	dir, err := userdir.OpenDir(filepath.Dir(path), userdir.Write)
	if err != nil {
		return failed(err, "a directory of your own: --listen unix://"+filepath.Join(filepath.Dir(path), "NAME", filepath.Base(path)))
	}
	lock, err := takeLock(dir, filepath.Base(path)+lockSuffix)
	if err != nil {
		dir.Close()
		return failed(err, "stop that server, or --listen another")
	}
	release := func() error {
		// While it is locked: whoever opened the old file meanwhile finds that it has lost its name, and begins anew.
		err := dir.Remove(filepath.Base(path) + lockSuffix)
		return errors.Join(err, lock.Close(), dir.Close())
	}
	if err := clear(ctx, path); err != nil {
		_ = release() // what stands there comes first
		return failed(err, "another path")
	}
	lc := net.ListenConfig{Control: makePrivate}
	l, err = lc.Listen(ctx, "unix", path)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert // of "unix" it is one; we unlink, and only what is ours
		err = os.Chmod(path, socketMode)              // where the system does not take the mode from the descriptor
	}
	if err != nil {
		if l != nil {
			l.Close()
		}
		_ = release() // as above
		return failed(cause(err), "another path")
	}
	made, err := os.Lstat(path)
	if err != nil {
		l.Close()
		_ = release() // as above
		return failed(err, "another path")
	}
	return l, func() error {
		err := l.Close()
		if now, e := os.Lstat(path); e == nil && os.SameFile(made, now) { // unless somebody has put another in its place
			err = errors.Join(err, dir.Remove(filepath.Base(path)))
		}
		return errors.Join(err, release())
	}, nil
}

// makePrivate gives the socket its mode before it has a name: Linux takes it from the descriptor. Between bind and chmod there would be a
// moment in which the umask alone decides who may connect.
func makePrivate(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.Fchmod(int(fd), socketMode) // macOS refuses; chmod comes after
	})
}

// takeLock takes the lock of a socket for as long as this process lives, and writes our pid into it.
func takeLock(dir *userdir.Dir, name string) (*os.File, error) {
	for {
		f, err := dir.Open(name, userdir.Write)
		if err != nil {
			return nil, err
		}
		err = userdir.Lock(f, false, 0)
		if err == nil && !dir.Is(name, f) { // its owner removed it, and is gone
			f.Close()
			continue
		}
		if errors.Is(err, userdir.ErrBusy) {
			err = fmt.Errorf("a server is running there%s", pidIn(f))
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

// clear removes the socket of a dead server. The caller has the lock; still, somebody who knows nothing of it may be there.
func clear(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is no socket (%s)", info.Mode().Type())
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		who, _ := peer.Of(c)
		c.Close()
		if who.PID > 0 { // it is known
			return fmt.Errorf("somebody listens there (pid %d)", who.PID)
		}
		return errors.New("somebody listens there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("somebody may listen there: %w", cause(err))
	}
	return os.Remove(path)
}

// welcome reports whether a user may come in: ourselves, and root, who could anyway.
func welcome(p Peer) bool { return p.UID == os.Geteuid() || p.UID == 0 }
