// Package idempotency answers a repeated request with the answer of the first one, so that the run happens once.
//
// What. An [AnswerStore] is a middleware of the HTTP API. It stores the answer to a POST of /v1/run, /v1/runs or /v1/batch with an
// Idempotency-Key by owner, path and key.
//
// Place in the flow. Behind the server's checks, before its routes:
//
//	new key ──────────────────────► handler ──► answer, 2xx stored ──► client
//	same key, same body, done ────► the stored answer, with Idempotency-Replayed: true
//	same key, same body, running ─► waits for the answer (409 if too many wait)
//	same key, another body ───────► 422
//
// An answer other than 2xx, or to a client that disconnected before the end, is not stored: the next request is a first one. An
// asynchronous run has its key in the server's own record, so it is found after a restart, too, and for as long as the run is kept.
//
// Lifecycle. New makes a store; Attach gives it the server whose runs it may look up. It needs no closing.
//
// Concurrency. Any number of requests at a time. The lock is held for table lookups only.
//
// Limits. Answers are kept in memory, for a time and up to a size; the oldest are removed first. An answer above Options.Answer is not
// kept, and a repeated request then gets 409.
package idempotency
