package serve

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/observe"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
)

// sendTimeout bounds how long the end waits for spans to be taken.
const sendTimeout = 5 * time.Second

// observed has everything that happens seen: counted, logged, audited, traced, and signed for those who ask.
func (r *running) observed(o *api.Options) error {
	signer, err := receipt.OpenSigner(o.Dir)
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		r.log.Warn("there are no receipts", "error", err.Error())
	}
	traces, err := observe.TracesFromEnvironment(r.serving.Version)
	if err != nil {
		return err
	}
	var languages []string
	for _, l := range r.engine.Languages() {
		languages = append(languages, l.Name)
	}
	r.seen = observe.New(observe.Options{
		Pool: r.engine.poolStats(), Lacks: func() int { return len(r.engine.PreparationFailures()) },
		Log: r.log, Audit: r.engine.audit, Signer: signer, Traces: traces, Languages: languages,
		Backend: r.engine.name, Tier: r.engine.tier, Version: r.serving.Version,
	})
	o.Observer = r.seen
	if signer != nil {
		o.Receipts = r.seen
	}
	return nil
}

// poolStats asks the pool how it stands; nil where there is none.
func (e *engine) poolStats() func() observe.PoolStats {
	if e.pool == nil {
		return nil
	}
	return func() observe.PoolStats {
		now := e.pool.Stats()
		st := observe.PoolStats{
			Hits: now.Hits, Misses: now.Misses, Warm: now.Warm, Fallbacks: now.Fallbacks, Refills: now.Refills, Failures: now.Failures,
			RefillTime: now.RefillTime, RefillCPU: now.RefillCPU, Unwell: now.Unhealthy, Evicted: now.Evicted, Memory: uint64(now.Memory),
		}
		for _, s := range now.Shapes {
			st.Shapes = append(st.Shapes, observe.ShapeStats{Name: s.Name, Hits: s.Hits, Misses: s.Misses, Members: s.Sandboxes, Zygotes: s.Zygotes, Wanted: s.Wanted})
		}
		return st
	}
}

// watched is the outermost handler, once there is a server.
func (r *running) watched(next http.Handler) http.Handler {
	r.seen.Mount(r.api)
	return r.seen.Access(next)
}

// unobserved writes and sends what waits.
func (r *running) unobserved() error {
	if r.seen == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	return r.seen.Close(ctx)
}
