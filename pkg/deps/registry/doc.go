// Package registry serves package registries to installations in sandboxes.
//
// What. A [Proxy] is an HTTP server on the host's loopback. An installing sandbox reaches it and nothing else: package network leads the name
// [deps.ProxyName] to its socket. The proxy forwards GET and HEAD requests to the hosts of one registry, over TLS, with the operator's
// certificates and credentials.
//
// Place in the flow. sandbox-rund links it; sandbox-run starts sandbox-rund for it, because net/http takes long to initialise.
//
//	pip, npm, go, cargo ─► http://PROXYNAME/TOKEN/SCHEME/HOST/PATH ─► sandbox-net ─► 127.0.0.1 ─► Proxy ─► SCHEME://HOST/PATH
//
// Lifecycle. Start listens; Close ends all requests. A Proxy serves one installation: its token is in no other sandbox.
//
// Concurrency. A Proxy serves any number of connections at once, and forwards at most maxForwarded requests.
//
// Limits. The token keeps other users of the host out: the socket is open to all of them. The proxy forwards to the registry's own hosts, and
// follows redirects only between them; unless the configuration names a host, its addresses must be ordinary ones. In documents (HTML and
// JSON), it replaces the addresses of those hosts by its own. It forwards no cookie and no credential of the sandbox's, and no header of an answer
// but those of contents and caches. Credentials go to the host of the index only.
package registry
