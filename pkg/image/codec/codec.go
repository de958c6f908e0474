// Package codec lets an image store read every compression that layers have.
//
// What. It registers readers of gzip and zstd from klauspost/compress: the standard library has no zstd, and its gzip takes 1.5 times as
// long.
//
// Place in the flow. Executables that add images to a store import it for its init function. sandbox-run does not: the library computes
// tables at start, which would take 0.2 ms of every run (D10).
//
// Lifecycle. The init function registers the readers. The package has no other state.
//
// Concurrency. A reader belongs to its caller.
//
// Limits. A zstd window has at most 128 MiB, as in the registries' own tools. Corrupt input is an error, never a panic.
package codec

import (
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

const window = 128 << 20

func init() {
	image.RegisterDecoder(image.Gzip, func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) })
	image.RegisterDecoder(image.Zstd, func(r io.Reader) (io.ReadCloser, error) {
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(2*window))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	})
}
