package batch

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// Options configures a Handler. A zero field means the default.
type Options struct {
	Items        int           // most items of one batch; default 1000
	Parallel     int           // most items of one batch at a time, and the default; default 4
	RetryTimeout time.Duration // how long an item that is refused for now is retried; default 5 min
	// Webhooks sends the webhooks of batches; nil: batches with a webhook are refused.
	Webhooks *webhook.Sender
	Log      *slog.Logger
}

// Handler handles POST /v1/batch.
type Handler struct {
	o      Options
	server *api.Server
}

// New makes a handler, which needs no closing.
func New(s *api.Server, o Options) *Handler {
	o.Items = cmp.Or(o.Items, 1000)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.RetryTimeout = cmp.Or(o.RetryTimeout, 5*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{o, s}
}

// Mount adds the route to a server and to its OpenAPI document.
func Mount(s *api.Server, o Options) {
	access := api.Access{Scope: api.ScopeRun}
	s.Mount("POST "+wire.PathBatch, access, New(s, o))
	schema := func(t reflect.Type) *huma.MediaType { return &huma.MediaType{Schema: s.Schema(t)} }
	s.Describe(&huma.Operation{
		OperationID: "batch", Method: http.MethodPost, Path: wire.PathBatch, Tags: []string{"Runs"},
		Summary: "Run many programs, or one with many inputs",
		Description: "Every item has a result or a problem of its own. Items come in the order of the request or as they end, as one document " +
			"or, with Accept: application/x-ndjson or text/event-stream, one per line. A client that disconnects cancels the remaining items.",
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{wire.TypeJSON: schema(reflect.TypeFor[wire.Batch]())}},
		Responses: map[string]*huma.Response{
			"200": {Description: "The items, and a summary.", Content: map[string]*huma.MediaType{
				wire.TypeJSON: schema(reflect.TypeFor[wire.BatchResult]()), wire.TypeNDJSON: schema(reflect.TypeFor[wire.BatchItem]()),
				wire.TypeSSE: {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
		},
	}, access)
}

// ServeHTTP runs a batch.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.serve(w, r); err != nil {
		h.server.Fail(w, r, err)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	kind, err := api.Negotiate(r, wire.TypeJSON, wire.TypeNDJSON, wire.TypeSSE)
	if err != nil {
		return err
	}
	body, release, err := h.server.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	b, err := wire.DecodeBatch(body)
	if err != nil {
		return err
	}
	if err := h.check(b); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := &batch{
		h: h, b: b, principal: api.PrincipalFrom(ctx), parallel: min(h.o.Parallel, b.Len()), out: newWriter(w, kind, cancel),
		summary: wire.BatchSummary{ID: api.NewID(), Items: b.Len(), Verdicts: map[string]int{}},
	}
	if b.Parallel > 0 {
		t.parallel = min(t.parallel, int(b.Parallel))
	}
	w.Header().Set(wire.HeaderRunID, t.summary.ID)
	return t.run(ctx)
}

// check refuses a batch as a whole.
func (h *Handler) check(b *wire.Batch) error {
	if n := b.Len(); n > h.o.Items {
		field := "inputs"
		if b.Run == nil {
			field = "runs"
		}
		p := wire.WrongField(wire.CodeCeiling, field, "%d items are above the operator's maximum of %d", n, h.o.Items)
		p.Hint, p.Errors[0].Ceiling = "send several batches", strconv.Itoa(h.o.Items)
		return p
	}
	if b.Webhook == nil {
		return nil
	}
	if h.o.Webhooks == nil {
		return wire.WrongField(wire.CodeUnsupported, "webhook", "%s", api.WebhooksDisabled)
	}
	if err := h.o.Webhooks.Check(b.Webhook); err != nil {
		return wire.WrongField(wire.CodeInvalid, "webhook", "%s", err)
	}
	return nil
}

// sendWebhook queues the webhook that reports the end of the batch.
func (t *batch) sendWebhook() {
	if t.b.Webhook == nil {
		return
	}
	body, err := json.Marshal(webhook.Message{Type: webhook.TypeBatch, Timestamp: time.Now(), Data: t.summary})
	if err == nil {
		err = t.h.o.Webhooks.Send(webhook.Delivery{
			ID: t.summary.ID, Owner: t.principal.ID, Hook: t.b.Webhook, Body: body,
		})
	}
	if err != nil {
		t.h.o.Log.Error("webhook not queued", "batch", t.summary.ID, "error", err)
	}
}
