// Package client talks to a running sandbox-run server.
//
// What. A [Client] has a method for each thing that the HTTP API offers: [Client.Run], [Client.Stream] and [Client.Open] run a program and
// wait for it; [Client.Start] only has it accepted, and [Client.Get], [Client.Events], [Client.Attach] and [Client.Cancel] are about such a
// run; [Client.Batch], [Client.Upload], [Client.Download], [Client.Languages], [Client.Health] and [Client.Version] do what they are called. What
// comes back is what the engine itself returns: executor.Result and executor.Event. A refusal of the server's is a [Problem], which is also the
// error that the engine would have returned.
//
// Place in the flow. The command line uses it for --server, and so can any program:
//
//	internal/cli, library user ── wire.Run ──► Client ──► Transport: Unix (here), or web.Transport (net/http) ──► pkg/api
//
// HTTP/1.1 and WebSocket over a unix socket are written by hand, because the thin executable links this package (D10); package web is for
// those who want URLs, TLS and keys.
//
// Lifecycle. New makes a client over a transport, and whoever made the transport closes it. Running and Session are closed by whoever
// opened them; twice is fine. A run that was opened or streamed ends when nobody listens any more; one that was started does not.
//
// Concurrency. A Client may be used by any number of goroutines. Running and Session are for one that reads; everything else of them may be
// called meanwhile by others.
//
// Limits. One document or message has at most 256 MiB, headers 64 KiB. What a server sends is a stranger's: whoever shows it to a person
// escapes it first.
package client
