// Package deps keeps installed packages as layers: immutable directories in the image store, found by what was asked for.
//
// What. A [Key] is a digest of everything that decides what an installation yields: the language, its toolchain, the platform, the
// declaration with its lock files, the commands, and the configuration of the registries. [Store.Find] returns the [language.Layer] of
// a key. [Store.Add] keeps what an installation has made.
//
// Place in the flow. The executor finds or adds a layer before it plans a run, and shows it to the sandbox, read-only. Package registry
// below it serves the registries to installations; only sandbox-rund links that.
//
//	declaration ─► Key ─► Find ─► lease of a layer ─► plan
//	                       └ none ─► lock of the key ─► installing sandbox ─► archive ─► Add
//
// Lifecycle. A layer is an image of the store with a name of this package; the image's rules for leases, removal and leftovers hold. A lease
// lasts until it is released or its process ends.
//
// Concurrency. A Store may be used from any number of goroutines and processes. [Store.Lock] admits one installation of a key at a time.
//
// Quota. [Store.Quota] bounds the layers of each tenant together. Before a layer is kept, Add removes the tenant's layers that were not used
// for longest and that no sandbox shows, until there is room, and refuses the layer if that is not enough. An image that several tenants
// have installed counts for each of them.
//
// Limits. Archives are untrusted; the image store bounds and checks them. Layers are not shared between tenants unless the caller leaves the
// tenant out of the key. Linux only, as the image store.
package deps

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Key names a layer by what was asked for: a digest, and that of the tenant before it, if there is one.
type Key string

// tenant returns the digest of the tenant; "" without one.
func (k Key) tenant() string {
	tenant, _, found := strings.Cut(string(k), ".")
	if !found {
		return ""
	}
	return tenant
}

// Want is everything that decides what an installation yields.
type Want struct {
	Language  string
	Toolchain string // changes with every part of it
	Tenant    string // tenants with different names share no layer
	Packages  *language.Packages
	// Registries is the digest of the configuration of the registries: the same name may be another package elsewhere.
	Registries string
}

// Key returns the key of the layer.
func (w *Want) Key() (Key, error) {
	type file struct {
		Path string
		Mode fs.FileMode
		Data []byte
		Link string
	}
	var files []file
	for _, f := range w.Packages.Files {
		if f.Open != nil {
			return "", errors.New("a file of an installation has no data")
		}
		files = append(files, file{f.Path, f.Mode, f.Data, f.Link})
	}
	text, err := json.Marshal([]any{
		1, w.Language, w.Toolchain, runtime.GOOS, runtime.GOARCH, w.Tenant, w.Registries, w.Packages.Registry, w.Packages.Requirements,
		files, w.Packages.Env, w.Packages.Steps,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	key := hex.EncodeToString(sum[:16])
	if w.Tenant != "" {
		tenant := sha256.Sum256([]byte(w.Tenant))
		key = hex.EncodeToString(tenant[:8]) + "." + key
	}
	return Key(key), nil
}

// RegistriesFile returns the path of the user's configuration of registries; "" for a user without a configuration directory.
// SANDBOX_RUN_REGISTRIES_FILE names another file.
func RegistriesFile() string {
	if name := os.Getenv("SANDBOX_RUN_REGISTRIES_FILE"); name != "" {
		return name
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandbox-run", "registries.yaml")
}

// RegistriesDigest returns the digest of a configuration of registries; "" without one.
func RegistriesDigest(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("SANDBOX_RUN_REGISTRIES_FILE") == "" {
		return "", nil
	}
	if err != nil {
		return "", &sandbox.Error{Op: "registries", Kind: sandbox.ErrInvalid, Err: err, Hint: "sandbox-run deps doctor"}
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}
