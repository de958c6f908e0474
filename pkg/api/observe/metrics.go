package observe

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

const namespace = "sandbox_run"

// Buckets, in seconds: a warm start takes a millisecond or two, a program up to minutes.
var (
	shortTimes = prometheus.ExponentialBuckets(0.0005, 2, 14) // to 4 s
	longTimes  = prometheus.ExponentialBuckets(0.001, 2, 17)  // to 66 s
)

// metrics is the Prometheus metrics of a server, as an api.Observer.
type metrics struct {
	registry  *prometheus.Registry
	languages set

	queue, start   *prometheus.HistogramVec
	phase, request *prometheus.HistogramVec
	cell           *prometheus.HistogramVec
	cells          *prometheus.CounterVec
	sessions       prometheus.Gauge
	runs, refusals *prometheus.CounterVec
	isolation      *prometheus.CounterVec
	cpu            *prometheus.CounterVec
	memory         *prometheus.HistogramVec
	running        prometheus.Gauge
	queued         prometheus.Gauge
	http           *prometheus.CounterVec
	unaudited      prometheus.Counter
	receipts       *prometheus.CounterVec
}

func newMetrics(o *Options) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), languages: newSet(append(executor.BuiltinLanguages(), o.Languages...)...)}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		m.registry.MustRegister(g)
		return g
	}
	m.queue = histogram("queue_seconds", "Time from acceptance of a run until its admission.", longTimes, "language", "verdict")
	m.start = histogram("start_seconds", "Time to make the sandbox until the program could begin.", shortTimes, "language", "verdict")
	m.phase = histogram("phase_seconds", "Wall time of the phases of runs, without phases whose result was cached.", longTimes,
		"language", "phase", "verdict")
	m.request = histogram("request_seconds", "Time from acceptance of a run until its end.", longTimes, "language", "verdict")
	m.cell = histogram("cell_seconds", "Time from acceptance of a cell until its end, in the queue of its session, too.", longTimes,
		"language", "verdict")
	m.cells = counter("cells_total", "Finished cells of sessions.", "language", "verdict")
	m.sessions = gauge("sessions", "Live sessions.")
	m.runs = counter("runs_total", "Finished runs. The verdict error means that there is no result.", "language", "verdict", "way")
	m.refusals = counter("refusals_total", "Requests that were refused before a run began, by the code of the answer.", "code")
	m.isolation = counter("isolation_runs_total", "Runs by backend and reached tier.", "backend", "tier")
	m.cpu = counter("program_cpu_seconds_total", "CPU time that programs used, compilers included.", "language")
	m.memory = histogram("program_memory_peak_bytes", "Memory peak of the programs.", prometheus.ExponentialBuckets(1<<20, 4, 7), "language")
	m.running = gauge("running", "Runs under way.")
	m.queued = gauge("queued", "Runs that wait for admission.")
	m.http = counter("http_requests_total", "Requests by route, method and status.", "route", "method", "status")
	m.receipts = counter("receipts_total", "Requested receipts, by whether they could be signed.", "outcome")
	m.unaudited = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "audit_failures_total", Help: "Entries that could not be written to the audit log.",
	})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "The version of the server; always 1.",
	}, []string{"version", "goversion"})
	build.WithLabelValues(o.Version, runtime.Version()).Set(1)
	m.registry.MustRegister(
		m.unaudited, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if o.Backend != "" {
		tier := prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "isolation_info", Help: "Default backend and tier of this server's sandboxes; always 1.",
		}, []string{"backend", "tier"})
		tier.WithLabelValues(backends.of(o.Backend), tiers.of(string(o.Tier))).Set(1)
		m.registry.MustRegister(tier)
	}
	if o.Lacks != nil {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "lacks", Help: "Preparation failures that make programs start later; health?deep=1 lists them.",
		}, func() float64 { return float64(o.Lacks()) }))
	}
	if o.Pool != nil {
		m.registry.MustRegister(newPools(o.Pool))
	}
	return m
}

