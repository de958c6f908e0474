package requestcheck

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
)

// Keys implements api.Authenticator and api.RevocationChecker. It is safe for concurrent use.
type Keys struct {
	// Ring has the keys; the caller closes it.
	Ring *key.Ring
	// Always requires a key even on the unix socket, because a proxy with remote clients may connect to it.
	Always bool

	closed atomic.Bool // there has been a key: loopback stays closed without one
}

var (
	_ api.Authenticator     = (*Keys)(nil)
	_ api.RevocationChecker = (*Keys)(nil)
)

// The ids of principals without a key. They differ, because other users of the machine must not see the owner's runs.
const (
	Owner    = "owner"    // connected over the unix socket
	Loopback = "loopback" // connected over loopback, while there are no keys
)

// Authenticate returns the principal of a token, or of a client without one. All refusals are the same error, so that they reveal nothing.
func (k *Keys) Authenticate(ctx context.Context, token string) (*api.Principal, error) {
	if token == "" {
		return k.withoutKey(ctx)
	}
	found, err := k.Ring.Check(token)
	switch {
	case errors.Is(err, key.ErrRefused):
		return nil, api.ErrUnauthorized
	case err != nil:
		return nil, err
	}
	k.closed.Store(true)
	l := found.Limits
	return &api.Principal{ID: found.ID, Name: found.Name, Scopes: found.Scopes, Secret: found.Secret, Limits: api.KeyLimits{
		Limits: l.Max, CompileLimits: l.MaxCompile, Network: l.Network, Concurrency: l.Concurrency, Rate: l.Rate, Burst: l.Burst,
	}}, nil
}

// StillAuthorized reports whether a principal would still be authenticated. When the keys can not be read, it returns true.
func (k *Keys) StillAuthorized(p *api.Principal) bool {
	switch p.ID {
	case Owner:
		return true
	case Loopback:
		needed, err := k.Needed()
		return err != nil || !needed
	}
	good, err := k.Ring.Good(p.ID, p.Secret)
	return err != nil || good
}

func (k *Keys) withoutKey(ctx context.Context) (*api.Principal, error) {
	via, known := listen.ViaOf(ctx)
	switch {
	case !known || k.Always:
		return nil, api.ErrUnauthorized
	case via.Kind == listen.Unix:
		return &api.Principal{ID: Owner, Name: Owner}, nil
	case via.Kind == listen.Loopback:
		closed, err := k.Needed()
		if err != nil {
			return nil, err
		}
		if !closed {
			return &api.Principal{ID: Loopback, Name: Loopback}, nil
		}
	}
	return nil, api.ErrUnauthorized
}

// Needed reports whether loopback needs a key: from the first key on, even if it is removed later. An expired key counts: its operator did
// not intend to open the server to all users when it expired.
func (k *Keys) Needed() (bool, error) {
	if k.closed.Load() {
		return true, nil
	}
	n, err := k.Ring.Known()
	if err != nil {
		return true, err
	}
	if n > 0 {
		k.closed.Store(true)
	}
	return n > 0, nil
}
