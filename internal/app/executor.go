package app

import (
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Engine is what a door can choose of the engine.
type Engine struct {
	Audit     *audit.Log // nil writes nothing
	Door      audit.Door
	OnPrepare func(what string) (done func()) // see executor.Options
}

// NewExecutor makes the engine over a manager: the machine's toolchains, our own tools, the user's own languages and cache of
// compiled programs.
func NewExecutor(m *sandbox.Manager, e Engine) (*executor.Executor, error) {
	languages, err := executor.LoadLanguages(executor.LanguagesFile())
	if err != nil {
		return nil, err
	}
	o := executor.Options{
		Toolchains: &toolchain.Finder{}, Languages: languages, Audit: e.Audit, Door: e.Door, OnPrepare: e.OnPrepare,
	}
	if dir, err := os.UserCacheDir(); err == nil { // nobody's home: nothing is kept
		o.Cache = &executor.Cache{Dir: filepath.Join(dir, "sandbox-run", "compiled")}
	}
	// Only some languages need it, and those say what to do when it is missing.
	o.Kit, _ = kitpath.Find()
	return executor.New(m, o), nil
}
