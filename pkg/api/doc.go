// Package api serves the executor over HTTP: clients submit runs, read their events, send input, reconnect, and delete runs.
//
// What. New makes a [Server] from [Options]. Its Handler has all routes; /openapi.json describes them and is generated from the code.
// Answers are exactly what the command line prints: a result is that of `--json`, an event is a line of `--format ndjson`. Errors are RFC
// 9457.
//
// Place in the flow. An entry point: it parses, authorizes, renders, and stores accepted runs. The executor runs them:
//
//	listener ─► Handler ─► Authenticator ─► wire.Decode ─► Policy, Ceilings ─► Admission ─► Executor.Execute
//	                                                                                            │ events
//	        whole result │ SSE │ ndjson │ WebSocket ◄── readers, from any SEQ ◄── journal ◄──────┘
//	                                                                                 └─► Dir: accepted runs, results, events
//
// Listeners, keys, admission, metrics and receipts are in other packages, behind the interfaces of options.go.
//
// Lifecycle. New reads the runs that an earlier server left in Dir: finished runs are available again, unfinished ones are reported as
// "lost". Drain stops accepting and waits for runs, which it cancels when its context ends; Close cancels everything at once. Both leave
// every result of an accepted asynchronous run on disk. Neither closes the executor. Close may be called twice, and without Drain.
//
// Concurrency. All methods are safe for concurrent use. Locks, in this order: runStore.mu, run.mu, journal.mu. No lock is held during a
// callback or a disk operation, except for a journal's own file.
//
// Limits. Keep bounds what is stored of finished runs, in memory and on disk; a stream reports which events are gone. One server has a Dir
// for itself. A principal can not see the runs of another.
package api
