//go:build !linux

package build

import (
	"context"
	"errors"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Build fails with errors.ErrUnsupported: it needs Linux.
func Build(_ context.Context, _ *image.Store, name string, _ Options) (*image.Image, error) {
	d, err := Lookup(name)
	if err != nil {
		return nil, err
	}
	hint := "sandbox-run image dockerfile " + d.Name + " | docker build -t " + Repository + d.Name + " -"
	return nil, sandbox.Errorf(sandbox.ErrUnsupported, "image build "+d.Name, hint,
		"images are built on Linux; this is %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Collect finds nothing: there are no builds on this platform.
func Collect(context.Context, string, bool) ([]sandbox.Residue, error) { return nil, nil }
