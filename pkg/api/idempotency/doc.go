// Package idempotency has a request that is sent twice be done once: the second gets the first one's answer.
//
// What. A [Keeper] is a middleware of the HTTP API. A POST of /v1/run, /v1/runs or /v1/batch with an Idempotency-Key is remembered by whose it is, its path and its key.
//
// Place in the flow. Behind the server's checks, before its routes:
//
//	new key ──────────────────────► handler ──► answer, 2xx kept ──► client
//	same key, same body, done ────► the answer again, with Idempotency-Replayed: true
//	same key, same body, running ─► waits for it (409 if too many do)
//	same key, another body ───────► 422
//
// What is answered with anything but 2xx, or to a client that went away before the end, is forgotten: the next try is a first one. An asynchronous run has its
// key in the server's own record, so it is found after a restart, too, and for as long as the run is kept.
//
// Lifecycle. New makes one; Attach tells it of the server whose runs it may look for. There is nothing to close.
//
// Concurrency. Any number of requests at a time. The lock is held for looking only.
//
// Limits. Answers are kept in memory, for a while and up to a size; one that is larger than may be kept is not, and asking for it again is 409. The oldest go first.
package idempotency
