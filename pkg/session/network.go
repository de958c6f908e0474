package session

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// takeNetwork keeps the network of a sandbox, which a fork may have changed, for the next one. It is called in the session's turn.
func (s *Session) takeNetwork(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.req.Policy.Network = b.session.Network()
}

// SetNetwork changes the network of the session between two cells. Connections that are open end. A fork has the network of its session: a
// change holds for both, until one of them is restarted.
func (s *Session) SetNetwork(ctx context.Context, p network.Policy) error {
	b, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer s.give()
	if err := b.session.CheckNetwork(p); err != nil {
		return err
	}
	if d := b.driver; d != nil {
		if d.isGone() {
			s.setCause(d.cause())
			return s.endedError()
		}
		if err := d.live.SetNetwork(ctx, p); err != nil {
			return err
		}
	}
	b.session.SetNetwork(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.req.Policy.Network = p
	return nil
}
