package guard

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
)

// Keys is the API's Authenticator.
type Keys struct {
	// Ring has the keys.
	Ring *key.Ring
	// Always asks for a key even on the unix socket: what stands there may be a proxy, through which anybody comes.
	Always bool

	closed atomic.Bool // there has been a key: loopback is not open to everybody again
}

var (
	_ api.Authenticator = (*Keys)(nil)
	_ api.Standing      = (*Keys)(nil)
)

// Those who need no key. They are different ones: what the owner runs over the unix socket is not for every user of the machine to see.
const (
	Owner    = "owner"    // came over the unix socket
	Anybody  = "loopback" // came over loopback, where there are no keys
	ofNobody = ""
)

// Authenticate says whose a token is, or who comes without one. All refusals are the same (A2).
func (k *Keys) Authenticate(ctx context.Context, token string) (*api.Principal, error) {
	if token == ofNobody {
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
		Limits: l.Max, CompileLimits: l.MaxCompile, Concurrency: l.Concurrency, Rate: l.Rate, Burst: l.Burst,
	}}, nil
}

// Still reports whether somebody who came in would still be let in.
func (k *Keys) Still(p *api.Principal) bool {
	switch p.ID {
	case Owner:
		return true
	case Anybody:
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
			return &api.Principal{ID: Anybody, Name: Anybody}, nil
		}
	}
	return nil, api.ErrUnauthorized
}

// Needed reports whether loopback needs a key: as soon as there is one, and from then on, even if it is removed. One that has expired is one: who had
// keys made did not mean that everybody comes in when their time is over.
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
