//go:build !linux

package workspace

import (
	"context"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Workspace is not available on this system: workspaces need Linux.
type Workspace struct{}

func unsupported() error {
	return sandbox.Errorf(sandbox.ErrUnsupported, "workspace", "a Linux machine or virtual machine",
		"workspaces need Linux; this is %s", runtime.GOOS)
}

// ExplainCap reports that workspaces need Linux.
func ExplainCap(string) *sandbox.Gap {
	return &sandbox.Gap{Control: sandbox.ControlDisk, State: sandbox.Absent, Reason: unsupported().Error()}
}

// Open returns an error of kind sandbox.ErrUnsupported.
func Open(context.Context, string, string, Options) (*Workspace, error) { return nil, unsupported() }

// List returns an error of kind sandbox.ErrUnsupported.
func List(context.Context, string) ([]Info, error) { return nil, unsupported() }

// Show returns an error of kind sandbox.ErrUnsupported.
func Show(context.Context, string, string) (Info, error) { return Info{}, unsupported() }

// Remove returns an error of kind sandbox.ErrUnsupported.
func Remove(context.Context, string, string) error { return unsupported() }

// Name returns an empty text.
func (*Workspace) Name() string { return "" }

// Volume returns an empty volume.
func (*Workspace) Volume() sandbox.Volume { return sandbox.Volume{} }

// Cap returns zeros.
func (*Workspace) Cap() (sandbox.Size, int) { return 0, 0 }

// Usage returns an error of kind sandbox.ErrUnsupported.
func (*Workspace) Usage(context.Context) (Usage, error) { return Usage{}, unsupported() }

// Full returns false.
func (*Workspace) Full() bool { return false }

// Watch returns an error of kind sandbox.ErrUnsupported.
func (*Workspace) Watch(context.Context, func(Usage)) error { return unsupported() }

// Put returns an error of kind sandbox.ErrUnsupported.
func (*Workspace) Put(context.Context, []sandbox.File) error { return unsupported() }

// Close does nothing.
func (*Workspace) Close() error { return nil }
