package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// A download that has brought this much since it was last cut is well, and its attempts begin to count anew.
	wellAfter = 256 << 10
	// Even so, the number of attempts is bounded; the next pull goes on from here.
	maxResumes = 100
)

// blob reads a layer from an offset to its end, through as many connections as it takes. It hands out no byte beyond the size that the
// manifest states; whether they are the right ones is for the store to say, which knows those before the offset as well.
type blob struct {
	ctx    context.Context
	client *client
	digest string
	size   int64
	note   func(state State, done int64, reason string, wait time.Duration)

	mu     sync.Mutex
	body   io.ReadCloser
	closed bool

	// Of the goroutine that reads.
	offset  int64 // of the next byte
	broken  error // why the last body ended early; seen to when more is asked for
	noRange bool  // the registry does not do ranges: read from the start, and skip
	failed  int   // attempts since the download was last well
	resumes int   // in all
	mark    int64 // offset when it was last cut
}

// openBlob returns when the first connection stands.
func (c *client) openBlob(ctx context.Context, digest string, size, offset int64, note func(State, int64, string, time.Duration)) (*blob, error) {
	if offset < 0 || offset > size {
		return nil, c.fail("download layer "+digest, fmt.Errorf("%w: %d bytes are here of a layer of %d", ErrInvalid, offset, size))
	}
	b := &blob{ctx: asLayer(ctx), client: c, digest: digest, size: size, offset: offset, mark: offset, note: note}
	if offset == size {
		note(Downloaded, offset, "", 0)
		return b, nil
	}
	if err := b.connect(); err != nil {
		return nil, err
	}
	return b, nil
}

// Read implements io.Reader. Its errors are final.
func (b *blob) Read(p []byte) (int, error) {
	if b.offset == b.size {
		return 0, io.EOF
	}
	for {
		if b.broken != nil {
			err := b.broken
			b.broken = nil
			if err := b.pause(err); err != nil {
				return 0, err
			}
		}
		body := b.current()
		if body == nil {
			if err := b.connect(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := body.Read(p[:min(int64(len(p)), b.size-b.offset)])
		b.offset += int64(n)
		if b.offset == b.size {
			b.note(Downloaded, b.offset, "", 0)
			return n, nil
		}
		if err != nil {
			b.drop()
			b.broken = cut(err)
		}
		if n > 0 {
			b.note(Downloading, b.offset, "", 0)
			return n, nil
		}
	}
}

// Close may be called twice, and during a Read.
func (b *blob) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.drop()
	return nil
}

func (b *blob) current() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.body
}

// keep makes a body the current one.
func (b *blob) keep(body io.ReadCloser) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		body.Close()
		return os.ErrClosed
	}
	b.body = body
	return nil
}

func (b *blob) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body != nil {
		b.body.Close()
		b.body = nil
	}
}

// cut is what the end of a body means before the end of the layer.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// connect makes a connection whose next byte is the one at the offset.
func (b *blob) connect() error {
	for {
		err := b.try()
		if err == nil {
			b.note(Downloading, b.offset, "", 0)
			return nil
		}
		if err := b.pause(err); err != nil {
			return err
		}
	}
}

// pause waits after a failure, or returns it when there is nothing to wait for.
func (b *blob) pause(err error) error {
	op := "download layer " + b.digest
	if b.ctx.Err() != nil {
		return b.client.fail(op, context.Cause(b.ctx))
	}
	if b.offset-b.mark >= wellAfter {
		b.failed = 0
	}
	b.mark = b.offset
	b.failed++
	b.resumes++
	wait, again := b.client.nextWait(b.failed, err)
	worth := passing(err)
	if b.offset > 0 {
		worth = mend(err)
	}
	if !again || !worth || b.resumes > maxResumes {
		if b.failed > 1 {
			err = fmt.Errorf("given up after %d attempts, %d of %d bytes are here: %w", b.failed, b.offset, b.size, tidy(err))
		}
		return b.client.fail(op, err)
	}
	b.note(Retrying, b.offset, plain(tidy(err).Error()), wait)
	if err := sleep(b.ctx, wait); err != nil {
		return b.client.fail(op, err)
	}
	return nil
}

// errNoRange asks for another attempt, from the start.
var errNoRange = fmt.Errorf("the registry does not continue downloads: %w", io.ErrUnexpectedEOF)

func (b *blob) try() error {
	header := http.Header{}
	if b.offset > 0 && !b.noRange {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.offset, b.size-1))
	}
	resp, err := b.client.send(b.ctx, "blobs/"+b.digest, header, http.StatusOK, http.StatusPartialContent)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable && !b.noRange {
		b.noRange = true
		return errNoRange
	}
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusPartialContent {
		if !b.noRange && b.offset > 0 && continues(resp.Header.Get("Content-Range"), b.offset, b.size) {
			return b.take(resp, b.size-b.offset)
		}
		resp.Body.Close()
		if b.noRange || b.offset == 0 {
			return fmt.Errorf("%w: a part of the layer, though all of it was asked for", ErrInvalid)
		}
		b.noRange = true
		return errNoRange
	}
	if err := b.take(resp, b.size); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, resp.Body, b.offset); err != nil {
		b.drop()
		return cut(err)
	}
	return nil
}

// take keeps a body that is to have so many bytes.
func (b *blob) take(resp *http.Response, length int64) error {
	if resp.ContentLength >= 0 && resp.ContentLength != length {
		resp.Body.Close()
		return fmt.Errorf("%w: wrong size: %s announces %d bytes, the manifest says %d", ErrInvalid, resp.Request.URL.Host, resp.ContentLength, length)
	}
	return b.keep(resp.Body)
}

// continues reads "bytes 100-199/200" and tells whether it is the rest of a layer.
func continues(header string, offset, size int64) bool {
	text, found := strings.CutPrefix(header, "bytes ")
	if !found {
		return false
	}
	span, total, found := strings.Cut(text, "/")
	if !found || total != "*" && total != strconv.FormatInt(size, 10) {
		return false
	}
	return span == fmt.Sprintf("%d-%d", offset, size-1)
}
