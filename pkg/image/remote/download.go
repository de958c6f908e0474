package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	// progressBytes is the progress since the last interruption after which the failed attempts of a download count from 0 again.
	progressBytes = 256 << 10
	// maxResumes bounds the attempts of a download that makes progress. The next pull continues it.
	maxResumes = 100
)

// layer is a layer during its download. The store opens it, and after an interruption opens it again at a later offset if retry allows.
// One goroutine at a time calls open and retry.
type layer struct {
	image *remoteImage
	index int
	desc  v1.Descriptor

	noRange bool  // the registry does not support ranges: read from the start, and skip
	failed  int   // failed attempts without progressBytes between them
	resumes int   // all failed attempts
	mark    int64 // offset at the last interruption
}

func (l *layer) op() string { return "download layer " + l.desc.Digest.String() }

func (l *layer) note(state State, done int64, reason string, wait time.Duration) {
	l.image.report.layer(l.index, state, done, reason, wait)
}

// open returns a reader whose next byte is the one at the offset.
func (l *layer) open(ctx context.Context, offset int64) (io.ReadCloser, error) {
	if offset < 0 || offset > l.desc.Size {
		return nil, l.image.fail(l.op(), fmt.Errorf("%w: %d bytes are here of a layer of %d", ErrInvalid, offset, l.desc.Size))
	}
	if offset == l.desc.Size {
		l.note(Downloaded, offset, "", 0)
		return http.NoBody, nil
	}
	body, err := l.connect(asLayer(ctx), offset)
	if err != nil {
		return nil, err
	}
	l.note(Downloading, offset, "", 0)
	return &download{body, l, offset}, nil
}

// retry waits before the next attempt. It returns the error if no further attempt is worthwhile.
func (l *layer) retry(ctx context.Context, offset int64, err error) error {
	if ctx.Err() != nil {
		return l.image.fail(l.op(), context.Cause(ctx))
	}
	if offset-l.mark >= progressBytes {
		l.failed = 0
	}
	l.mark = offset
	l.failed++
	l.resumes++
	wait, again := l.image.nextWait(l.failed, err)
	worth := isTemporary(err)
	if offset > 0 {
		worth = isNetworkOrTemporary(err)
	}
	if !again || !worth || l.resumes > maxResumes {
		if l.failed > 1 {
			err = fmt.Errorf("given up after %d attempts, %d of %d bytes are here: %w", l.failed, offset, l.desc.Size, tidy(err))
		}
		return l.image.fail(l.op(), err)
	}
	l.note(Retrying, offset, plain(tidy(err).Error()), wait)
	return l.image.fail(l.op(), sleep(ctx, wait))
}

// errNoRange is temporary: the next attempt reads the layer from the start.
var errNoRange = fmt.Errorf("the registry does not continue downloads: %w", io.ErrUnexpectedEOF)

func (l *layer) connect(ctx context.Context, offset int64) (io.ReadCloser, error) {
	header, size := http.Header{}, l.desc.Size
	if offset > 0 && !l.noRange {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, size-1))
	}
	resp, err := l.image.send(ctx, "blobs/"+l.desc.Digest.String(), header, http.StatusOK, http.StatusPartialContent)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable && !l.noRange {
		l.noRange = true
		return nil, errNoRange
	}
	if err != nil {
		return nil, err
	}
	length := size
	if resp.StatusCode == http.StatusPartialContent {
		switch {
		case l.noRange || offset == 0:
			err = fmt.Errorf("%w: a part of the layer, though the request was for all of it", ErrInvalid)
		case continues(resp.Header.Get("Content-Range"), offset, size):
			length = size - offset
		default:
			l.noRange, err = true, errNoRange
		}
	}
	if err == nil && resp.ContentLength >= 0 && resp.ContentLength != length {
		err = fmt.Errorf("%w: wrong size: %s announces %d bytes, the manifest says %d", ErrInvalid, resp.Request.URL.Host, resp.ContentLength,
			length)
	}
	if err == nil && length == size {
		_, err = io.CopyN(io.Discard, resp.Body, offset)
		err = unexpectedEOF(err)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp.Body, nil
}

// unexpectedEOF returns the error for a body that ends before the layer does.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// continues reports whether a Content-Range such as "bytes 100-199/200" is the rest of a layer.
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

// download is one transfer of a layer over one connection. It returns no byte beyond the size in the manifest; the store verifies
// the digest.
type download struct {
	io.ReadCloser // the body; it may be closed twice, and during a Read
	layer         *layer
	offset        int64 // of the next byte
}

func (d *download) Read(p []byte) (int, error) {
	size := d.layer.desc.Size
	if d.offset == size {
		return 0, io.EOF
	}
	n, err := d.ReadCloser.Read(p[:min(int64(len(p)), size-d.offset)])
	d.offset += int64(n)
	switch {
	case d.offset == size:
		d.layer.note(Downloaded, d.offset, "", 0)
		return n, nil
	case n > 0:
		d.layer.note(Downloading, d.offset, "", 0)
	}
	return n, unexpectedEOF(err)
}
