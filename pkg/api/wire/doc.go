// Package wire is what goes over the HTTP API, as data: requests, answers and messages, shared by the server and its clients.
//
// What. [Run] is the body of POST /v1/run: every field has the name of its flag. [Decode] reads an untrusted one and names each field
// that is wrong; [Run.Request] makes an executor.Request of it. [Problem] is every error (RFC 9457). [DecodeEvent] and [DecodeResult]
// read what the server sends: exactly what `--format ndjson` and `--json` print.
//
// Place in the flow. Between an entry point and the executor, on both sides:
//
//	pkg/client ── Run as JSON ──► pkg/api ── Run.Request ──► pkg/executor
//	           ◄── events, result, Problem ──
//
// Lifecycle. Plain values; nothing is opened and nothing is held.
//
// Concurrency. Functions without state. A Run may be read by many once it is made.
//
// Limits. It is thin: neither net/http nor anything heavy is linked (D10). What a request may ask for is for the server to decide; here
// it only has to make sense.
package wire
