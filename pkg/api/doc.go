// Package api serves the executor over HTTP: clients submit runs, read their events, send input, reconnect, and delete runs.
//
// What. New makes a [Server] from [Options]. Its Handler has all routes; /openapi.json describes them and is generated from the code. The
// directory web has the pages for people, / and /docs.
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
// Limits. Keep bounds what is stored of finished runs, in memory and on disk; a stream reports which events are gone. One server has a
// Dir for itself. A principal can not see the runs of another.
//
// Encoding. A result is encoded once and sent, stored and embedded as those bytes. Event lines are encoded by hand (encode.go), because
// output is most of the traffic; a fuzz test compares them with encoding/json. huma makes the OpenAPI document from our types and one
// table of routes. It does not read bodies: it would accept unknown names, other case, duplicates and invalid UTF-8 (wire.Decode refuses
// them).
//
// Journal. POST /v1/run stores nothing: events go to the connection, which gives the back-pressure; a failed write cancels the run. POST
// /v1/runs has a journal: in memory up to Keep.Memory, then in files of an eighth of Keep.Events each, of which the oldest is dropped.
// The journal waits for connected readers before it drops what they have not read; later readers are told of the gap.
//
// Crashes. A file of a run gets its name when it is complete and on disk. ID.q (accepted, with the request) exists before 202 is
// answered; it is renamed to ID.r when the run begins; ID.d (the record and the events) exists before a client can see the result. After
// a restart: .d is done, .r is lost, .q is run. Renames are not synced: after a power cut a run that had begun can be run again.
//
// Ending. A run is registered from its acceptance to its end. The client of POST /v1/run, the owner (DELETE) and Drain at its deadline
// cancel its context.
package api
