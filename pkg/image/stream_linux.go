package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"
	"sync/atomic"
)

// stream reads a layer in three goroutines: one decompresses, one computes the diff id, and the caller of Read makes files.
//
//	blob ─► decompress ─► chunks ─┬─► Read
//	                              └─► SHA-256
//
// It ends at its limit, and with its context. The caller calls close.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	packed Compression

	chunks chan *chunk // to Read
	hashed chan *chunk // to the hash
	done   sync.WaitGroup
	sum    hash.Hash // of the goroutine that hashes, until done

	current *chunk
	rest    []byte
	n       int64
}

type chunk struct {
	data []byte
	err  error        // in place of data
	uses atomic.Int32 // readers that still use it
	buf  *[readAhead]byte
}

var buffers = sync.Pool{New: func() any { return new([readAhead]byte) }}

func (c *chunk) release() {
	if c.uses.Add(-1) == 0 && c.buf != nil {
		buffers.Put(c.buf)
	}
}

// chunksAhead is how far decompression may be ahead of the files.
const chunksAhead = 8

// newStream starts reading. It hashes nothing if the digest is known already.
func newStream(ctx context.Context, r io.Reader, limit int64, hashing bool) (*stream, error) {
	unpacked, packed, err := decompress(r)
	if err != nil {
		return nil, err
	}
	s := &stream{packed: packed, chunks: make(chan *chunk, chunksAhead)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if hashing {
		s.sum, s.hashed = sha256.New(), make(chan *chunk, chunksAhead)
		s.done.Go(s.hash)
	}
	s.done.Go(func() {
		defer unpacked.Close()
		s.produce(unpacked, limit)
	})
	return s, nil
}

// produce sends chunks until the end, an error, or the limit. The last one has the error.
func (s *stream) produce(r io.Reader, limit int64) {
	defer close(s.chunks)
	if s.hashed != nil {
		defer close(s.hashed)
	}
	for {
		c := &chunk{buf: buffers.Get().(*[readAhead]byte)}
		n, err := fill(r, c.buf[:])
		c.data = c.buf[:n]
		if limit -= int64(n); limit < 0 {
			err, c.data = fmt.Errorf("%w: a layer unpacks to more than is allowed", ErrTooLarge), nil
		}
		c.uses.Store(1)
		if s.hashed != nil && len(c.data) > 0 {
			c.uses.Store(2)
			if !s.send(s.hashed, c) {
				return
			}
		}
		if len(c.data) > 0 && !s.send(s.chunks, c) {
			return
		}
		if err != nil {
			s.send(s.chunks, &chunk{err: err})
			return
		}
	}
}

// fill reads until p is full. Unlike io.ReadFull, it distinguishes the end from an early end.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

func (s *stream) send(to chan<- *chunk, c *chunk) bool {
	select {
	case to <- c:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *stream) hash() {
	for c := range s.hashed {
		_, _ = s.sum.Write(c.data) // never fails
		c.release()
	}
}

func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.current != nil && s.current.err != nil {
			return 0, s.current.err
		}
		if s.current != nil {
			s.current.release()
			s.current = nil
		}
		select {
		case c, open := <-s.chunks:
			if !open {
				return 0, context.Cause(s.ctx)
			}
			s.current, s.rest = c, c.data
		case <-s.ctx.Done():
			return 0, context.Cause(s.ctx)
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	s.n += int64(n)
	return n, nil
}

// finish reads the rest and returns the digest and the size of the uncompressed data.
func (s *stream) finish() (diffID string, size int64, err error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", 0, err
	}
	s.done.Wait()
	if s.sum != nil {
		diffID = digestPrefix + hex.EncodeToString(s.sum.Sum(nil))
	}
	return diffID, s.n, nil
}

// close ends the goroutines. A second call does nothing.
func (s *stream) close() {
	s.cancel(context.Canceled)
	s.done.Wait()
}
