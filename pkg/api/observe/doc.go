// Package observe is how a server's operator sees what it does: metrics, logs, traces, the audit log and signed receipts.
//
// What. New makes an [Observation], which is the api.Observer and the api.Receipts of a server. Mount adds /metrics and
// /v1/receipt-key; Access stands before everything else and writes the access log.
//
//	             ┌─ metrics  counters and histograms in a registry of its own; /metrics
//	api.Observer ┼─ logs     one line per run, one per request
//	             ├─ auditor  refusals, the server's start and stop; runs are written by pkg/executor, which knows more
//	             └─ tracer   spans, sent where the OTEL_* variables say
//
// Place in the flow. Beside pkg/api, which knows it by its interfaces only; linked by sandbox-rund alone (D10).
//
// Lifecycle. New, Begin when the server takes requests, Close when it no longer does: what was gathered is written, and the spans
// that wait are sent within the bound of Close's context. Close may be called twice.
//
// Concurrency. Everything may be called from any number of goroutines. No call waits for a disk or the network, but for
// Begin, Close and Receipt.
//
// Limits. Labels come from closed sets: what is not in them is "other", so that no client can make series (see labels.go).
// Neither code, input, output, variables, arguments nor keys are ever logged, counted or traced; names of keys are their ids.
// Refusals of one key for one reason within a second are one entry of the audit log, with a count: who is refused a thousand
// times a second can not fill the disk.
package observe
