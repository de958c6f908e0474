// Package oci is the backend that has its sandboxes built by an OCI runtime: runc, crun, youki, gVisor's runsc. It writes the
// bundle; the runtime sets up the isolation.
//
// Place in the flow. It implements sandbox.Backend on pkg/sandbox/internal/box, whose Kind and Container it gives. The root comes from
// pkg/sandbox/internal/rootfs, as the native backend's does; the first process of every container is our own init, in the shape it has
// where a runtime has built the file system (initproto.Setup.Housed), so that programs, terminals, signals and exits go the same way as
// with native. What runtimes differ in is one table, runtimes.
//
// Lifecycle. A sandbox is a scratch disk and a container per phase. The runtime stays in the foreground: it is the container's
// parent, and removes its own state. One that can wait is started before there is a bundle, which saves what it needs to get so far;
// the bundle is taken apart while the program runs. The init ends with its last program, or when its socket closes: so the container is
// gone with its supervisor, however that ends. Bundles, the runtime's state, roots and scratch lie on a file system in memory
// in the runtime namespace, a mount namespace that ends with this process. What can be left is cgroups, which Collect finds.
//
// Without root, mounts are made by a mount helper (pkg/sandbox/internal/rootless), and each container has a runtime helper: this program
// once more, root of a user namespace and first process of a pid namespace of its own, in which bundle, runtime and container are, and end.
//
// Concurrency. Safe for concurrent use. Lock order: Backend.mu, those of package box, container.opening, the mount helper's or a runtime
// helper's; the mount thread takes none.
//
// Limits. Of the runtimes, runc and runsc serve an ordinary user; runsc needs subordinate ids and delegated cgroups for that. What gVisor
// can not do is said in its Isolation.
package oci
