// Package requestcheck checks requests before the API: it refuses those that browsers may not send, authenticates clients, and ends bodies
// that arrive too slowly.
//
// What. New wraps the API's handler; Keys is its Authenticator.
//
//	connection ─► request id ─► Host ─► Origin, Sec-Fetch-Site ─► body rate ─► pkg/api: token ─► Keys ─► scopes, routes
//
// A page in a browser can send requests to this machine, and its own host name can come to resolve to 127.0.0.1 (DNS rebinding). So over
// TCP the Host must be one that the server was configured with, localhost, or the very address that was connected to. A request from a page
// of another origin is refused unless that origin was allowed.
//
// A client on the unix socket is the server's own user or root, as the kernel reports, and needs no key. Over TCP a key is needed, unless
// the connection is loopback and there has been no key since the server started. A key that is given is always checked.
//
// Place in the flow. Between pkg/api/listen, which knows the listener of a request, and pkg/api. It imports pkg/api for the interface, and
// pkg/api/key.
//
// Lifecycle. Plain values; the caller closes the Ring.
//
// Concurrency. All values are safe for concurrent use.
//
// Limits. A request without Origin and Sec-Fetch-Site is treated as a program's: browsers send one or the other.
package requestcheck
