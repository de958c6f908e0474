// Package helper is the first process of a container of the docker backend: it starts programs, transfers their input and output,
// counts what they use, reads and writes files for the backend, and ends with its standard input.
//
// What. A server for package containerproto on descriptors 0 and 1. An init per phase starts the programs, the same one that native
// sandboxes have (internal/linux/initproc), in a user, network and IPC namespace within the container's own. So programs
// have ids of their own, no loopback unless it is asked for, and our exact system-call filter, whatever the daemon's
// profile is.
//
//	daemon's shim ── stdin, stdout ──► helper (pid 1, root of the container with three capabilities)
//	                                     │ socket
//	                                     ├─► init of phase "run"  (root of an inner user namespace, undumpable)
//	                                     │      └─► program (uid 1000, no capabilities, filtered) and its descendants
//	                                     └─► init of phase …
//
// Place in the flow. Linked by cmd/sandbox-helper, which the backend puts into a volume of the daemon. It imports the packages with
// which the native backend starts programs, and package files for the scratch.
//
// Lifecycle. Main serves from setup to the end of its input. Then it exits, and the kernel ends the container's pid namespace with
// it: so a container ends with its supervisor.
//
// Concurrency. One goroutine reads requests, each is served by its own. mu guards phases and is held while an init is started
// or all processes are killed, so that these two exclude each other.
//
// Limits. Phases share the container's pid namespace and its cgroup: while two of them run, counters include both. Where the
// container shows no cgroup, counters stay zero and the backend asks the daemon.
package helper
