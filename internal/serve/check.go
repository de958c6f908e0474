package serve

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Check reports what Serve would do. It reads the same settings and files and probes the backend, but binds no address and keeps nothing.
func Check(ctx context.Context, s Options) (_ *Report, err error) {
	p, err := planListeners(ctx, s.Settings, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.discard()) }()
	report := &Report{Listen: []Address{}, Keys: p.count, Require: floor(s.Settings)}
	kinds := map[listen.Kind]bool{}
	add := func(via listen.Via) {
		kinds[via.Kind] = true
		report.Listen = append(report.Listen, Address{
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
	if report.Backend, report.Tier, err = probeBackend(ctx, s.Settings); err != nil {
		return nil, err
	}
	return report, nil
}

// probeBackend returns name and tier of the backend, after it has checked the languages' file and the ceilings.
func probeBackend(ctx context.Context, s *operator.Settings) (name string, tier sandbox.Tier, err error) {
	b, _, err := openBackend(ctx, s)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() { err = errors.Join(err, m.Close()) }()
	// NewExecutor reads the languages' file and the images of languages.
	if _, err := app.NewExecutor(m, app.ExecutorOptions{}); err != nil {
		return "", "", err
	}
	if err := new(ceilings).set(s, m.Machine()); err != nil {
		return "", "", err
	}
	return b.Name(), b.Probe(ctx).Tier, nil
}
