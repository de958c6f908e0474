package image

import (
	"context"
	"errors"
	"io"
)

var errSoon = errors.New("not yet")

// Store is a directory of images.
type Store struct {
	// Limits of images that come in; change it before the store is shared.
	Limits Limits
	dir    string
}

// DefaultDir is where images are kept: /var/lib/sandbox-run/images for root, a directory of their own for everybody else.
func DefaultDir() (string, error) { return "/var/lib/sandbox-run/images", nil }

// Open opens a store, and makes it where there is none. It has no Close: a Store holds nothing open.
func Open(dir string) (*Store, error) { return &Store{dir: dir}, nil }

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// Lookup finds an image by NAME[:TAG], NAME@sha256:…, its id, or the beginning of its id (four digits at least).
func (s *Store) Lookup(ref string) (*Image, error) { return nil, ErrNotFound }

// List lists all images, by name.
func (s *Store) List() ([]*Image, error) { return nil, nil }

// Has reports whether a blob (a layer) is here already.
func (s *Store) Has(digest string) bool { return false }

// Blob opens a blob: a manifest, a configuration or a layer as it came.
func (s *Store) Blob(digest string) (io.ReadCloser, error) { return nil, errSoon }

// Use holds an image for as long as sandboxes stand on it.
func (s *Store) Use(img *Image) (*Lease, error) { return nil, errSoon }

// Add takes an image in: fetches the layers that are missing, checks, unpacks, and only then shows it.
func (s *Store) Add(ctx context.Context, src Source) (*Image, error) { return nil, errSoon }

// Tag gives an image another name. A name that another image has moves here.
func (s *Store) Tag(ref, name string) (*Image, error) { return nil, errSoon }

// Remove takes a name away, and the image with its last one; given an id, the image with all of its names (refused unless force, if several).
// removed is whether the image itself is gone.
func (s *Store) Remove(ref string, force bool) (img *Image, removed bool, err error) {
	return nil, false, errSoon
}

// Prune removes images that have no name and are not in use, and whatever belongs to no image.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (*Report, error) { return nil, errSoon }

// Collect removes what killed processes have left, and what belongs to no image.
func (s *Store) Collect(ctx context.Context) error { return nil }

// Import takes images in from an archive: of `docker save`, an OCI layout, or a plain root file system; as it is, or compressed by gzip or zstd.
func (s *Store) Import(ctx context.Context, r io.Reader, o ImportOptions) ([]*Image, error) {
	return nil, errSoon
}

// ImportPath is Import of a file, or of a directory with an OCI layout.
func (s *Store) ImportPath(ctx context.Context, path string, o ImportOptions) ([]*Image, error) {
	return nil, errSoon
}

// Export writes images as one archive.
func (s *Store) Export(ctx context.Context, refs []string, w io.Writer, f Format) error {
	return errSoon
}

// ExportDir writes images as an OCI layout in a new directory.
func (s *Store) ExportDir(ctx context.Context, refs []string, dir string) error { return errSoon }

// Lease holds an unpacked image. Close may be called twice.
type Lease struct{ dir string }

// Dir is the image's root, for sandboxes to read and nobody to write.
func (l *Lease) Dir() string { return l.dir }

// Close lets go.
func (l *Lease) Close() error { return nil }

// Compression is how a layer is packed, as told by its first bytes.
type Compression string

// The compressions.
const (
	Plain Compression = "plain"
	Gzip  Compression = "gzip"
	Zstd  Compression = "zstd"
)

// RegisterDecoder gives the store another reader of a compression. Package codec registers all; without it there is gzip.
func RegisterDecoder(c Compression, open func(io.Reader) (io.ReadCloser, error)) {}

// Normalize turns a reference as people write it into its one full form: python is docker.io/library/python:latest.
func Normalize(ref string) (string, error) { return ref, nil }

// Familiar is the short form of a normalised reference, as people write it.
func Familiar(ref string) string { return ref }
