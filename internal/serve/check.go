package serve

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Check finds out what Serve would do: it reads what Serve reads, and asks the backend what it gives, but binds and keeps nothing.
func (Server) Check(ctx context.Context, s cli.Serving) (_ *cli.ServeReport, err error) {
	p, err := planDoor(ctx, s.Settings, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.abandon()) }()
	report := &cli.ServeReport{Listen: []cli.ServeAddress{}, Keys: p.count, Require: floor(s.Settings)}
	kinds := map[listen.Kind]bool{}
	add := func(via listen.Via) {
		kinds[via.Kind] = true
		report.Listen = append(report.Listen, cli.ServeAddress{
			Address: via.At, Kind: string(via.Kind), TLS: via.TLS, Keys: s.Settings.RequireKeys || via.Kind != listen.Unix && p.needed,
		})
	}
	for _, a := range p.addresses {
		add(a.Via(p.cert != nil))
	}
	for _, in := range p.inherited {
		add(listen.ViaOfListener(in.Listener, p.cert != nil))
	}
	p.note(kinds)
	report.Notes = append([]string{}, p.notes...)
	if report.Backend, report.Tier, err = lookAt(ctx, s.Settings); err != nil {
		return nil, err
	}
	return report, nil
}

// lookAt asks the backend what it gives, and compares the ceilings with the machine.
func lookAt(ctx context.Context, s *operator.Settings) (name string, tier sandbox.Tier, err error) {
	b, _, err := openBackend(ctx, s)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() { err = errors.Join(err, m.Close()) }()
	// The languages' file and the images of languages are read, too.
	if _, err := app.NewExecutor(m, app.Engine{}); err != nil {
		return "", "", err
	}
	if err := new(ceilings).set(s, m.Machine()); err != nil {
		return "", "", err
	}
	return b.Name(), b.Probe(ctx).Tier, nil
}
