// Package client is the Go client of a running sandbox-run server.
//
// What. A [Client] has a method for each operation of the HTTP API: [Client.Run], [Client.Stream] and [Client.Open] run a program and wait
// for it; [Client.Start] submits one, and [Client.Get], [Client.Events], [Client.Attach] and [Client.Cancel] refer to such a run;
// [Client.OpenInteractive], [Client.Batch], [Client.Upload], [Client.Download], [Client.Languages], [Client.Health] and [Client.Version] do
// what their names say. Results and events are the types of the executor: executor.Result and executor.Event. A refusal by the server is a
// [Problem], which is also the error that the executor itself would have returned.
//
// Place in the flow. The command line uses it for --server, and so can any program:
//
//	internal/cli, library user ── wire.Run ──► Client ──► Transport: Unix (here), or web.Transport (net/http) ──► pkg/api
//
// HTTP/1.1 and WebSocket over a unix socket are written by hand, because the thin executable links this package; net/http would slow down
// every start. Package web adds URLs, TLS and keys.
//
// Lifecycle. New makes a client over a transport, which the caller closes. The caller also closes a Running or Connection that it opened;
// closing twice is allowed. A run that was opened or streamed ends when its reader is gone; one that was started does not.
//
// Concurrency. Any number of goroutines may use a Client. One goroutine reads from a Running or Connection; others may call the remaining
// methods meanwhile.
//
// Limits. One document or message has at most 256 MiB, headers 64 KiB. The client does not trust the server's text: callers escape it
// before they print it on a terminal.
package client
