package cli

import (
	"context"
	"errors"
	"strings"
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

// TestNetworksStayHere: a run whose network has rules takes place here, and one that names a server goes there.
func TestNetworksStayHere(t *testing.T) {
	for text, here := range map[string]bool{
		"": false, "--network localhost": false, "--network none": false, "--allow-dns=false": false,
		"--network full": true, "--network learn": true, "--allow a.example": true, "--allow-registry npm": true, "--publish 80": true,
		"--allow-dns": true, "--compile-network allow": true, "--compile-allow a.example": true, "--network allow --deny a.example": true,
	} {
		flags := (&Invocation{}).newRoot().Flags()
		if err := flags.Parse(strings.Fields(text)); err != nil {
			t.Fatal(err)
		}
		if flag, _ := localFlag(flags, true); (flag != "") != here {
			t.Errorf("%q: %q", text, flag)
		}
		if flag, _ := localFlag(flags, false); flag != "" {
			t.Errorf("%q at a server: %q", text, flag)
		}
	}
}
