// Package kitpath finds the executable of the kit.
//
// What. Find says which file of the host is to be shown inside a sandbox as sandbox-kit.
//
// Place in the flow. Apart from package kit, so that the thin executable can find what it does not link.
//
// Lifecycle and concurrency. Find looks anew each time and may be called from anywhere. Linked is set by an initialiser
// and never changes afterwards.
//
// Limits. The executable should be linked statically; one that is not needs the host's libraries in the sandbox, which
// the default root has.
package kitpath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Name is what the kit is called; a program that can be it is it under this name.
const Name = "sandbox-kit"

// Variable names an executable to use instead of the one that would be found.
const Variable = "SANDBOX_RUN_KIT"

// Waits is the variable by which the kit is told to wait for its arguments, and Waiting what it says when it does.
const (
	Waits   = "SANDBOX_RUN_KIT_WAITS"
	Waiting = "sandbox-run: kit waits\n"
)

// Linked says that the running executable can be the kit itself. Package kit sets it.
var Linked bool

// ErrNotFound is in the error of a Find that found nothing.
var ErrNotFound = errors.New("sandbox-kit is not installed")

// Find returns the path of the kit's executable: the one that $SANDBOX_RUN_KIT names, the one beside the running
// executable, the running executable itself, the one on PATH. No symlink is left in what it returns.
func Find() (string, error) {
	if path := os.Getenv(Variable); path != "" {
		if !executable(path) {
			return "", fmt.Errorf("%s=%s: not an executable file", Variable, path)
		}
		return real(path)
	}
	self, err := os.Executable()
	if err == nil {
		if beside := filepath.Join(filepath.Dir(self), Name); executable(beside) {
			return real(beside)
		}
		if Linked {
			return real(self)
		}
	}
	if path, err := exec.LookPath(Name); err == nil {
		return real(path)
	}
	return "", fmt.Errorf("%w: it is neither beside %s nor on PATH; make install installs it, or set %s", ErrNotFound, self, Variable)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
