package image

import (
	"context"
	"errors"
	"io"
	"time"
)

// Kinds of failure a caller can act upon; test with errors.Is.
var (
	// ErrNotFound: the store has no image of that name, digest or id.
	ErrNotFound = errors.New("no such image")
	// ErrInUse: a sandbox stands on the image.
	ErrInUse = errors.New("image is in use")
	// ErrAmbiguous: more than one image has an id that begins so.
	ErrAmbiguous = errors.New("id is not unique")
	// ErrInvalid: what came is not an image, or not the one it claims to be.
	ErrInvalid = errors.New("invalid image")
	// ErrTooLarge: the image goes beyond Limits.
	ErrTooLarge = errors.New("image is too large")
)

// Image is one that the store has, whole and checked.
type Image struct {
	ID       string    `json:"id"`                // sha256:… of its configuration
	Digest   string    `json:"digest"`            // sha256:… of its manifest
	Indexes  []string  `json:"indexes,omitempty"` // digests of the indexes by which it was found, among images for other platforms
	Names    []string  `json:"names"`             // normalised, sorted; may be empty
	Platform string    `json:"platform"`          // "linux/amd64"
	Size     int64     `json:"size"`              // bytes of its files, unpacked
	Created  time.Time `json:"created"`           // as the image says; zero when it does not
	Added    time.Time `json:"added"`
	Layers   []string  `json:"layers"` // digests, lowest first
	Config   Config    `json:"config"`
}

// Config is what an image says about running it.
type Config struct {
	Env        []string          `json:"env,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// Source is an image on its way in.
type Source struct {
	// Names the image is to have; a name that another image has moves here.
	Names []string
	// Indexes are the digests of what led to the manifest. People pin them, so the image is found by them, too.
	Indexes []string
	// Manifest as it was served, or nil: then one is written for what is below.
	Manifest []byte
	// Config as it was served. Without a manifest, rootfs.diff_ids may be missing and is filled in; nil is an empty one.
	Config []byte
	Layers []Layer // lowest first; with a manifest, those that it lists
	// Parallel is how many layers are fetched at a time; 0 is 4, and so is more.
	Parallel int
}

// Layer is an archive on its way in.
type Layer struct {
	// Digest is sha256:…, or empty where there is no manifest and it is not known yet.
	Digest string
	// MediaType may be empty. What the bytes are is seen in the bytes.
	MediaType string
	// Size in bytes; 0 where there is no manifest and it is not known yet.
	Size int64
	// Open begins at an offset: what was cut off goes on from there. It is not called for a layer the store has. It may be called
	// by several goroutines, for several layers.
	Open func(ctx context.Context, offset int64) (io.ReadCloser, error)
	// Retry is called when Open has failed or its reader has ended early. It returns nil, after a pause, if Open is to be called again with the
	// offset, or the final error. Nil stands for five attempts without another byte, and none after a failed Open.
	Retry func(ctx context.Context, offset int64, err error) error
}

// Limits is what one image may use up. A zero field has its default.
type Limits struct {
	Bytes   int64 // of all files of all layers together: 32 GiB, and nine tenths of what the disk has left
	Blob    int64 // of one layer as it is transferred: 16 GiB
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
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.Blob <= 0 {
		l.Blob = DefaultBlob
	}
	if l.Entries <= 0 {
		l.Entries = DefaultEntries
	}
	if l.Layers <= 0 {
		l.Layers = DefaultLayers
	}
	if l.Depth <= 0 {
		l.Depth = DefaultDepth
	}
	return l
}

// ImportOptions say how an archive is read.
type ImportOptions struct {
	// Names the image is to have. A plain root file system needs one; for others they take the place of those that the archive gives. With
	// more than one image in the archive they are refused.
	Names []string
	// Platform to choose where there are several, "linux/amd64"; empty is this machine's.
	Platform string
	// Config of a plain root file system.
	Config Config
}

// Format is how an image leaves the store.
type Format string

// The formats of Export: an OCI layout in an archive, with the layers as they came; and what `docker load` takes, every version of it.
// podman takes either.
const (
	FormatOCI    Format = "oci"
	FormatDocker Format = "docker"
)

// Report is what Prune has removed, or would.
type Report struct {
	Images []*Image `json:"images"`
	Bytes  int64    `json:"bytes"` // given back to the disk, roughly
}

// PruneOptions choose what Prune removes.
type PruneOptions struct {
	All    bool          // images with names as well, unless in use
	Older  time.Duration // only those added longer ago
	DryRun bool
}

// Leftover is a file or directory of a store that belongs to no image: Collect removes it.
type Leftover struct {
	Kind string // "download", "unpacking", "root" or "layer"
	Path string
}

// The kinds of leftovers.
const (
	LeftoverDownload  = "download"  // a part of a blob that was not continued for a day
	LeftoverUnpacking = "unpacking" // work of a process that is gone
	LeftoverRoot      = "root"      // unpacked, and of no image
	LeftoverLayer     = "layer"     // or any other blob of no image
)
