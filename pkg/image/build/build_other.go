//go:build !linux

package build

import (
	"context"
	"errors"
	"fmt"
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
	return nil, &sandbox.Error{
		Op: "image build " + d.Name, Kind: sandbox.ErrUnsupported,
		Err:  fmt.Errorf("images are built on Linux; this is %s: %w", runtime.GOOS, errors.ErrUnsupported),
		Hint: "sandbox-run image dockerfile " + d.Name + " | docker build -t " + Repository + d.Name + " -",
	}
}

// Collect finds nothing: there are no builds on this platform.
func Collect(context.Context, string, bool) ([]sandbox.Residue, error) { return nil, nil }
