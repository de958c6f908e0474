package stack

import (
	"context"
	"sync"
	"time"
)

// bucket limits a rate. Its burst is a quarter of a second.
type bucket struct {
	rate int64 // per second; 0: no limit

	mu   sync.Mutex
	free time.Time // when all that was taken is paid for
}

func newBucket(rate int64) *bucket { return &bucket{rate: rate} }

const burst = time.Second / 4

// wait takes n, and waits until the rate allows it.
func (b *bucket) wait(ctx context.Context, n int) {
	if b.rate == 0 {
		return
	}
	b.mu.Lock()
	now := time.Now()
	if oldest := now.Add(-burst); b.free.Before(oldest) {
		b.free = oldest
	}
	b.free = b.free.Add(time.Duration(float64(n) / float64(b.rate) * float64(time.Second)))
	delay := b.free.Sub(now)
	b.mu.Unlock()
	if delay <= 0 {
		return
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
