// Package observe shows a server's operator what the server does: metrics, logs, traces, the audit log and signed receipts.
//
// What. New makes an [Observation], which implements api.Observer and api.Receipts. Mount adds /metrics and /v1/receipt-key; Access is the
// outermost handler and writes the access log.
//
//	             ┌─ metrics  counters and histograms in a registry of their own; /metrics
//	api.Observer ┼─ logs     one line per run, one per request
//	             ├─ auditor  refusals, the server's start and stop; pkg/executor writes the runs
//	             └─ tracer   spans, sent to the endpoint of the OTEL_* variables
//
// Place in the flow. Beside pkg/api, which knows it by its interfaces only. Only sandbox-rund links it.
//
// Lifecycle. New; Begin when the server accepts requests; Close when it no longer does. Close writes what was collected, and sends the
// remaining spans until its context ends. Close may be called twice.
//
// Concurrency. All methods are safe for concurrent use. Only Begin, Close and Receipt wait for a disk or the network.
//
// Limits. Label values come from closed sets; all others become "other", so that no client can create series (see labels.go). Code, input,
// output, variables, arguments and keys are never logged, counted or traced; keys appear by their ids. Refusals of one key for one reason
// within a second are one entry of the audit log, with a count, so that a flood of refused requests does not fill the disk.
package observe
