// Package batch runs many programs for one request, or one program with many inputs.
//
// What. A [Handler] is POST /v1/batch. Every item is a run like any other, with its own result or problem; one that fails does not end the others, unless that is wanted.
//
// Place in the flow. It is mounted on the HTTP API's server, and runs each item by [api.Server.Do], so that each meets ceilings, admission and observers by itself:
//
//	body ──► items ──► window ──► Do ──► Do ──► Do        at most so many at a time; refused for now: waits, and tries again
//	                     ▲                │
//	                     └── written ◄────┴── in order of the request, or as they are done
//
// A compiled program is compiled by the first item; the others begin when that is done, and find it in the compile cache.
//
// Lifecycle. A batch lives as long as its request. A client that goes away, or reads nothing for too long, cancels what is left of it.
//
// Concurrency. Batches know nothing of each other. Within one, a writer and so many workers share a window.
//
// Limits. Nothing is collected: an item begins only when those before it are nearly written, so what is held in memory is so many results, whatever the size of the batch.
// The status is 200 as soon as the first item was let in; what happens later is said in the items.
package batch
