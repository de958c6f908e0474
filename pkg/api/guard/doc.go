// Package guard stands before the API: it refuses what browsers may not send, says whose a request is, and cuts off who is too slow.
//
// What. New wraps the API's handler; Keys is its Authenticator.
//
//	connection ─► request id ─► Host ─► Origin, Sec-Fetch-Site ─► body's pace ─► pkg/api: token ─► Keys ─► scopes, routes
//
// A page in a browser can make requests to this machine, and a name of its own can come to mean 127.0.0.1 (rebinding). So over TCP the Host must be one
// that the server was told, localhost or the very address that was connected to; and a request that says it comes from a page of another origin
// is refused unless that origin was allowed (A3).
//
// Who comes over the unix socket is the user the server belongs to, or root, as the kernel says; that needs no key. Over TCP a key is needed, unless
// it is loopback and there has never been a key while the server runs. A key that is given is always checked.
//
// Place in the flow. Between pkg/api/listen, which knows how a request came, and pkg/api; it imports pkg/api for the interface, and pkg/api/key.
//
// Lifecycle. Plain values; the Ring is its owner's to close.
//
// Concurrency. Everything may be used by many goroutines.
//
// Limits. A request without Origin and Sec-Fetch-Site is taken for that of a program: browsers send one or the other.
package guard
