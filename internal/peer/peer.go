// Package peer reads the identity of the process at the other end of a unix socket.
//
// What. [Of] asks the kernel for the credentials that the peer had when it connected or began to listen. Later changes of the peer's
// credentials do not show.
//
// Place in the flow. The server checks the peer before it accepts a connection (pkg/api/listen), the client before it sends
// (pkg/client).
//
// Lifecycle, concurrency. The package has no state; all calls are safe for concurrent use.
//
// Limits. Linux and macOS; on other systems Of fails, and callers must refuse the connection. A peer of another user namespace without
// an id in ours has the overflow uid, 65534.
package peer

import (
	"errors"
	"net"
)

// Peer is the process at the other end of a socket.
type Peer struct {
	UID int // -1 where the kernel does not report it, so that an unknown peer is never root
	PID int // -1 where the kernel does not report it
}

// unknown is the peer that Of returns with an error.
var unknown = Peer{-1, -1}

// Of returns the peer of a unix socket. It fails for other connections and on systems without peer credentials. It does not block.
func Of(c net.Conn) (Peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return unknown, errors.New("peer credentials: the connection is no unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return unknown, err
	}
	p := unknown
	failed := raw.Control(func(fd uintptr) { p, err = readCredentials(int(fd)) })
	return p, errors.Join(failed, err)
}
