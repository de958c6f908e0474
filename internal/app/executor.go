package app

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// ExecutorOptions are the executor's options that an entry point chooses.
type ExecutorOptions struct {
	Audit      *audit.Log // nil for no audit log
	EntryPoint audit.EntryPoint
	// As in executor.Options.
	OnPrepare            func(what string) (done func())
	OnPreparationFailure func(executor.PreparationFailure)
	Prestart             bool
	SharedCache          bool
	OwnKey               string
	Registries           deps.Registries
	InstallFrom          []string
	InstallDisk          sandbox.Size
	LayersSize           sandbox.Size // of deps.Store
	Installations        int
}

// NewExecutor makes an executor over a manager, with the machine's toolchains, our own tools, and the user's languages, images and cache of
// compiled programs. It fails if the languages' file is invalid.
func NewExecutor(m *sandbox.Manager, e ExecutorOptions) (*executor.Executor, error) {
	languages, err := executor.LoadLanguages(executor.LanguagesFile())
	if err != nil {
		return nil, err
	}
	o := executor.Options{
		Toolchains: &toolchain.Finder{}, Languages: languages, Audit: e.Audit, EntryPoint: e.EntryPoint, OnPrepare: e.OnPrepare,
		OnPreparationFailure: e.OnPreparationFailure, Prestart: e.Prestart, SharedCache: e.SharedCache, OwnKey: e.OwnKey, Images: Images(),
		InstallFrom: e.InstallFrom, InstallDisk: e.InstallDisk, Installations: e.Installations,
		Registries: e.Registries, RegistriesFile: deps.RegistriesFile(), Layers: Layers(),
	}
	if o.Layers != nil {
		o.Layers.Quota = e.LayersSize
	}
	if o.DefaultImages, err = defaultImages(os.Environ()); err != nil {
		return nil, err
	}
	if dir, err := os.UserCacheDir(); err == nil { // without a home directory compiled programs are not kept
		o.Cache = &executor.Cache{Dir: filepath.Join(dir, "sandbox-run", "compiled")}
	}
	// Only some languages need the kit; their error says what to do when it is missing.
	o.Kit, _ = kitpath.Find()
	return executor.New(m, o), nil
}

// Images returns the images of this user's store.
func Images() executor.Images { return executor.StoredImages(OpenExistingImages) }

// Layers returns the installed packages of this user; nil for a user without a cache directory.
func Layers() *deps.Store {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil
	}
	return &deps.Store{Dir: filepath.Join(dir, "sandbox-run", "deps"), Open: func(create bool) (*image.Store, error) {
		if create {
			return OpenImages()
		}
		return OpenExistingImages()
	}}
}

// imageVariable is the start of the variables that set the image of a language, such as SANDBOX_RUN_IMAGE_PYTHON.
const imageVariable = "SANDBOX_RUN_IMAGE_"

// defaultImages returns the images of languages that the user has set: by variables, which win, and in languages.yaml.
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
