//go:build !linux && !darwin

package peer

import (
	"fmt"
	"runtime"
)

func readCredentials(int) (Peer, error) {
	return unknown, fmt.Errorf("peer credentials: not available on %s; use an http:// address", runtime.GOOS)
}
