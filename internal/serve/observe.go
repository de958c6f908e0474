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

// sendTimeout bounds how long close waits for the last spans to be sent.
const sendTimeout = 5 * time.Second

// addObserver adds metrics, logs, the audit log, traces and receipts to the options.
func (r *running) addObserver(o *api.Options) error {
	signer, err := receipt.OpenSigner(o.Dir)
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		r.log.Warn("receipts unavailable", "error", err.Error())
	}
	traces, err := observe.TracesFromEnvironment(r.serving.Version)
	if err != nil {
		return err
	}
	var languages []string
	for _, l := range r.stack.Languages() {
		languages = append(languages, l.Name)
	}
	r.observation = observe.New(observe.Options{
		Pool: r.stack.poolStats(), Lacks: func() int { return len(r.stack.PreparationFailures()) },
		Log: r.log, Audit: r.stack.audit, Signer: signer, Traces: traces, Languages: languages,
		Backend: r.stack.name, Tier: r.stack.tier, Version: r.serving.Version,
	})
	o.Observer = r.observation
	if signer != nil {
		o.Receipts = r.observation
	}
	return nil
}

// poolStats returns a function that reads the pool's statistics; nil without a pool.
func (e *stack) poolStats() func() observe.PoolStats {
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
			st.Shapes = append(st.Shapes, observe.ShapeStats{
				Name: s.Name, Hits: s.Hits, Misses: s.Misses, Members: s.Sandboxes, Zygotes: s.Zygotes, Wanted: s.Wanted,
			})
		}
		return st
	}
}

// observeRequests mounts the routes of the observation and wraps the outermost handler.
func (r *running) observeRequests(next http.Handler) http.Handler {
	r.observation.Mount(r.api)
	return r.observation.Access(next)
}

// closeObserver writes and sends what is still queued.
func (r *running) closeObserver() error {
	if r.observation == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	return r.observation.Close(ctx)
}
