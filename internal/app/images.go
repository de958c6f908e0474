package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ImagesVariable names the directory of the image store, in place of the default.
const ImagesVariable = "SANDBOX_RUN_IMAGES"

// ImagesDir returns the directory of this user's image store.
func ImagesDir() (string, error) {
	dir := os.Getenv(ImagesVariable)
	if dir == "" {
		return image.DefaultDir()
	}
	if !filepath.IsAbs(dir) {
		return "", sandbox.Invalid(ImagesVariable, "%q is not an absolute path", dir)
	}
	return dir, nil
}

// OpenImages opens this user's image store, and makes it if there is none. The caller closes it.
func OpenImages() (*image.Store, error) {
	dir, err := ImagesDir()
	if err != nil {
		return nil, err
	}
	return image.Open(dir)
}

// OpenExistingImages opens this user's image store if it exists, and returns nil otherwise. It makes no files.
func OpenExistingImages() (*image.Store, error) {
	dir, err := ImagesDir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return image.Open(dir)
}
