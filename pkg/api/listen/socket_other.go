//go:build !linux && !darwin

package listen

import (
	"context"
	"fmt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"net"
	"runtime"
)

func openSocket(_ context.Context, path string) (net.Listener, func() error, error) {
	return nil, nil, &sandbox.Error{
		Op: "listen unix://" + path, Kind: sandbox.ErrUnsupported, Hint: "--listen 127.0.0.1:8080",
		Err: fmt.Errorf("a private socket needs Linux or macOS; this is %s", runtime.GOOS),
	}
}

func trustedPeer(Peer) bool { return false }
