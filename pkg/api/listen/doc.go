// Package listen opens what a server is reached through: unix sockets, TCP addresses, and sockets that systemd hands over.
//
// What. Parse reads an address, Open binds all of them, and every connection that comes out says how it came: over which kind of
// socket, and on a unix socket from which user, as the kernel has it.
//
//	unix:///path/server.sock   0600, in a directory that is this user's alone; only this user and root are let in
//	127.0.0.1:8080             loopback: any process of this machine can connect
//	0.0.0.0:443, host:443      exposed: whoever opens it must have keys, and TLS unless plain HTTP is asked for by name
//	LISTEN_FDS                 what systemd holds; judged by what it is bound to
//
//	server.sock        the socket                        ┐ both go when the listener is closed; after SIGKILL the lock
//	server.sock.lock   locked while a server lives, with ┘ is free, and the next server takes the socket over
//	                   its pid in it
//
// Place in the flow. `sandbox-run serve` opens listeners and hands them to net/http; pkg/api/requestcheck asks a request's context for Via.
// It imports internal/userdir and nothing else of ours but the errors of pkg/sandbox.
//
// Lifecycle. Open gives a Set, which its caller closes; closing ends Accept and removes sockets and locks. A Notifier is of the
// process. Certificates are read when they are opened, and again when their files change.
//
// Concurrency. Everything may be used by many goroutines.
//
// Limits. Linux and macOS; peers are known by SO_PEERCRED or what macOS has for it. HTTP is not spoken here.
package listen
