// Package codec lets an image store read every compression that layers have.
//
// What. Readers of gzip and zstd, by klauspost/compress: the standard library has no zstd, and its gzip takes half as long again.
//
// Place in the flow. Executables that take images in import it, for nothing but its effect. The thin one does not: the tables that
// the library computes at start are 0.2 ms of every run (D10).
//
// Lifecycle. It registers itself when it is linked, and keeps nothing.
//
// Concurrency. Every reader is its caller's own.
//
// Limits. A zstd window may have 128 MiB, as registries' own tools allow. Corrupt input is an error, never a panic.
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
