package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/client"
)

// slowTransport is a transport to a server that answers after a delay.
type slowTransport struct {
	client.Transport
	takes time.Duration
}

func (f slowTransport) Dial(ctx context.Context, _, _ string) (client.Socket, client.Header, error) {
	select {
	case <-time.After(f.takes):
		return nil, nil, errors.New("here")
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// A server that does not answer in time is reported as such, and other errors are not.
func TestSessionTimeout(t *testing.T) {
	if _, err := openSession(slowTransport{takes: time.Minute}, 10*time.Millisecond); !errors.Is(err, client.ErrIdleTimeout) {
		t.Error(err)
	}
	if _, err := openSession(slowTransport{}, time.Minute); err == nil || errors.Is(err, client.ErrIdleTimeout) {
		t.Error(err)
	}
}
