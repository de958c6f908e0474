//go:build !linux

package image

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Store needs Linux: there is none here.
type Store struct {
	// Limits mean nothing here.
	Limits Limits
}

func unsupported() error {
	return &sandbox.Error{
		Op: "image store", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("the image store needs Linux; this is %s", runtime.GOOS),
		Hint: "--backend docker, whose daemon keeps images of its own",
	}
}

// DefaultDir refuses.
func DefaultDir() (string, error) { return "", unsupported() }

// Open refuses.
func Open(string) (*Store, error) { return nil, unsupported() }

// Dir is empty.
func (*Store) Dir() string { return "" }

// Lookup refuses.
func (*Store) Lookup(string) (*Image, error) { return nil, unsupported() }

// List refuses.
func (*Store) List() ([]*Image, error) { return nil, unsupported() }

// Has is false.
func (*Store) Has(string) bool { return false }

// Blob refuses.
func (*Store) Blob(string) (io.ReadCloser, error) { return nil, unsupported() }

// Use refuses.
func (*Store) Use(*Image) (*Lease, error) { return nil, unsupported() }

// Add refuses.
func (*Store) Add(context.Context, Source) (*Image, error) { return nil, unsupported() }

// Tag refuses.
func (*Store) Tag(string, string) (*Image, error) { return nil, unsupported() }

// Remove refuses.
func (*Store) Remove(string, bool) (*Image, bool, error) { return nil, false, unsupported() }

// Prune refuses.
func (*Store) Prune(context.Context, PruneOptions) (*Report, error) { return nil, unsupported() }

// Collect refuses.
func (*Store) Collect(context.Context) error { return unsupported() }

// Leftovers finds nothing: there is no store here.
func (*Store) Leftovers() ([]Leftover, error) { return nil, nil }

// Import refuses.
func (*Store) Import(context.Context, io.Reader, ImportOptions) ([]*Image, error) {
	return nil, unsupported()
}

// ImportPath refuses.
func (*Store) ImportPath(context.Context, string, ImportOptions) ([]*Image, error) {
	return nil, unsupported()
}

// Export refuses.
func (*Store) Export(context.Context, []string, io.Writer, Format) error { return unsupported() }

// ExportDir refuses.
func (*Store) ExportDir(context.Context, []string, string) error { return unsupported() }

// Lease is of a store, and there is none here.
type Lease struct{}

// Dir is empty.
func (*Lease) Dir() string { return "" }

// Close does nothing.
func (*Lease) Close() error { return nil }
