//go:build !linux && !darwin

package userdir

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Dir does not exist on this system, which has no way to make a file private to one user.
type Dir struct{}

func unsupported() error {
	return fmt.Errorf("private user directories: not available on %s: %w; use Linux or macOS", runtime.GOOS, errors.ErrUnsupported)
}

// OpenDir fails.
func OpenDir(string, Purpose) (*Dir, error) { return nil, unsupported() }

// Fd returns -1.
func (*Dir) Fd() int { return -1 }

// Path returns "".
func (*Dir) Path() string { return "" }

// Close does nothing.
func (*Dir) Close() error { return nil }

// Open fails.
func (*Dir) Open(string, Purpose) (*os.File, error) { return nil, unsupported() }

// Is returns false.
func (*Dir) Is(string, *os.File) bool { return false }

// Rename fails.
func (*Dir) Rename(string, string) error { return unsupported() }

// Remove fails.
func (*Dir) Remove(string) error { return unsupported() }

// Names fails.
func (*Dir) Names() ([]string, error) { return nil, unsupported() }

// Sync fails.
func (*Dir) Sync() error { return unsupported() }

func tryLock(*os.File, bool) error { return unsupported() }
