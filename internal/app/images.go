package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ImagesVariable names a directory to keep images in, in place of the usual one.
const ImagesVariable = "SANDBOX_RUN_IMAGES"

// ImagesDir is where this user's images are kept.
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

// OpenImages opens the store of this user's images, and makes it if there is none.
func OpenImages() (*image.Store, error) {
	dir, err := ImagesDir()
	if err != nil {
		return nil, err
	}
	return image.Open(dir)
}

// LookAtImages opens the store only if there is one: nil is none. Looking makes nothing.
func LookAtImages() (*image.Store, error) {
	dir, err := ImagesDir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return image.Open(dir)
}
