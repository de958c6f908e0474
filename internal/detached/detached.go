// Package detached finds and starts the supervisors of named sessions that have no server, and keeps the directories of servers of agents.
//
// What. Each such supervisor is a process of its own (sandbox-rund session supervise), with a private directory below [Dir]: the socket on
// which it serves the HTTP API, the lock of that socket, its log, and files of the API.
//
//	$XDG_RUNTIME_DIR/sandbox-run/sessions/NAME/{s, s.lock, log, api/}     0700, 0600
//
// Place in the flow. internal/cli/full starts supervisors and connects to them; gc collects what dead ones left. Package listen makes the
// socket and takes its lock.
//
// Lifecycle. A supervisor outlives the process that starts it: it has a session (setsid) and a working directory of its own, no terminal,
// and no descriptor but its log. The kernel releases its lock when it dies, however it dies. Its sandbox dies with it.
//
// Concurrency. Of several supervisors of one name, one gets the lock. Collect takes the lock of what it removes.
//
// Limits. The path of a socket has at most 107 bytes. Sessions of another user are not seen.
package detached

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The names of the files of a supervisor.
const (
	socketName = "s" // short: the length of a socket's path is bounded
	lockName   = socketName + ".lock"
	LogName    = "log"
	mostPath   = 107
)

// Dir is the directory of this user's supervisors: beside the socket of the user's server, or below the state directory of a user without a
// runtime directory.
func Dir() (string, error) {
	if path := wire.DefaultSocket(); path != "" {
		return filepath.Join(filepath.Dir(path), "sessions"), nil
	}
	state, err := userdir.State()
	return filepath.Join(state, "sessions"), err
}

// Path is the directory of a supervisor.
func Path(name string) (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if len(filepath.Join(path, socketName)) > mostPath {
		return "", sandbox.Invalid("name", "the path of its socket would have more than %d bytes; use a shorter name", mostPath)
	}
	return path, nil
}

// Socket is the path of the socket in the directory of a supervisor.
func Socket(dir string) string { return filepath.Join(dir, socketName) }

// List returns the names of the supervisors that live, sorted.
func List() ([]string, error) {
	all, err := names()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool { return !IsAlive(name) }), nil
}

// names are the names of all supervisors, living or dead.
func names() ([]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []string
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, e.Name())
		}
	}
	return list, err
}

// IsAlive reports whether a supervisor has the lock of a name.
func IsAlive(name string) bool {
	dir, lock, err := open(name)
	if err != nil {
		return false
	}
	defer dir.Close()
	defer lock.Close()
	return errors.Is(userdir.Lock(lock, true, 0), userdir.ErrBusy)
}

// open opens the directory of a supervisor, and its lock.
func open(name string) (*userdir.Dir, *os.File, error) {
	path, err := Path(name)
	if err != nil {
		return nil, nil, err
	}
	dir, err := userdir.OpenDir(path, userdir.Trust)
	if err != nil {
		return nil, nil, err
	}
	lock, err := dir.Open(lockName, userdir.Trust)
	if err != nil {
		_ = dir.Close()
		return nil, nil, err
	}
	return dir, lock, nil
}

// residueKind is what Collect finds.
const residueKind = "session"

// Collect finds the directories of dead supervisors and, unless dryRun, removes them.
func Collect(dryRun bool) (found []sandbox.Residue, err error) {
	all, err := names()
	for _, name := range all {
		r, dead := collect(name, dryRun)
		if dead {
			found = append(found, r)
		}
	}
	return found, err
}

func collect(name string, dryRun bool) (r sandbox.Residue, dead bool) {
	path, err := Path(name)
	if err != nil {
		return r, false
	}
	r = sandbox.Residue{Kind: residueKind, Name: path}
	dir, lock, err := open(name)
	if err == nil {
		defer dir.Close()
		defer lock.Close()
		if userdir.Lock(lock, false, 0) != nil {
			return r, false
		}
	}
	if dryRun {
		return r, true
	}
	if err := Remove(path); err != nil {
		r.Problem = err.Error()
		return r, true
	}
	r.Removed = true
	return r, true
}

// Remove removes the directory of a supervisor that is dead, or that ends now.
func Remove(path string) error {
	if err := os.RemoveAll(path); err != nil { //nolint:forbidigo // files of supervisors, flat; no sandbox reaches them
		return fmt.Errorf("remove the directory of a session: %w", err)
	}
	return nil
}
