//go:build !linux && !darwin

package peer

import (
	"fmt"
	"runtime"
)

func ask(int) (Peer, error) {
	return nobody, fmt.Errorf("%s does not say whose a socket is; use an http:// address", runtime.GOOS)
}
