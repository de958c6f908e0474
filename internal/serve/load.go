package serve

import (
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/batch"
	"github.com/sandbox-run/sandbox-run/pkg/api/idempotency"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
)

// loaded has runs wait for their turn, requests that come twice be done once, and others told of what is done.
func (r *running) loaded(o *api.Options) error {
	s := r.settings
	queue, err := admission.New(admission.Options{
		Machine: r.engine.manager.Machine(), CPUs: s.PromiseCPUs, Memory: s.PromiseMemory,
		Queue: s.Queue, QueuePerKey: s.QueuePerKey, Wait: s.QueueWait, Concurrency: s.Concurrency, Rate: s.Rate, Burst: s.Burst,
	})
	if err != nil {
		return err
	}
	r.queue.Store(queue)
	o.Admission = queue
	r.repeated = idempotency.New(idempotency.Options{})
	o.Middleware = append(o.Middleware, r.repeated.Middleware)
	if !s.Webhooks {
		return nil
	}
	if r.hooks, err = webhook.New(webhook.Options{Dir: filepath.Join(o.Dir, "webhooks"), Allow: s.WebhookHosts, Log: r.log}); err != nil {
		return err
	}
	o.Webhooks = webhook.Runs{Sender: r.hooks}
	return nil
}

// mountLoad adds to the server what is built on runs.
func (r *running) mountLoad() {
	r.repeated.Attach(r.api)
	batch.Mount(r.api, batch.Options{Webhooks: r.hooks, Log: r.log})
}

// busy reports that runs wait for the machine.
func (r *running) busy() bool {
	queue := r.queue.Load()
	return queue != nil && queue.Load().Waiting > 0
}
