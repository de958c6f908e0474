//go:build !linux && !darwin

package listen

import (
	"context"
	"net"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func openSocket(_ context.Context, path string) (net.Listener, func() error, error) {
	return nil, nil, &sandbox.Error{
		Op: "listen unix://" + path, Kind: sandbox.ErrUnsupported, Hint: "--listen 127.0.0.1:8080",
		Err: errNotHere("a socket that is one user's alone"),
	}
}

type errNotHere string

func (e errNotHere) Error() string {
	return string(e) + " needs Linux or macOS; this is " + runtime.GOOS
}

func welcome(Peer) bool { return false }
