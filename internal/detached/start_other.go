//go:build !linux

package detached

import (
	"errors"
	"fmt"
	"runtime"
)

var errUnsupported = fmt.Errorf("sessions without a server: not available on %s: %w; use a server", runtime.GOOS, errors.ErrUnsupported)

// Process is a supervisor that was started; there are none on this system.
type Process struct{}

// Start fails.
func Start(string, []string) (*Process, error) { return nil, errUnsupported }

// Keep fails.
func (*Process) Keep() error { return errUnsupported }

// Abandon does nothing.
func (*Process) Abandon() {}

// Parent is the process that has started a supervisor; there is none on this system.
type Parent struct{}

// OpenParent returns false.
func OpenParent() (*Parent, bool) { return nil, false }

// Ready does nothing.
func (*Parent) Ready(error) {}

// Await returns false.
func (*Parent) Await() bool { return false }
