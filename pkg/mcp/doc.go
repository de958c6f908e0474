// Package mcp serves the HTTP API to agents over the Model Context Protocol: as tools with typed arguments and answers written for a model,
// and as resources.
//
// What. New makes a [Server] over the handler of an API. [Server.ServeHTTP] is the streamable HTTP transport, for the route /mcp; [Mount] adds
// it to an API server. [Server.ServeStream] serves one client over a pair of streams, such as standard input and output.
//
// Place in the flow. An entry point without logic: every tool is one or a few requests of package client, which reach the API's own handler
// in this process. Keys, ceilings, admission, receipts, metrics and the audit log are therefore those of the API.
//
//	client ─► go-sdk ─► tool ─► client.Client ─► inProcess ─► api.Server.HandlerOf(principal)
//	                      └◄── render: diagnosis, head and tail of the output, violations
//
// Lifecycle. A Server needs no closing: a call ends with its request. ServeStream returns at the end of its input; the caller then closes the
// API, which ends runs and sessions that are left.
//
// Concurrency. All methods are safe for concurrent use. The HTTP transport keeps nothing between two requests.
//
// Cancellation. A run ends if its call does: by notifications/cancelled over streams, by the end of the HTTP request in every revision of the
// protocol, and by the tool cancel_run. A run with wait: false, and a session, are not bound to a call.
//
// Limits. Text for a model is shortened: get_output and the resources have the rest, as far as the API keeps it. Control characters of
// programs are escaped in all text.
package mcp
