// Package peer says who is at the other end of a unix socket.
//
// What. [Of] asks the kernel, which knows who somebody was when they connected or began to listen, whatever they have become since.
//
// Place in the flow. A server asks before it lets somebody in (pkg/api/listen), a client before it sends anything (pkg/client).
//
// Lifecycle, concurrency. None, and any: it keeps nothing.
//
// Limits. Linux and macOS; elsewhere it is an error, and nobody is trusted whom we do not know. A user of another user namespace who has no id in ours is the
// overflow user, nobody.
package peer

import (
	"errors"
	"net"
)

// Peer is who is at the other end.
type Peer struct {
	UID int // -1 where the kernel does not say: root is not for want of an answer
	PID int // likewise
}

// nobody is who it is when nobody says.
var nobody = Peer{-1, -1}

// Of is the peer of a unix socket.
func Of(c net.Conn) (Peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nobody, errors.New("it is no unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nobody, err
	}
	p := nobody
	failed := raw.Control(func(fd uintptr) { p, err = ask(int(fd)) })
	return p, errors.Join(failed, err)
}
