package image

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"
)

// Kinds of failure that a caller can handle; test with errors.Is.
var (
	// ErrNotFound: the store has no image of that name, digest or id.
	ErrNotFound = errors.New("no such image")
	// ErrInUse: a sandbox uses the image.
	ErrInUse = errors.New("image is in use")
	// ErrAmbiguous: several images have an id with that prefix.
	ErrAmbiguous = errors.New("id is not unique")
	// ErrInvalid: the data is not an image, or not the announced one.
	ErrInvalid = errors.New("invalid image")
	// ErrTooLarge: the image exceeds Limits.
	ErrTooLarge = errors.New("image is too large")
)

// Image is a complete and verified image of the store.
type Image struct {
	ID       string    `json:"id"`                // sha256:… of its configuration
	Digest   string    `json:"digest"`            // sha256:… of its manifest
	Indexes  []string  `json:"indexes,omitempty"` // digests of the multi-platform indexes by which it was found
	Names    []string  `json:"names"`             // normalised, sorted; may be empty
	Platform string    `json:"platform"`          // "linux/amd64"
	Size     int64     `json:"size"`              // bytes of its files, unpacked
	Created  time.Time `json:"created"`           // as the image states; zero without a statement
	Added    time.Time `json:"added"`
	Layers   []string  `json:"layers"` // digests, lowest first
	Config   Config    `json:"config"`
}

// Config is the image's configuration for running it.
type Config struct {
	Env        []string          `json:"env,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// Source is an image to add.
type Source struct {
	// Names are the names of the image; a name of another image moves to this one.
	Names []string
	// Indexes are the digests of the documents that led to the manifest. Users pin them, so Lookup finds the image by them, too.
	Indexes []string
	// Manifest has the received bytes, or nil: then the store writes one.
	Manifest []byte
	// Config has the received bytes. Without a manifest, rootfs.diff_ids may be missing and is added; nil is an empty configuration.
	Config []byte
	Layers []Layer // lowest first; with a manifest, those that it lists
	// Parallel is the number of layers to fetch at a time, at most 4; 0 is 4.
	Parallel int
}

// Layer is the archive of a layer to add.
type Layer struct {
	// Digest is sha256:…, or empty if it is not known yet and there is no manifest.
	Digest string
	// MediaType may be empty. The store recognises the format by the bytes.
	MediaType string
	// Size is in bytes; 0 if it is not known yet and there is no manifest.
	Size int64
	// Open returns a reader that begins at an offset, so that an interrupted transfer can continue. The store does not call it for a
	// layer that it has. Several goroutines may call it, for several layers.
	Open func(ctx context.Context, offset int64) (io.ReadCloser, error)
	// Retry is called when Open has failed or its reader has ended early. It returns nil, after a pause, if the store should call
	// Open again with the offset, or the final error. A nil Retry allows five attempts without another byte, and none after a failed
	// Open.
	Retry func(ctx context.Context, offset int64, err error) error
}

// Limits bounds one image. A zero field has its default.
type Limits struct {
	Bytes   int64 // of all files of all layers: 32 GiB, and nine tenths of the free disk space
	Blob    int64 // of one transferred layer: 16 GiB
	Entries int   // in all layers together: 2 million
	Layers  int   // 127
	Depth   int   // directories in a path: 256
}

// The default limits.
const (
	DefaultBytes   = 32 << 30
	DefaultBlob    = 16 << 30
	DefaultEntries = 2_000_000
	DefaultLayers  = 127
	DefaultDepth   = 256

	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxPath     = 4095
	maxName     = 255
)

func (l Limits) complete() Limits {
	l.Bytes, l.Blob = cmp.Or(max(l.Bytes, 0), DefaultBytes), cmp.Or(max(l.Blob, 0), DefaultBlob)
	l.Entries, l.Layers = cmp.Or(max(l.Entries, 0), DefaultEntries), cmp.Or(max(l.Layers, 0), DefaultLayers)
	l.Depth = cmp.Or(max(l.Depth, 0), DefaultDepth)
	return l
}

// ImportOptions are the options of Import.
type ImportOptions struct {
	// Names are the names of the image. A plain root file system needs one; for other archives they replace the names in the
	// archive. Import refuses them for an archive with several images.
	Names []string
	// Platform selects an image among several, "linux/amd64"; empty is that of this machine.
	Platform string
	// Config is the configuration of a plain root file system.
	Config Config
}

// Format is the format of Export.
type Format string

// The formats of Export: an OCI layout in an archive, with the layers as received; and the format of every version of `docker
// load`. podman reads both.
const (
	FormatOCI    Format = "oci"
	FormatDocker Format = "docker"
)

// Report lists what Prune has removed, or would remove.
type Report struct {
	Images []*Image `json:"images"`
	Bytes  int64    `json:"bytes"` // freed disk space, approximately
}

// PruneOptions select what Prune removes.
type PruneOptions struct {
	All    bool          // images with names as well, unless in use
	Older  time.Duration // only those added longer ago
	DryRun bool
	Only   func(*Image) bool // nil: all
}

// Leftover is a file or directory of a store that belongs to no image. Collect removes it.
type Leftover struct {
	Kind string // "download", "unpacking", "root" or "layer"
	Path string
}

// The kinds of leftovers.
const (
	LeftoverDownload  = "download"  // a part of a blob that was not continued for a day
	LeftoverUnpacking = "unpacking" // work of a dead process
	LeftoverRoot      = "root"      // an unpacked root without an image
	LeftoverLayer     = "layer"     // a layer or another blob without an image
)
