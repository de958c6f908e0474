package observe

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configures an Observation. With the zero value it only counts.
type Options struct {
	// Log gets the access log and the log of runs; nil means none.
	Log *slog.Logger
	// Audit gets refusals and the server's start and stop; nil means none. The executor writes the runs: give it the same log.
	Audit *audit.Log
	// Signer signs receipts; nil means that there are none.
	Signer *receipt.Signer
	// Traces sends spans; nil means none. See TracesFromEnvironment.
	Traces *Traces
	// Pool returns the pool's statistics; nil means that there is no pool.
	Pool func() PoolStats
	// Lacks returns the number of preparation failures; nil means that they are not known.
	Lacks func() int
	// Languages are the names of languages beyond those that are built in.
	Languages []string
	// Backend and Tier are the defaults of this server's sandboxes; left out if empty.
	Backend string
	Tier    sandbox.Tier
	Version string
}

// Observation is the observers of one server. It is safe for concurrent use.
type Observation struct {
	api.Observers
	log     *slog.Logger
	metrics *metrics
	auditor *auditor
	traces  *Traces
	signer  *receipt.Signer

	closing sync.Once
	err     error
}

var (
	_ api.Observer = (*Observation)(nil)
	_ api.Receipts = (*Observation)(nil)
)

// New makes an Observation. The caller closes it.
func New(opts Options) *Observation {
	o := &Observation{log: opts.Log, metrics: newMetrics(&opts), traces: opts.Traces, signer: opts.Signer}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	o.Observers = api.Observers{o.metrics, &logs{to: o.log, languages: o.metrics.languages}}
	if opts.Audit != nil {
		o.auditor = newAuditor(opts.Audit, reportFailure(o.log, o.metrics))
		o.Observers = append(o.Observers, o.auditor)
	}
	if o.traces != nil {
		o.traces.attach(o.log, o.metrics.languages)
		o.Observers = append(o.Observers, o.traces)
	}
	return o
}

// Mount adds the routes of metrics and of the receipt key.
func (o *Observation) Mount(to *api.Server) {
	mount := func(path, id, summary string, a api.Access, h http.Handler, kind string, schema *huma.Schema) {
		to.Mount("GET "+path, a, h)
		to.Describe(&huma.Operation{
			OperationID: id, Method: http.MethodGet, Path: path, Tags: []string{"Server"}, Summary: summary,
			Responses: map[string]*huma.Response{
				"200": {Description: "The document.", Content: map[string]*huma.MediaType{kind: {Schema: schema}}},
			},
		}, a)
	}
	mount(PathMetrics, "metrics", "Get the metrics, in the text format of Prometheus", api.Access{Scope: api.ScopeAdmin, Draining: true},
		o.metrics.handler(), "text/plain", &huma.Schema{Type: huma.TypeString})
	mount(PathReceiptKey, "receipt-key", "Get the public key of receipts", api.Access{Public: true, Draining: true},
		o.keyHandler(), wire.TypeJSON, to.Schema(reflect.TypeFor[receipt.KeyDocument]()))
}

// Begin records that the server accepts requests from now on.
func (o *Observation) Begin() {
	o.log.Info("server started")
	if o.auditor != nil {
		o.auditor.append(o.auditor.entry(audit.KindServerStarted))
	}
}

// Close writes the collected refusals, records the end, and sends the remaining spans until ctx ends. It may be called twice.
func (o *Observation) Close(ctx context.Context) error {
	o.closing.Do(func() {
		if o.auditor != nil {
			o.auditor.close()
			o.auditor.append(o.auditor.entry(audit.KindServerStopped))
		}
		if o.traces != nil {
			o.err = o.traces.close(ctx)
		}
		o.log.Info("server stopped")
	})
	return o.err
}
