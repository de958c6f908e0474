package app

import (
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// NewExecutor makes the engine over a manager: with the user's own cache of compiled programs and their toolchains.
func NewExecutor(m *sandbox.Manager) (*executor.Executor, error) {
	o := executor.Options{Toolchains: &toolchain.Finder{}}
	if dir, err := os.UserCacheDir(); err == nil { // nobody's home: nothing is kept
		o.Cache = &executor.Cache{Dir: filepath.Join(dir, "sandbox-run", "compiled")}
	}
	return executor.New(m, o), nil
}
