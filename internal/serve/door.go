package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api/guard"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// door is how one gets in: keys, certificate, listeners.
type door struct {
	ring  *key.Ring
	keys  *guard.Keys
	cert  *listen.Certificate
	set   *listen.Set
	notes []string // what an operator may not have meant
}

// plan is what a door will be, before anything is bound.
type plan struct {
	door
	settings  *operator.Settings
	store     *key.Store
	addresses []listen.Address
	inherited []listen.Inherited
	count     int  // of keys that are good
	needed    bool // over loopback
}

// planDoor reads and judges everything that can be without binding anything.
func planDoor(ctx context.Context, s *operator.Settings, log *slog.Logger) (p *plan, err error) {
	p = &plan{settings: s}
	defer func() {
		if err != nil {
			_ = p.abandon() // what is wrong comes first
		}
	}()
	for _, name := range s.Hosts {
		if err := guard.CheckHost(name); err != nil {
			return p, err
		}
	}
	for _, origin := range s.Origins {
		if err := guard.CheckOrigin(origin); err != nil {
			return p, err
		}
	}
	if p.inherited, err = listen.Activated(); err != nil {
		return p, err
	}
	for _, text := range s.Listen {
		a, err := listen.Parse(ctx, text)
		if err != nil {
			return p, err
		}
		p.addresses = append(p.addresses, a)
	}
	if len(p.addresses)+len(p.inherited) == 0 {
		path := wire.DefaultSocket()
		if path == "" {
			return p, &sandbox.Error{
				Op: "listen", Kind: sandbox.ErrInvalid, Err: errors.New("there is no directory for your sockets (XDG_RUNTIME_DIR)"), Hint: "--listen unix:///PATH/server.sock",
			}
		}
		a, err := listen.Parse(ctx, "unix://"+path)
		if err != nil {
			return p, err
		}
		p.addresses = append(p.addresses, a)
	}
	if p.store, err = key.Open(s.Keys); err != nil {
		return p, err
	}
	p.ring = key.NewRing(p.store)
	p.keys = &guard.Keys{Ring: p.ring, Always: s.RequireKeys}
	if p.count, err = p.ring.Len(); err != nil {
		return p, err
	}
	if p.needed, err = p.keys.Needed(); err != nil { // from now on, even if they are all removed
		return p, err
	}
	if s.TLSCert != "" {
		p.cert, err = listen.LoadCertificate(s.TLSCert, s.TLSKey, func(err error) {
			log.Error("certificate not read; the one before is used", "error", err.Error())
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

// exposed refuses what other machines can reach unless it is kept.
func (p *plan) exposed(where string) error {
	if p.count == 0 {
		hint := "sandbox-run key create --name NAME"
		if p.settings.Keys != "" {
			hint += " --keys " + p.store.Path()
		}
		return &sandbox.Error{
			Op: "listen " + where, Kind: sandbox.ErrRefused, Hint: hint,
			Err: errors.New("other machines can reach it, and there are no API keys: anybody could run programs here"),
		}
	}
	if p.cert == nil && !p.settings.InsecureHTTP {
		return &sandbox.Error{
			Op: "listen " + where, Kind: sandbox.ErrRefused, Hint: "--tls-cert FILE --tls-key FILE; or --insecure-http, where something else keeps the line safe",
			Err: errors.New("other machines can reach it, and without TLS keys and programs could be read on the way"),
		}
	}
	return nil
}

// note adds what an operator may not have meant, of what is open.
func (p *plan) note(kinds map[listen.Kind]bool) {
	if kinds[listen.Loopback] && !p.needed && !p.settings.RequireKeys {
		p.notes = append(p.notes, "every user of this machine can run programs over loopback: there are no API keys")
	}
	if p.needed && p.count == 0 {
		p.notes = append(p.notes, "all keys have expired: over TCP nobody can come in")
	}
	if p.settings.RequireKeys && !p.needed {
		p.notes = append(p.notes, "keys are required, and there are none yet: nobody can come in")
	}
	if kinds[listen.Exposed] && p.cert == nil {
		p.notes = append(p.notes, "other machines reach it over plain HTTP")
	}
	if kinds[listen.Exposed] && len(p.settings.Hosts) == 0 {
		p.notes = append(p.notes, "it has no name (--host): it is reached by its address only")
	}
}

func (p *plan) abandon() (err error) {
	for _, in := range p.inherited {
		err = errors.Join(err, in.Listener.Close())
	}
	if p.ring != nil {
		err = errors.Join(err, p.ring.Close())
	}
	return err
}

// openDoor binds what was planned.
func openDoor(ctx context.Context, s *operator.Settings, log *slog.Logger) (*door, error) {
	p, err := planDoor(ctx, s, log)
	if err != nil {
		return nil, err
	}
	o := listen.Options{Addresses: p.addresses, Inherited: p.inherited, Exposed: p.exposed, MaxConnections: s.MaxConnections}
	if p.cert != nil {
		o.TLS = p.cert.Config()
	}
	if p.set, err = listen.Open(ctx, o); err != nil {
		return nil, errors.Join(err, p.abandon())
	}
	kinds := map[listen.Kind]bool{}
	for _, l := range p.set.Listeners() {
		kinds[l.Via().Kind] = true
		l.Refused = func(peer listen.Peer) {
			log.Warn("connection refused", "why", "peer", "uid", peer.UID, "pid", peer.PID, "listen", l.Via().At)
		}
	}
	p.note(kinds)
	return &p.door, nil
}

func (d *door) reload() error {
	if d.cert == nil {
		return nil
	}
	if err := d.cert.Reload(); err != nil {
		return fmt.Errorf("the one before is used: %w", err)
	}
	return nil
}

func (d *door) close() error { return errors.Join(d.set.Close(), d.ring.Close()) }
