package attack

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWithProcessorTime(t *testing.T) {
	began := time.Now()
	ctx, stop := withProcessorTime(context.Background(), 20*time.Millisecond)
	defer stop()
	<-ctx.Done()
	if took := time.Since(began); took < 20*time.Millisecond || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		t.Errorf("ended after %v by %v, want at least 20ms and a deadline", took, context.Cause(ctx))
	}
	parent, cancel := context.WithCancel(context.Background())
	ctx, stop = withProcessorTime(parent, time.Hour)
	defer stop()
	cancel()
	<-ctx.Done()
}
