package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// StoredImages are those of a store, which is opened when one is asked for; nil without an error is no store yet.
func StoredImages(open func() (*image.Store, error)) Images { return storedImages{open} }

type storedImages struct {
	open func() (*image.Store, error)
}

// Image leases an image of the store.
func (s storedImages) Image(_ context.Context, ref string) (*Image, error) {
	store, err := s.open()
	if err != nil {
		return nil, err
	}
	var img *image.Image
	if store == nil {
		err = image.ErrNotFound
	} else {
		img, err = store.Lookup(ref)
	}
	switch {
	case errors.Is(err, image.ErrNotFound):
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrNotFound, Err: fmt.Errorf("image %q is not here", ref)}
	case err != nil:
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrInvalid, Err: err}
	}
	if err := runsHere(img.Platform); err != nil {
		return nil, &sandbox.Error{Op: "image " + ref, Kind: sandbox.ErrUnsupported, Err: err, Hint: "sandbox-run image pull --platform linux/" + runtime.GOARCH + " " + ref}
	}
	lease, err := store.Use(img)
	if err != nil {
		return nil, &sandbox.Error{Op: "image " + ref, Err: err}
	}
	c := &img.Config
	return &Image{
		ImageInfo: sandbox.ImageInfo{
			ImageRef: sandbox.ImageRef{Reference: ref, ID: img.ID, Digest: img.Digest},
			Env:      c.Env, Workdir: c.Workdir, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		},
		Dir: lease.Dir(), Release: func() { _ = lease.Close() }, // a lock that its file's end would give back too
	}, nil
}

// emulators are what the kernel calls the programs that run those of another processor.
var emulators = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64", "s390x": "s390x", "ppc64le": "ppc64le", "loong64": "loongarch64"}

// runsHere refuses an image whose programs this machine can not execute: all that would be seen of it is an exec format error.
func runsHere(platform string) error {
	system, rest, _ := strings.Cut(platform, "/")
	arch, _, _ := strings.Cut(rest, "/")
	switch {
	case system == "linux" && arch == runtime.GOARCH:
		return nil
	case system == "linux" && emulators[arch] != "":
		if _, err := os.Stat("/proc/sys/fs/binfmt_misc/qemu-" + emulators[arch]); err == nil {
			return nil
		}
	}
	return fmt.Errorf("it is for %s, and this machine is linux/%s", platform, runtime.GOARCH)
}

// userImages is the store of whoever runs this: where SANDBOX_RUN_IMAGES says, or in the usual place.
func userImages() (*image.Store, error) {
	dir := os.Getenv("SANDBOX_RUN_IMAGES")
	if dir == "" {
		var err error
		if dir, err = image.DefaultDir(); err != nil {
			return nil, err
		}
	} else if !filepath.IsAbs(dir) {
		return nil, sandbox.Invalid("SANDBOX_RUN_IMAGES", "%q is not an absolute path", dir)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // looking makes nothing
	}
	return image.Open(dir)
}
