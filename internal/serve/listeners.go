package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/requestcheck"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// listeners are the open listeners with their keys and certificate.
type listeners struct {
	ring  *key.Ring
	keys  *requestcheck.Keys
	cert  *listen.Certificate
	set   *listen.Set
	notes []string // settings that the operator may not have intended
}

// listenPlan describes the listeners before any address is bound.
type listenPlan struct {
	listeners
	settings  *operator.Settings
	store     *key.Store
	addresses []listen.Address
	inherited []listen.Inherited
	count     int  // of valid keys
	needed    bool // keys are needed over loopback
}

// planListeners reads and checks all settings of listeners, keys and TLS without binding an address. The caller discards the plan.
func planListeners(ctx context.Context, s *operator.Settings, log *slog.Logger) (p *listenPlan, err error) {
	p = &listenPlan{settings: s}
	defer func() {
		if err != nil {
			_ = p.discard() // err matters more
		}
	}()
	for _, name := range s.Hosts {
		if err := requestcheck.CheckHost(name); err != nil {
			return p, err
		}
	}
	for _, origin := range s.Origins {
		if err := requestcheck.CheckOrigin(origin); err != nil {
			return p, err
		}
	}
	if p.inherited, err = listen.Activated(); err != nil {
		return p, err
	}
	addresses := s.Listen
	if len(addresses)+len(p.inherited) == 0 {
		path := wire.DefaultSocket()
		if path == "" {
			return p, &sandbox.Error{
				Op: "listen", Kind: sandbox.ErrInvalid, Err: errors.New("no directory for sockets (XDG_RUNTIME_DIR)"),
				Hint: "--listen unix:///PATH/server.sock",
			}
		}
		addresses = []string{"unix://" + path}
	}
	for _, text := range addresses {
		a, err := listen.Parse(ctx, text)
		if err != nil {
			return p, err
		}
		p.addresses = append(p.addresses, a)
	}
	if p.store, err = key.Open(s.Keys); err != nil {
		return p, err
	}
	p.ring = key.NewRing(p.store)
	p.keys = &requestcheck.Keys{Ring: p.ring, Always: s.RequireKeys}
	if p.count, err = p.ring.Len(); err != nil {
		return p, err
	}
	if p.needed, err = p.keys.Needed(); err != nil { // fixed from now on, even if all keys are removed
		return p, err
	}
	if s.TLSCert != "" {
		p.cert, err = listen.LoadCertificate(s.TLSCert, s.TLSKey, func(err error) {
			log.Error("certificate reload failed, keeping the previous one", "error", err.Error())
		})
		if err != nil {
			return p, err
		}
	}
	for _, a := range p.addresses {
		if a.Exposed() {
			if err := p.exposed(a.String()); err != nil {
				return p, err
			}
		}
	}
	for _, in := range p.inherited {
		if via := listen.ViaOfListener(in.Listener, p.cert != nil); via.Kind == listen.Exposed {
			if err := p.exposed(via.At); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// exposed refuses an address that other machines can reach, unless there are keys and TLS.
func (p *listenPlan) exposed(where string) error {
	if p.count == 0 {
		hint := "sandbox-run key create --name NAME"
		if p.settings.Keys != "" {
			hint += " --keys " + p.store.Path()
		}
		return &sandbox.Error{
			Op: "listen " + where, Kind: sandbox.ErrRefused, Hint: hint,
			Err: errors.New("other machines can reach it, and there are no API keys: everyone could run programs here"),
		}
	}
	if p.cert == nil && !p.settings.InsecureHTTP {
		return &sandbox.Error{
			Op: "listen " + where, Kind: sandbox.ErrRefused,
			Hint: "--tls-cert FILE --tls-key FILE; or --insecure-http, if a proxy or tunnel encrypts the connection",
			Err:  errors.New("other machines can reach it, and without TLS keys and programs could be read on the network"),
		}
	}
	return nil
}

// note adds notes about open listeners of these kinds.
func (p *listenPlan) note(kinds map[listen.Kind]bool) {
	if kinds[listen.Loopback] && !p.needed && !p.settings.RequireKeys {
		p.notes = append(p.notes, "every user of this machine can run programs over loopback: there are no API keys")
	}
	if p.needed && p.count == 0 {
		p.notes = append(p.notes, "all API keys have expired: every request over TCP is refused")
	}
	if p.settings.RequireKeys && !p.needed {
		p.notes = append(p.notes, "API keys are required, and there are none yet: every request is refused")
	}
	if kinds[listen.Exposed] && p.cert == nil {
		p.notes = append(p.notes, "other machines reach the server over plain HTTP")
	}
	if kinds[listen.Exposed] && len(p.settings.Hosts) == 0 {
		p.notes = append(p.notes, "the server has no host name (--host): clients must use its address")
	}
}

func (p *listenPlan) discard() (err error) {
	for _, in := range p.inherited {
		err = errors.Join(err, in.Listener.Close())
	}
	if p.ring != nil {
		err = errors.Join(err, p.ring.Close())
	}
	return err
}

// openListeners binds the planned addresses.
func openListeners(ctx context.Context, s *operator.Settings, log *slog.Logger) (*listeners, error) {
	p, err := planListeners(ctx, s, log)
	if err != nil {
		return nil, err
	}
	o := listen.Options{Addresses: p.addresses, Inherited: p.inherited, Exposed: p.exposed, MaxConnections: s.MaxConnections}
	if p.cert != nil {
		o.TLS = p.cert.Config()
	}
	if p.set, err = listen.Open(ctx, o); err != nil {
		return nil, errors.Join(err, p.discard())
	}
	kinds := map[listen.Kind]bool{}
	for _, l := range p.set.Listeners() {
		kinds[l.Via().Kind] = true
		l.Refused = func(peer listen.Peer) {
			log.Warn("connection refused", "why", "peer", "uid", peer.UID, "pid", peer.PID, "listen", l.Via().At)
		}
	}
	p.note(kinds)
	return &p.listeners, nil
}

func (d *listeners) reload() error {
	if d.cert == nil {
		return nil
	}
	if err := d.cert.Reload(); err != nil {
		return fmt.Errorf("keeping the previous certificate: %w", err)
	}
	return nil
}

func (d *listeners) close() error { return errors.Join(d.set.Close(), d.ring.Close()) }
