//go:build !linux

package image

import (
	"context"
	"io"
	"runtime"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Store is not available on this system: image stores need Linux.
type Store struct {
	// Limits has no effect on this system.
	Limits Limits
}

func unsupported() error {
	return sandbox.Errorf(sandbox.ErrUnsupported, "image store", "--backend docker, whose daemon keeps images of its own",
		"the image store needs Linux; this is %s", runtime.GOOS)
}

// DefaultDir returns an error of kind sandbox.ErrUnsupported.
func DefaultDir() (string, error) { return "", unsupported() }

// Open returns an error of kind sandbox.ErrUnsupported.
func Open(string) (*Store, error) { return nil, unsupported() }

// Dir is empty.
func (*Store) Dir() string { return "" }

// Lookup returns an error of kind sandbox.ErrUnsupported.
func (*Store) Lookup(string) (*Image, error) { return nil, unsupported() }

// List returns an error of kind sandbox.ErrUnsupported.
func (*Store) List() ([]*Image, error) { return nil, unsupported() }

// Has is false.
func (*Store) Has(string) bool { return false }

// Blob returns an error of kind sandbox.ErrUnsupported.
func (*Store) Blob(string) (io.ReadCloser, error) { return nil, unsupported() }

// Use returns an error of kind sandbox.ErrUnsupported.
func (*Store) Use(*Image) (*Lease, error) { return nil, unsupported() }

// LastUse is zero.
func (*Store) LastUse(*Image) time.Time { return time.Time{} }

// Add returns an error of kind sandbox.ErrUnsupported.
func (*Store) Add(context.Context, Source) (*Image, error) { return nil, unsupported() }

// Tag returns an error of kind sandbox.ErrUnsupported.
func (*Store) Tag(string, string) (*Image, error) { return nil, unsupported() }

// Remove returns an error of kind sandbox.ErrUnsupported.
func (*Store) Remove(string, bool) (*Image, bool, error) { return nil, false, unsupported() }

// Prune returns an error of kind sandbox.ErrUnsupported.
func (*Store) Prune(context.Context, PruneOptions) (*Report, error) { return nil, unsupported() }

// Collect returns an error of kind sandbox.ErrUnsupported.
func (*Store) Collect(context.Context) error { return unsupported() }

// Leftovers finds nothing: there is no store here.
func (*Store) Leftovers() ([]Leftover, error) { return nil, nil }

// Import returns an error of kind sandbox.ErrUnsupported.
func (*Store) Import(context.Context, io.Reader, ImportOptions) ([]*Image, error) {
	return nil, unsupported()
}

// ImportPath returns an error of kind sandbox.ErrUnsupported.
func (*Store) ImportPath(context.Context, string, ImportOptions) ([]*Image, error) {
	return nil, unsupported()
}

// Export returns an error of kind sandbox.ErrUnsupported.
func (*Store) Export(context.Context, []string, io.Writer, Format) error { return unsupported() }

// ExportDir returns an error of kind sandbox.ErrUnsupported.
func (*Store) ExportDir(context.Context, []string, string) error { return unsupported() }

// Lease is not available on this system.
type Lease struct{}

// Dir is empty.
func (*Lease) Dir() string { return "" }

// Touch does nothing.
func (*Lease) Touch() {}

// Close does nothing.
func (*Lease) Close() error { return nil }
