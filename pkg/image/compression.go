package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Compression is the compression of a layer, recognised by its first bytes.
type Compression string

// The compressions.
const (
	Plain Compression = "plain"
	Gzip  Compression = "gzip"
	Zstd  Compression = "zstd"
)

var (
	gzipMagic = []byte{0x1f, 0x8b, 8}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// Compressions of archives that layers never have.
	xzMagic    = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
	bzip2Magic = []byte("BZh")
)

// readAhead is how much is read of a file or unpacked at a time.
const readAhead = 256 << 10

// Decoder opens the uncompressed form of a stream. Its reader is closed before the stream.
type Decoder func(io.Reader) (io.ReadCloser, error)

var (
	decodersMu sync.RWMutex // guards decoders
	decoders   = map[Compression]Decoder{
		Gzip: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	}
)

// RegisterDecoder replaces the decoder of a compression. Package codec registers fast ones for all of them: linking them would
// slow down every start of the thin executable, which uses gzip of the standard library.
func RegisterDecoder(c Compression, d Decoder) {
	decodersMu.Lock()
	defer decodersMu.Unlock()
	decoders[c] = d
}

// compressionOf recognises a compression by the first bytes.
func compressionOf(head []byte) (Compression, error) {
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		return Gzip, nil
	case bytes.HasPrefix(head, zstdMagic):
		return Zstd, nil
	case bytes.HasPrefix(head, xzMagic), bytes.HasPrefix(head, bzip2Magic):
		return "", fmt.Errorf("%w: it is packed by xz or bzip2; unpack it first, or pack it by gzip or zstd", ErrInvalid)
	}
	return Plain, nil
}

// decompress recognises the compression of a stream and opens its uncompressed form.
func decompress(r io.Reader) (io.ReadCloser, Compression, error) {
	buffered := bufio.NewReaderSize(r, readAhead)
	head, err := buffered.Peek(len(xzMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	c, err := compressionOf(head)
	if err != nil {
		return nil, "", err
	}
	if c == Plain {
		return io.NopCloser(buffered), Plain, nil
	}
	decodersMu.RLock()
	open := decoders[c]
	decodersMu.RUnlock()
	if open == nil {
		return nil, c, sandbox.Errorf(sandbox.ErrUnsupported, "unpack image", "sandbox-rund in its place", "this executable can not unpack %s", c)
	}
	rc, err := open(buffered)
	if err != nil {
		return nil, c, fmt.Errorf("%w: %s: %w", ErrInvalid, c, err)
	}
	return rc, c, nil
}
