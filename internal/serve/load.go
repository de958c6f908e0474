package serve

import (
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/batch"
	"github.com/sandbox-run/sandbox-run/pkg/api/idempotency"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
)

// addLoadControl adds admission, idempotency and webhooks to the options.
func (r *running) addLoadControl(o *api.Options) error {
	s := r.settings
	queue, err := admission.New(admission.Options{
		Machine: r.stack.manager.Machine(), CPUs: s.PromiseCPUs, Memory: s.PromiseMemory,
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
	o.Webhooks = r.hooks
	return nil
}

// mountLoadControl mounts the routes that are built on runs.
func (r *running) mountLoadControl() {
	r.repeated.Attach(r.api)
	batch.Mount(r.api, batch.Options{Webhooks: r.hooks, Log: r.log})
}

// busy reports whether runs wait for admission.
func (r *running) busy() bool {
	queue := r.queue.Load()
	return queue != nil && queue.Load().Waiting > 0
}
