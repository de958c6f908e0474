package image

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

const (
	// attempts is how often the store asks for the rest of a layer without receiving another byte.
	attempts   = 5
	firstPause = 200 * time.Millisecond
	// partialAge is how long an incomplete layer is kept for the next attempt.
	partialAge = 24 * time.Hour
)

// putBlob stores a small document.
func (s *Store) putBlob(text []byte) (digest string, err error) {
	digest = digestOf(text)
	if s.Has(digest) {
		return digest, nil
	}
	return digest, writeFile(s.path(blobsDir, digest[len(digestPrefix):]), text)
}

// fetch stores a layer unless the store has it, and returns its digest and size.
func (s *Store) fetch(ctx context.Context, l Layer) (part, error) {
	p := part{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size}
	if l.Digest == "" {
		return s.fetchUnknown(ctx, l, p)
	}
	name, err := digestHex(l.Digest)
	if err != nil {
		return p, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if found, err := s.foundBlob(&p); found || err != nil {
		return p, err
	}
	// The process with the lock fetches; others wait, and find the layer complete.
	f, err := s.lockPartial(ctx, name)
	if err != nil {
		return p, err
	}
	defer f.Close()
	if found, err := s.foundBlob(&p); found || err != nil {
		_ = os.Remove(f.Name())
		return p, err
	}
	begun, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return p, err
	}
	digest, size, err := s.receive(ctx, l, f)
	if err == nil && digest != l.Digest && begun > 0 {
		// The bytes of an earlier attempt may be wrong.
		if err = f.Truncate(0); err == nil {
			digest, size, err = s.receive(ctx, l, f)
		}
	}
	if err == nil && digest != l.Digest {
		err = fmt.Errorf("%w: what came is %s", ErrInvalid, digest)
	}
	if err != nil {
		if errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge) {
			_ = os.Remove(f.Name()) // not worth continuing
		}
		return p, fmt.Errorf("layer %s: %w", l.Digest, err)
	}
	p.Size = size
	return p, s.keepBlob(f, name)
}

// foundBlob reports whether the store has a layer of the announced size.
func (s *Store) foundBlob(p *part) (bool, error) {
	name, err := digestHex(p.Digest)
	if err != nil {
		return false, err
	}
	info, err := os.Lstat(s.path(blobsDir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if p.Size > 0 && info.Size() != p.Size {
		return false, fmt.Errorf("%w: layer %s has %d bytes, and the manifest says %d", ErrInvalid, p.Digest, info.Size(), p.Size)
	}
	p.Size = info.Size()
	return true, nil
}

// fetchUnknown stores a layer whose digest is not known yet.
func (s *Store) fetchUnknown(ctx context.Context, l Layer, p part) (part, error) {
	f, err := s.lockPartial(ctx, rand.Text())
	if err != nil {
		return p, err
	}
	defer f.Close()
	digest, size, err := s.receive(ctx, l, f)
	if err != nil {
		_ = os.Remove(f.Name())
		return p, err
	}
	p.Digest, p.Size = digest, size
	if s.Has(digest) {
		return p, os.Remove(f.Name())
	}
	return p, s.keepBlob(f, digest[len(digestPrefix):])
}

// keepBlob gives a complete layer its name.
func (s *Store) keepBlob(f *os.File, name string) error {
	if err := f.Chmod(0o400); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	return os.Rename(f.Name(), s.path(blobsDir, name))
}

// lockPartial opens and locks partial/NAME. It tries again if the file lost its name while the process waited.
func (s *Store) lockPartial(ctx context.Context, name string) (*os.File, error) {
	path := s.path(partialDir, name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = userdir.Lock(f, false, time.Second)
		if err == nil && sameDir(path, f) {
			return f, nil
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, userdir.ErrBusy) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait for the process that fetches %s: %w", filepath.Base(path), context.Cause(ctx))
		}
	}
}

// receive appends the rest of a layer, and continues after interruptions as long as bytes arrive.
func (s *Store) receive(ctx context.Context, l Layer, f *os.File) (digest string, size int64, err error) {
	limit := s.Limits.complete().Blob
	if l.Size > limit {
		return "", 0, fmt.Errorf("%w: %d bytes, and %d are allowed", ErrTooLarge, l.Size, limit)
	}
	if l.Size > 0 {
		limit = l.Size
	}
	sum := sha256.New()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	if size, err = io.CopyBuffer(sum, onlyReader{f}, make([]byte, readAhead)); err != nil {
		return "", 0, err
	}
	retry := l.Retry
	if retry == nil {
		retry = newRetry(size)
	}
	for l.Size == 0 || size < l.Size {
		n, err := s.receiveOnce(ctx, l, f, sum, size, limit)
		size += n
		if err == nil {
			break
		}
		var again *cutOff
		if !errors.As(err, &again) {
			return "", size, err
		}
		if err := retry(ctx, size, again.error); err != nil {
			return "", size, err
		}
	}
	if size > limit || l.Size > 0 && size != l.Size {
		return "", size, fmt.Errorf("%w: %d bytes came, and %d were announced", ErrInvalid, size, l.Size)
	}
	return digestPrefix + hex.EncodeToString(sum.Sum(nil)), size, nil
}

// newRetry returns the Retry of a layer that has none.
func newRetry(last int64) func(context.Context, int64, error) error {
	failures, pause := 0, firstPause
	return func(ctx context.Context, offset int64, err error) error {
		if offset > last {
			last, failures, pause = offset, 0, firstPause
		}
		if failures++; failures >= attempts {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause *= 2
		return nil
	}
}

// onlyReader keeps io.Copy from bypassing its buffer.
type onlyReader struct{ io.Reader }

// cutOff is the error of a transfer that can continue.
type cutOff struct{ error }

func (c *cutOff) Unwrap() error { return c.error }

// receiveOnce reads from an offset to the end, at most one byte beyond the limit.
func (s *Store) receiveOnce(ctx context.Context, l Layer, f *os.File, sum hash.Hash, offset, limit int64) (n int64, err error) {
	from, err := l.Open(ctx, offset)
	if err != nil && l.Retry != nil {
		return 0, &cutOff{err}
	}
	if err != nil {
		return 0, err
	}
	// A silent peer must not delay the end of the context.
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer func() {
		if stop() {
			_ = from.Close()
		}
	}()
	buf := make([]byte, readAhead)
	for {
		m, err := from.Read(buf)
		if m > 0 {
			if offset+n+int64(m) > limit {
				if l.Size > 0 {
					return n, fmt.Errorf("%w: more bytes came than the %d that were announced", ErrInvalid, l.Size)
				}
				return n, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
			}
			if _, err := f.WriteAt(buf[:m], offset+n); err != nil {
				return n, err
			}
			_, _ = sum.Write(buf[:m]) // never fails
			n += int64(m)
		}
		switch {
		case ctx.Err() != nil:
			return n, context.Cause(ctx)
		case errors.Is(err, io.EOF) && l.Size > 0 && offset+n < l.Size:
			return n, &cutOff{fmt.Errorf("it ended after %d of %d bytes: %w", offset+n, l.Size, io.ErrUnexpectedEOF)}
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, &cutOff{err}
		}
	}
}
