//go:build !linux

package postgres

import (
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
)

var errLinux = errors.New("postgres: run: it runs inside Linux sandboxes only")

// Run is only for Linux.
func Run(Options) error { return errLinux }

// Session is only for Linux.
type Session struct{ session.Interpreter }

// OpenSession is only for Linux.
func OpenSession(Options) (*Session, error) { return nil, errLinux }

// Close does nothing.
func (s *Session) Close() {}

// Version is not known.
func (s *Session) Version() string { return "" }
