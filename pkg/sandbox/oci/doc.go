// Package oci is the backend that has its sandboxes built by an OCI runtime: runc, crun, youki, gVisor's runsc. It writes the
// bundle; the runtime puts up the walls.
//
// Place in the flow. It implements sandbox.Backend. The root comes from pkg/sandbox/internal/rootfs, as the native backend's
// does; the first process of every container is our own init, in the shape it has where somebody else has built the world
// (initproto.Setup.Housed), so that programs, terminals, signals and exits go the same way as with native
// (pkg/sandbox/internal/launch). What runtimes differ in is one table, runtimes.
//
// Lifecycle. A sandbox is a scratch disk and a container per phase. The runtime stays in the foreground: it is the container's
// parent, and clears away its own state. One that can wait is started before there is a bundle, which saves what it needs to get so far;
// the bundle is taken apart while the program runs. The init ends with its last program, or when its socket closes: so the container is
// gone with its supervisor, however that ends. Bundles, the runtime's state, roots and scratch lie on a file system in memory
// in a mount namespace that ends with this process. What can be left is cgroups, which Collect finds.
//
// Without root, mounts are made by a steward (pkg/sandbox/internal/rootless), and each container has a lodge: this program once
// more, root of a user namespace and first process of a pid namespace of its own, in which bundle, runtime and container are, and end.
//
// Concurrency. Safe for concurrent use. Lock order: Backend.mu, instance.mu, phase.opening, the steward's or a lodge's; the bench's thread takes none.
//
// Limits. Of the runtimes, runc and runsc serve a plain user; runsc needs subordinate ids and delegated cgroups for that. What gVisor
// can not do is said in its Isolation.
package oci
