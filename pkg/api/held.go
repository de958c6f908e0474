package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxHeld is how much of bodies and results is in memory at a time for all clients: many that are just small enough must not add up.
const maxHeld = 512 << 20

// held counts it, in all and by whose it is. The zero value is ready.
type held struct {
	mu     sync.Mutex
	size   int64
	owners map[string]int64
}

// take counts bytes that are about to be held, or says with a *Refusal that there is no room. An owner may have as much as is left for the others: one
// alone can have half, and however many take all they can get, there is room for one more.
func (h *held) take(owner string, n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := maxHeld - h.size - n
	switch {
	case left < 0:
		return &Refusal{Status: http.StatusServiceUnavailable, Reason: "too many large bodies and results are being sent", RetryAfter: time.Second}
	case h.owners[owner]+n > left:
		return &Refusal{Status: http.StatusTooManyRequests, Reason: "too many of your large bodies and results are being sent", RetryAfter: time.Second}
	}
	h.add(owner, n)
	return nil
}

// keep counts bytes that are held already. release gives them back; twice is fine.
func (h *held) keep(owner string, n int) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(owner, int64(n))
	return sync.OnceFunc(func() { h.drop(owner, int64(n)) })
}

func (h *held) drop(owner string, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(owner, -n)
}

// add is called with mu held.
func (h *held) add(owner string, n int64) {
	if h.owners == nil {
		h.owners = map[string]int64{}
	}
	h.size += n
	if h.owners[owner] += n; h.owners[owner] == 0 {
		delete(h.owners, owner)
	}
}

// mostOfResult is what one result is counted for at the most: however large it is, its owner can have it, but not many like it at a time.
const mostOfResult = maxHeld / 4

// result counts a result that is about to be read into memory for a client, who may take his time.
func (h *held) result(owner string, size int64) (release func(), err error) {
	size = min(size, mostOfResult)
	if err := h.take(owner, size); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { h.drop(owner, size) }), nil
}

// await is result for those who have begun to answer, and can wait.
func (h *held) await(ctx context.Context, owner string, size int64) (release func(), err error) {
	for {
		if release, err = h.result(owner, size); err == nil {
			return release, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return func() {}, context.Cause(ctx)
		}
	}
}

func (h *held) total() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// gather reads to the end. What it has read is counted while it comes, not before: who announces much and sends nothing takes nothing. release gives it back;
// it is nil with an error.
func (h *held) gather(owner string, in io.Reader) (body []byte, release func(), err error) {
	const step = 64 << 10
	var buf bytes.Buffer
	var taken int64
	release = sync.OnceFunc(func() { h.drop(owner, taken) })
	for {
		if need := int64(buf.Len() + step); need > taken {
			grown := max(need, 2*taken)
			if err := h.take(owner, grown-taken); err != nil {
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
