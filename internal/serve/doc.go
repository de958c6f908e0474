// Package serve implements `sandbox-run serve`: it makes a server from an operator's settings, runs it, and ends it in order.
//
// What. A Server opens and closes its parts from the outside in, so that no part gets requests after its end:
//
//	listeners ─► request checks ─► pkg/api ─► executor ─► manager ─► pool ─► backend
//	  keys, TLS   (pkg/api/requestcheck)              cache, toolchains
//
// Place in the flow. Only cmd/sandbox-rund links it and passes it to internal/cli. It uses internal/app for backends and the executor, and
// is the one place that connects the parts of the HTTP API.
//
// Lifecycle. Serve returns when all parts have ended:
//
//	open ─► READY ─► serving ── SIGTERM, SIGINT ──► no new connections, drain ── runs ended, or --drain-timeout ──► closed
//	                    │                             └── second signal ──► runs are cancelled ── third signal ──► exit
//	                    └── SIGHUP ──► ceilings, log level, certificates
//
// SIGKILL needs none of this: sandboxes end with their supervisor, the kernel releases the socket's lock, and the next server takes it
// over.
//
// Concurrency. A process runs one Serve at a time, because signals belong to the process.
//
// Limits. SIGHUP applies ceilings, log level and certificates only; other changed settings are logged and need a restart.
package serve
