package app

import (
	"os"
	"path/filepath"
	"strings"

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
	// As in executor.Options.
	OnPrepare            func(what string) (done func())
	OnPreparationFailure func(executor.PreparationFailure)
	Prestart             bool
	SharedCache          bool
	OwnKey               string
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
		OnPreparationFailure: e.OnPreparationFailure, Prestart: e.Prestart, SharedCache: e.SharedCache, OwnKey: e.OwnKey, Images: Images(),
	}
	if o.DefaultImages, err = defaultImages(os.Environ()); err != nil {
		return nil, err
	}
	if dir, err := os.UserCacheDir(); err == nil { // without a home nothing is kept
		o.Cache = &executor.Cache{Dir: filepath.Join(dir, "sandbox-run", "compiled")}
	}
	// Only some languages need it, and those say what to do when it is missing.
	o.Kit, _ = kitpath.Find()
	return executor.New(m, o), nil
}

// Images are those of this user's store.
func Images() executor.Images { return executor.StoredImages(LookAtImages) }

// imageVariable begins the names of the variables that say which image a language has: SANDBOX_RUN_IMAGE_PYTHON.
const imageVariable = "SANDBOX_RUN_IMAGE_"

// defaultImages are the images of languages as the user has them: variables, then languages.yaml.
func defaultImages(environ []string) (map[string]string, error) {
	images, err := executor.LoadDefaultImages(executor.LanguagesFile())
	if err != nil {
		return nil, err
	}
	for _, entry := range environ {
		name, ref, _ := strings.Cut(entry, "=")
		if language, ok := strings.CutPrefix(name, imageVariable); ok && language != "" && ref != "" {
			if images == nil {
				images = map[string]string{}
			}
			images[strings.ToLower(language)] = ref
		}
	}
	return images, nil
}
