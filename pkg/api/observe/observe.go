package observe

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options say what is observed; the zero value counts.
type Options struct {
	// Log is written to; nil: nowhere.
	Log *slog.Logger
	// Audit is the chain that refusals and the server's start and stop are written to; nil: nowhere. Runs are written by the
	// engine: give it the same log.
	Audit *audit.Log
	// Signer signs receipts; nil: nobody does.
	Signer *receipt.Signer
	// Traces are where spans go; nil: nowhere. See TracesFromEnvironment.
	Traces *Traces
	// Pool tells how sandboxes made beforehand stand; nil: there are none.
	Pool func() PoolStats
	// Lacks is how many things that would have programs start sooner could not be made; nil: nobody knows.
	Lacks func() int
	// Languages are the names of languages beyond those that are built in.
	Languages []string
	// Backend and Tier are what sandboxes of this server are by default; left out if empty.
	Backend string
	Tier    sandbox.Tier
	Version string
}

// Observation is all that is seen of one server.
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

// New begins to observe. Its owner closes it.
func New(opts Options) *Observation {
	o := &Observation{log: opts.Log, metrics: newMetrics(&opts), traces: opts.Traces, signer: opts.Signer}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	o.Observers = api.Observers{o.metrics, &logs{to: o.log, languages: o.metrics.languages}}
	if opts.Audit != nil {
		o.auditor = newAuditor(opts.Audit, complain(o.log, o.metrics))
		o.Observers = append(o.Observers, o.auditor)
	}
	if o.traces != nil {
		o.traces.attach(o.log, o.metrics.languages)
		o.Observers = append(o.Observers, o.traces)
	}
	return o
}

// Mounter is what routes are added to: *api.Server.
type Mounter interface {
	Mount(pattern string, a api.Access, h http.Handler)
}

var _ Mounter = (*api.Server)(nil)

// Mount adds what operators and those who check receipts ask for.
func (o *Observation) Mount(to Mounter) {
	to.Mount("GET "+PathMetrics, api.Access{Scope: api.ScopeAdmin, Draining: true}, o.metrics.handler())
	to.Mount("GET "+PathReceiptKey, api.Access{Public: true, Draining: true}, o.keyHandler())
}

// Begin notes that the server takes requests from here on.
func (o *Observation) Begin() {
	o.log.Info("server started")
	if o.auditor != nil {
		o.auditor.append(o.auditor.entry(audit.KindServerStarted))
	}
}

// Close writes what was gathered, notes the end, and sends the spans that wait, no longer than ctx lasts. Twice is fine.
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
