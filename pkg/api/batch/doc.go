// Package batch runs many programs for one request, or one program with many inputs.
//
// What. A [Handler] handles POST /v1/batch. Every item is a run with its own result or problem; a failed item does not end the others,
// unless stop_on_failure is set.
//
// Place in the flow. It is mounted on the server of the HTTP API, and runs each item by [api.Server.Do], so that each passes ceilings,
// admission and observers by itself:
//
//	body ──► items ──► window ──► Do ──► Do ──► Do        bounded in number; an item refused for now waits and is retried
//	                     ▲                │
//	                     └── written ◄────┴── in the order of the request, or as they end
//
// The first item compiles a common program; the others begin when that is done, and find it in the compile cache.
//
// Lifecycle. A batch lives as long as its request. A client that disconnects, or reads nothing for too long, cancels the remaining items.
//
// Concurrency. Batches are independent of each other. Within one, a writer and a bounded number of workers share a window.
//
// Limits. Results are not collected: an item begins only when those before it are nearly written, so the memory is bounded by the window,
// whatever the size of the batch. The status is 200 as soon as the first item is admitted; later failures are in the items.
package batch
