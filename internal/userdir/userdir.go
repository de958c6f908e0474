// Package userdir opens directories and files that belong to one user alone.
//
// What. It knows the XDG base directories, opens directories and files so that no other user can have put them there, and
// takes file locks with a timeout.
//
// Place in the flow. pkg/audit, pkg/workspace and others keep their files with it; it imports none of our packages.
//
// Lifecycle. One caller opens, uses and closes a Dir. Files opened in it are the caller's to close and may outlive it.
//
// Concurrency. Many goroutines may use a Dir. Locks belong to the open file (flock): two openings of one file exclude each
// other even within a process, and the kernel releases a lock when its process dies.
//
// Limits. Symlinks at the last directory and at the file are never followed; the directories above are trusted. Locks need
// a local file system. Windows has no implementation.
package userdir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// ours is the name of our directory below each base directory.
const ours = "sandbox-run"

// ErrBusy is the error that Lock wraps when another opening of the file had the lock until the timeout.
var ErrBusy = errors.New("another process has the lock")

// State returns the directory for data that is neither settings nor precious: $XDG_STATE_HOME/sandbox-run.
func State() (string, error) { return below("XDG_STATE_HOME", ".local/state") }

// Data returns the directory for data that a user would miss: $XDG_DATA_HOME/sandbox-run.
func Data() (string, error) { return below("XDG_DATA_HOME", ".local/share") }

// below returns our directory in a base directory. The XDG standard says to ignore relative base directories.
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

// Purpose is the reason for which a directory or file is opened.
type Purpose int

// The purposes. A file to write must be the user's own; root may read files of all users.
const (
	Read   Purpose = iota // it must exist
	Write                 // made when missing, private to the user
	Append                // as Write, and every write goes to the end
	Trust                 // it must exist and be the user's own, because its content is believed
)

// Temporary is the suffix of a file that Replace writes. A crash leaves it; the next Replace of the same name removes it.
const Temporary = ".new"

// Replace writes a file and renames it over an existing one: readers have either the old content or the new one. With sync set, so has the
// machine after a power cut, and the file is on disk when Replace returns.
func (d *Dir) Replace(name string, sync bool, content func(io.Writer) error) error {
	if err := d.Remove(name + Temporary); err != nil {
		return err
	}
	f, err := d.Open(name+Temporary, Write)
	if err != nil {
		return err
	}
	if err = content(f); err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.Rename(name+Temporary, name)
	}
	if err != nil {
		_ = d.Remove(name + Temporary)
		return err
	}
	if sync {
		return d.Sync()
	}
	return nil
}

// The pauses between two attempts to get a lock.
const (
	shortestPause = 50 * time.Microsecond
	longestPause  = 5 * time.Millisecond
)

// Lock takes the lock of an open file, exclusive or shared with other readers. It waits at most timeout and then returns an
// error that wraps ErrBusy. Closing the file releases the lock.
func Lock(f *os.File, shared bool, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
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
