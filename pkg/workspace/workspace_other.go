//go:build !linux

package workspace

import (
	"context"
	"fmt"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Workspace needs Linux: there are none here.
type Workspace struct{}

func unsupported() error {
	return &sandbox.Error{
		Op: "workspace", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("workspaces need Linux; this is %s", runtime.GOOS),
		Hint: "a Linux machine or virtual machine",
	}
}

// ExplainCap says that there are no workspaces.
func ExplainCap(string) *sandbox.Gap {
	return &sandbox.Gap{Control: sandbox.ControlDisk, State: sandbox.Absent, Reason: unsupported().Error()}
}

// Open refuses.
func Open(context.Context, string, string, Options) (*Workspace, error) { return nil, unsupported() }

// List refuses.
func List(context.Context, string) ([]Info, error) { return nil, unsupported() }

// Show refuses.
func Show(context.Context, string, string) (Info, error) { return Info{}, unsupported() }

// Remove refuses.
func Remove(context.Context, string, string) error { return unsupported() }

// Name is empty.
func (*Workspace) Name() string { return "" }

// Volume is none.
func (*Workspace) Volume() sandbox.Volume { return sandbox.Volume{} }

// Cap is none.
func (*Workspace) Cap() (sandbox.Size, int) { return 0, 0 }

// Usage refuses.
func (*Workspace) Usage(context.Context) (Usage, error) { return Usage{}, unsupported() }

// Full is false.
func (*Workspace) Full() bool { return false }

// Watch refuses.
func (*Workspace) Watch(context.Context, func(Usage)) error { return unsupported() }

// Put refuses.
func (*Workspace) Put(context.Context, []sandbox.File) error { return unsupported() }

// Close does nothing.
func (*Workspace) Close() error { return nil }
