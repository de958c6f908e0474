// Package userdir keeps what a user has between runs: directories and files that are his alone.
//
// What. Where such things belong (the XDG base directories), how they are opened so that nobody else
// can have put them there, and a lock with bounded patience.
//
// Place in the flow. pkg/audit and pkg/workspace stand on it; it imports nothing of ours.
//
// Lifecycle. A Dir is opened, used and closed by one caller; files opened in it are the caller's to
// close and outlive it.
//
// Concurrency. A Dir may be used by many goroutines. Locks belong to the open file (flock), so two
// openings of one file exclude each other even within a process, and the kernel lets go of a lock
// when its holder dies, however it dies.
//
// Limits. The last directory and the file itself are never followed as links; the directories above
// them are trusted, as they are in every path. Locks need a local file system. Windows has none of this.
package userdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ours is the directory of this product's below each base directory.
const ours = "sandbox-run"

// ErrBusy is what Lock wraps when somebody else had the lock all the while.
var ErrBusy = errors.New("locked by somebody else")

// State is where things are kept that are neither settings nor precious: $XDG_STATE_HOME/sandbox-run.
func State() (string, error) { return below("XDG_STATE_HOME", ".local/state") }

// Data is where things are kept that a user would miss: $XDG_DATA_HOME/sandbox-run.
func Data() (string, error) { return below("XDG_DATA_HOME", ".local/share") }

// below is our directory in a base directory. The standard has relative ones ignored.
func below(variable, fallback string) (string, error) {
	if base := os.Getenv(variable); filepath.IsAbs(base) {
		return filepath.Join(base, ours), nil
	}
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("neither %s nor HOME names an absolute directory; set one of them", variable)
	}
	return filepath.Join(home, fallback, ours), nil
}

// Purpose says what a directory or file is opened for.
type Purpose int

// The purposes. Only what is written must be the user's own: root may look at anybody's.
const (
	Read   Purpose = iota // it must exist
	Write                 // made when missing, private to the user
	Append                // the same, and every write goes to the end
	Trust                 // it must exist, and what it says is believed: so it must be the user's own, as what is written
)

// The pauses between two attempts to get a lock.
const (
	shortestPause = 50 * time.Microsecond
	longestPause  = 5 * time.Millisecond
)

// Lock takes the lock of an open file, alone or shared with other readers, and waits for it no longer
// than that. It is given back by closing the file.
func Lock(f *os.File, shared bool, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for pause := shortestPause; ; pause = min(pause*2, longestPause) {
		err := tryLock(f, shared)
		if !errors.Is(err, ErrBusy) {
			return err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return err
		}
		time.Sleep(min(pause, left))
	}
}
