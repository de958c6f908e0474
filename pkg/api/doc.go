// Package api is the engine over HTTP: runs are asked for, watched, fed, taken up again after a lost connection, and forgotten.
//
// What. New makes a [Server] of [Options]; its Handler is all routes, and /openapi.json says which they are, generated from the code. Answers are
// exactly what the command line prints: a result is that of `--json`, an event a line of `--format ndjson`. Errors are RFC 9457.
//
// Place in the flow. A door: it parses, authorises, renders, and keeps what was accepted. What is run, and how, is the engine's:
//
//	listener ─► Handler ─► Authenticator ─► wire.Decode ─► Policy, Ceilings ─► Admission ─► Engine.Execute
//	                                                                                            │ events
//	        whole result │ SSE │ ndjson │ WebSocket ◄── readers, from any SEQ ◄── journal ◄──────┘
//	                                                                                 └─► Dir: accepted runs, results, events
//
// Who listens, keys, queues, metrics and receipts are other packages', behind the interfaces of options.go.
//
// Lifecycle. New takes up what an earlier server left in Dir: what was done is there again, what was under way is "lost" and says so. Drain stops
// accepting and waits for runs, which it cancels when its context ends; Close cancels everything at once. Both leave every result of an accepted
// asynchronous run on disk. Neither closes the engine. Close may be called twice, and without Drain.
//
// Concurrency. Everything may be called from any number of goroutines. Locks, in this order: registry.mu, run.mu, journal.mu. No lock is held while somebody
// else's code is called or a disk is waited for, but for a journal's own file.
//
// Limits. What is kept of a finished run is bounded by Keep, in memory and on disk; a stream says which events are gone. One server has a Dir for
// itself. Runs of one principal do not exist for another.
package api
