package observe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Traces makes the spans of a run when the run is over and all durations are known:
//
//	run     accepted ────────────────────────────────────► ended     child of the request's traceparent, if it had one
//	queue   accepted ──► admitted
//	create               admitted ──► sandbox made
//	compile                          ─────►                           each phase, one after the other
//	run                                     ─────►
type Traces struct {
	api.Observers // none: Finished has all times

	provider  *sdk.TracerProvider
	tracer    trace.Tracer
	languages set
	exporter  *exporter

	mu      sync.Mutex
	parents map[string]trace.SpanContext // of unfinished runs
}

// mostParents bounds the stored parents; a run beyond it begins a trace of its own.
const mostParents = 100_000

// TracesFromEnvironment sends spans to the endpoint of the standard OTEL_* variables, over HTTP with protobuf. Without an endpoint, or with
// OTEL_SDK_DISABLED=true or OTEL_TRACES_EXPORTER=none, it returns nil. The variables also set sampling, batching and resources.
func TracesFromEnvironment(version string) (*Traces, error) {
	e, err := exporterFromEnvironment(os.Getenv)
	if err != nil {
		return nil, &sandbox.Error{Op: "traces", Kind: sandbox.ErrInvalid, Err: err}
	}
	if e == nil {
		return nil, nil
	}
	about, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", "sandbox-run"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv()) // variables take precedence
	if err != nil {
		return nil, &sandbox.Error{Op: "traces", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)}
	}
	t := &Traces{
		provider: sdk.NewTracerProvider(sdk.WithBatcher(e), sdk.WithResource(about)), exporter: e, parents: map[string]trace.SpanContext{},
	}
	t.tracer = t.provider.Tracer("github.com/sandbox-run/sandbox-run/pkg/api", trace.WithInstrumentationVersion(version))
	return t, nil
}

func (t *Traces) attach(log *slog.Logger, languages set) {
	t.languages = languages
	t.exporter.report = func(err error) {
		log.LogAttrs(context.Background(), slog.LevelWarn, "spans not delivered", slog.String("error", clip(err.Error())))
	}
}

// close sends the remaining spans until ctx ends.
func (t *Traces) close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Queued stores the parent span of a run, because the request may end long before the run.
func (t *Traces) Queued(ctx context.Context, r api.Info) {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.parents) < mostParents {
		t.parents[r.ID] = parent
	}
}

// Finished makes the spans of a run.
func (t *Traces) Finished(_ context.Context, f *api.Finished) {
	t.mu.Lock()
	parent := t.parents[f.ID]
	delete(t.parents, f.ID)
	t.mu.Unlock()

	ctx := context.Background()
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	verdict := verdictOf(f)
	ctx, root := t.tracer.Start(ctx, "run", trace.WithTimestamp(f.Accepted), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("sandbox_run.run", f.ID), attribute.String("sandbox_run.key", keyOf(f.Principal)),
		attribute.String("sandbox_run.way", string(f.Way)),
		attribute.String("sandbox_run.language", t.languages.of(languageOf(f))), attribute.String("sandbox_run.verdict", verdict),
	))
	defer root.End(trace.WithTimestamp(f.Ended))
	if verdict == failed || verdict == string(sandbox.VerdictInternalError) {
		root.SetStatus(otelcodes.Error, "")
	}
	at := f.Started
	if at.IsZero() {
		at = f.Ended
	}
	t.span(ctx, "queue", f.Accepted, at)
	if f.Result == nil || f.Started.IsZero() {
		return
	}
	root.SetAttributes(
		attribute.Int("sandbox_run.exit_code", f.Result.ExitCode()), attribute.String("sandbox_run.backend", f.Result.Isolation.Backend),
		attribute.String("sandbox_run.tier", string(f.Result.Isolation.Tier)),
	)
	clock := func(d time.Duration) time.Time { // no span ends after the run
		if later := at.Add(d); later.Before(f.Ended) {
			return later
		}
		return f.Ended
	}
	first := true
	for _, p := range f.Result.Phases {
		if p.Cached {
			continue
		}
		begin := clock(p.Metrics.StartupTime.Duration())
		if first {
			t.span(ctx, "create", at, begin)
			first = false
		}
		at = begin
		end := clock(p.Metrics.WallTime.Duration())
		t.span(ctx, phases.of(p.Name), at, end, attribute.String("sandbox_run.verdict", string(p.Verdict)),
			attribute.Float64("sandbox_run.cpu_seconds", p.Metrics.CPUTime.Duration().Seconds()))
		at = end
	}
}

func (t *Traces) span(ctx context.Context, name string, begin, end time.Time, about ...attribute.KeyValue) {
	_, s := t.tracer.Start(ctx, name, trace.WithTimestamp(begin), trace.WithAttributes(about...))
	s.End(trace.WithTimestamp(end))
}
