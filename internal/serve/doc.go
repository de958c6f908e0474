// Package serve is `sandbox-run serve`: it makes a server of an operator's settings, runs it, and ends it in order.
//
// What. A Server opens, from the outside in:
//
//	listeners ─► guard ─► pkg/api ─► engine (pkg/executor) ─► manager ─► backend
//	  keys, TLS                       cache, toolchains
//
// and closes them from the outside in, so that nothing is asked of what is gone already.
//
// Place in the flow. Linked by cmd/sandbox-rund alone, which hands it to internal/cli; it stands on internal/app, as that does on the backends, and is
// the one place where the parts of the HTTP API meet.
//
// Lifecycle. Serve returns when everything has ended:
//
//	open ─► READY ─► serving ── SIGTERM, SIGINT ──► no more connections, Drain ── runs are over, or --drain-timeout ──► closed
//	                    │                             └── again ──► runs are cancelled at once ── again ──► exit
//	                    └── SIGHUP ──► ceilings, level of logs, certificates
//
// SIGKILL needs nothing of this: sandboxes end with their supervisor, the socket's lock is free, and the next server takes it over.
//
// Concurrency. One Serve at a time in a process: signals are the process's.
//
// Limits. What is not among the ceilings and the level of logs takes a restart; reading again says so.
package serve