// PathMetrics is the path of the metrics.
const PathMetrics = "/metrics"

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

func (m *metrics) Queued(context.Context, api.Info) { m.queued.Inc() }

func (m *metrics) Started(context.Context, api.Info) {
	m.queued.Dec()
	m.running.Inc()
}

// verdictOf returns the verdict of a run, or a word for a run without a result.
func verdictOf(f *api.Finished) string {
	var refusal *api.Refusal
	switch {
	case f.Result != nil:
		return verdicts.of(string(f.Result.Verdict))
	case errors.As(f.Err, &refusal):
		return refused
	case errors.Is(f.Err, context.Canceled):
		return "cancelled"
	default:
		return failed
	}
}

// refusalCode returns the code of the answer to a run that was not admitted.
func refusalCode(err error) string {
	var refused *api.Refusal
	if !errors.As(err, &refused) {
		return other
	}
	if refused.Code != "" {
		return codes.of(refused.Code)
	}
	if refused.Status == http.StatusTooManyRequests {
		return wire.CodeTooMany
	}
	return wire.CodeBusy
}

func languageOf(f *api.Finished) string {
	if f.Result != nil && f.Result.Language != "" {
		return f.Result.Language
	}
	return f.Language
}

func (m *metrics) Finished(_ context.Context, f *api.Finished) {
	language, verdict := m.languages.of(languageOf(f)), verdictOf(f)
	if f.Started.IsZero() {
		m.queued.Dec()
	} else {
		m.running.Dec()
		m.queue.WithLabelValues(language, verdict).Observe(f.Started.Sub(f.Accepted).Seconds())
	}
	if verdict == refused {
		m.refusals.WithLabelValues(refusalCode(f.Err)).Inc()
		return
	}
	if f.Way == api.WayCell {
		m.cell.WithLabelValues(language, verdict).Observe(f.Ended.Sub(f.Accepted).Seconds())
		m.cells.WithLabelValues(language, verdict).Inc()
	} else {
		m.request.WithLabelValues(language, verdict).Observe(f.Ended.Sub(f.Accepted).Seconds())
		m.runs.WithLabelValues(language, verdict, ways.of(string(f.Way))).Inc()
	}
	r := f.Result
	if r == nil {
		return
	}
	m.isolation.WithLabelValues(backends.of(r.Isolation.Backend), tiers.of(string(r.Isolation.Tier))).Inc()
	if r.Metrics.MemoryPeak > 0 { // 0: not known
		m.memory.WithLabelValues(language).Observe(float64(r.Metrics.MemoryPeak))
	}
	first := true
	for _, p := range r.Phases {
		if p.Cached {
			continue
		}
		if first { // later phases use the same sandbox
			m.start.WithLabelValues(language, verdict).Observe(p.Metrics.StartupTime.Duration().Seconds())
			first = false
		}
		m.phase.WithLabelValues(language, phases.of(p.Name), verdicts.of(string(p.Verdict))).Observe(p.Metrics.WallTime.Duration().Seconds())
		m.cpu.WithLabelValues(language).Add(max(0, p.Metrics.CPUTime.Duration().Seconds()))
	}
}

func (m *metrics) Refused(_ context.Context, r api.Refused) {
	m.refusals.WithLabelValues(codes.of(r.Code)).Inc()
}

func (m *metrics) Session(_ context.Context, e api.SessionEvent) {
	if e.Ended == "" {
		m.sessions.Inc()
	} else {
		m.sessions.Dec()
	}
}

// answered counts an answered request.
func (m *metrics) answered(route, method string, status int) {
	if status < 100 || status > 599 {
		status = 0
	}
	m.http.WithLabelValues(route, methods.of(method), statusClass(status)).Inc()
}

// statusClass keeps the statuses that operators look for, and reduces the others to their class.
func statusClass(status int) string {
	switch status {
	case http.StatusOK, http.StatusAccepted, http.StatusSwitchingProtocols, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable:
		return strconv.Itoa(status)
	case 0:
		return other
	}
	return strconv.Itoa(status/100) + "xx"
}
