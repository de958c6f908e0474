//go:build !linux

package session

import (
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Connect is only for Linux.
func Connect() (*protocol.Conn, error) {
	return nil, errors.New("session: it runs inside Linux sandboxes only")
}
