package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxAccount bounds the bodies and results of all clients in memory.
const maxAccount = 512 << 20

// memoryAccount counts the bytes of bodies and results in memory, in total and per owner. The zero value is ready.
type memoryAccount struct {
	mu     sync.Mutex
	size   int64
	owners map[string]int64
}

// reserve reserves n bytes, or fails with a *Refusal. An owner may have as much as is left for the others: a single one can have half, and
// however many owners take all that they can get, there is room for one more.
func (h *memoryAccount) reserve(owner string, n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := maxAccount - h.size - n
	switch {
	case left < 0:
		return &Refusal{
			Status: http.StatusServiceUnavailable, Reason: "too many large bodies and results are being sent", RetryAfter: time.Second,
		}
	case h.owners[owner]+n > left:
		return &Refusal{
			Status: http.StatusTooManyRequests, Reason: "too many of your large bodies and results are being sent", RetryAfter: time.Second,
		}
	}
	h.add(owner, n)
	return nil
}

// count counts bytes that are in memory already. release gives them back and may be called twice.
func (h *memoryAccount) count(owner string, n int) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(owner, int64(n))
	return sync.OnceFunc(func() { h.drop(owner, int64(n)) })
}

func (h *memoryAccount) drop(owner string, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(owner, -n)
}

// add changes the totals. mu is held.
func (h *memoryAccount) add(owner string, n int64) {
	if h.owners == nil {
		h.owners = map[string]int64{}
	}
	h.size += n
	if h.owners[owner] += n; h.owners[owner] == 0 {
		delete(h.owners, owner)
	}
}

// maxResultShare bounds what one result counts for: its owner can get a result of any size, but not many large ones at a time.
const maxResultShare = maxAccount / 4

// reserveResult reserves the memory of a result before it is read for a client.
func (h *memoryAccount) reserveResult(owner string, size int64) (release func(), err error) {
	size = min(size, maxResultShare)
	if err := h.reserve(owner, size); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { h.drop(owner, size) }), nil
}

// waitForResult is reserveResult for a caller that has begun to answer and can wait: it blocks until there is room or ctx ends.
func (h *memoryAccount) waitForResult(ctx context.Context, owner string, size int64) (release func(), err error) {
	for {
		if release, err = h.reserveResult(owner, size); err == nil {
			return release, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return func() {}, context.Cause(ctx)
		}
	}
}

func (h *memoryAccount) total() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// readAll reads to the end and counts bytes as they arrive, so that a client that only announces a large body takes no memory. release
// gives the bytes back; it is nil with an error.
func (h *memoryAccount) readAll(owner string, in io.Reader) (body []byte, release func(), err error) {
	const step = 64 << 10
	var buf bytes.Buffer
	var taken int64
	release = sync.OnceFunc(func() { h.drop(owner, taken) })
	for {
		if need := int64(buf.Len() + step); need > taken {
			grown := max(need, 2*taken)
			if err := h.reserve(owner, grown-taken); err != nil {
				release()
				return nil, nil, err
			}
			taken = grown
		}
		if n, err := io.CopyN(&buf, in, step); err != nil || n < step {
			if err != nil && err != io.EOF { //nolint:errorlint // CopyN passes on exactly io.EOF
				release()
				return nil, nil, err
			}
			return buf.Bytes(), release, nil
		}
	}
}
