// Package listen opens the listeners of a server: unix sockets, TCP addresses, and sockets that systemd passes.
//
// What. Parse reads an address, Open binds all of them, and every accepted connection knows how it arrived: over which kind of listener,
// and on a unix socket from which user, as the kernel reports.
//
//	unix:///path/server.sock   0600, in a directory that only this user can write to; accepts this user and root
//	127.0.0.1:8080             loopback: every process of this machine can connect
//	0.0.0.0:443, host:443      exposed: the caller must have keys, and TLS unless plain HTTP is requested by name
//	LISTEN_FDS                 sockets of systemd; checked by the address that they are bound to
//
//	server.sock        the socket                        ┐ both are removed when the listener is closed; after SIGKILL
//	server.sock.lock   locked while a server lives; has  ┘ the lock is free, and the next server takes the socket over
//	                   its pid
//
// Place in the flow. `sandbox-run serve` opens listeners and passes them to net/http; pkg/api/requestcheck reads Via from a request's
// context. The package imports internal/userdir, internal/peer and the errors of pkg/sandbox.
//
// Lifecycle. Open returns a Set, which the caller closes; closing ends Accept and removes sockets and locks. A Notifier belongs to the
// process. Certificates are read when they are opened, and again when their files change.
//
// Concurrency. All values are safe for concurrent use.
//
// Limits. Linux and macOS; the kernel's peer credentials identify users. The package does not handle HTTP.
//
// The process that has the lock may remove a socket on which no server answers. The lock's file is removed while it is locked; a process
// that opened it before finds that the name is another file's, and starts again. fchmod before bind sets the socket's mode, so that the
// umask never decides.
package listen
