// Package kitpath finds the executable of the kit.
//
// What. Find returns the file of the host that a sandbox sees as sandbox-kit: $SANDBOX_RUN_KIT, else sandbox-kit beside the running
// executable, else the running executable if it links the kit, else sandbox-kit on PATH.
//
// Place in the flow. Apart from package kit, so that the thin executable can find the kit without linking it.
//
// Lifecycle and concurrency. Find searches anew each time and may be called from any goroutine. An initialiser sets Linked; it never
// changes afterwards.
//
// Limits. The executable should be linked statically; otherwise it needs the host's libraries in the sandbox, which the default root has.
package kitpath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Name is the name of the kit's executable; an executable that links the kit is the kit under this name.
const Name = "sandbox-kit"

// Variable names the environment variable with the path of the kit's executable.
const Variable = "SANDBOX_RUN_KIT"

// Waits is the variable that makes the kit wait for its arguments, and Waiting is its message when it does.
const (
	Waits   = "SANDBOX_RUN_KIT_WAITS"
	Waiting = "sandbox-run: kit waits\n"
)

// Linked says that the running executable can be the kit itself. Package kit sets it.
var Linked bool

// ErrNotFound is wrapped by the error of Find.
var ErrNotFound = errors.New("sandbox-kit is not installed")

// Find returns the path of the kit's executable: the one that $SANDBOX_RUN_KIT names, the one beside the running
// executable, the running executable itself, or the one on PATH. The path has no symlinks.
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
