// Package delegate gets an ordinary user a cgroup of its own from systemd.
//
// What. [Obtain] asks the user's service manager (systemd --user), over D-Bus, for a transient scope with the calling
// process in it and the controllers cpu, memory and pids delegated to it. Below such a scope the user may make groups and
// limit them as root can; without one, a process of a login session can not, since the groups above it are root's.
// The D-Bus client is our own and not godbus/dbus for three reasons: it is one method call with fixed types, where the
// library links reflection over every Go type, a lookup of users and a launcher of bus daemons into the thin binary; the
// library starts goroutines, which here would be alive when the sandbox is started; and every step has to end in time.
//
// Place in the flow. A command that runs sandboxes passes Obtain to cgroup.Open, which calls it only where nothing is
// delegated yet; package cgroup does the rest (moving to a leaf of the scope, making groups beside it). A library does not
// pass it, because it moves the calling process to another cgroup. The package imports nothing of ours.
//
//	cgroup.Open(cgroup.Options{MoveToLeaf: true, Ask: func() error { return delegate.Obtain(ctx) }})
//
// Lifecycle.
//
//	connect ─► AUTH EXTERNAL ─► [Hello, AddMatch] StartTransientUnit ─► job done, or /proc/self/cgroup names the scope ─► close
//
// The scope ends by itself: systemd removes it, with all groups below, when its last process has ended. Nothing has to be
// undone.
//
// Concurrency. A call is one socket and one goroutine, the caller's. Call it before the process starts others: those it has
// started already stay where they are, and can not be moved into the scope later.
//
// Limits. Pure cgroup v2 only: on v1 systemd delegates nothing to users. Two seconds at most. After a timeout the
// manager may still carry out the request; /proc/self/cgroup shows it.
package delegate
