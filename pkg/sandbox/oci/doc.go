// Package oci is the backend that has its sandboxes built by an OCI runtime: runc, crun, youki, gVisor's runsc. It writes the bundle; the
// runtime sets up the isolation.
//
// Place in the flow. It implements sandbox.Backend on pkg/sandbox/internal/box, whose Kind and Container it gives. The root comes from
// pkg/sandbox/internal/rootfs, as the native backend's does; the first process of every container is our own init, in the shape it has
// where a runtime has built the file system (initproto.Setup.Housed), so that programs, terminals, signals and exits go the same way as
// with native. What runtimes differ in is one table, runtimes.
//
// Lifecycle. A sandbox is a scratch disk and a container per phase. The runtime stays in the foreground: it is the container's parent,
// and removes its own state. One that can wait is started before there is a bundle, which saves what it needs to get so far; the bundle
// is taken apart while the program runs. The init ends with its last program, or when its socket closes: so the container is gone with
// its supervisor, however that ends. Bundles, the runtime's state, roots and scratch lie on a file system in memory in the runtime
// namespace, a mount namespace that ends with this process. What can be left is cgroups, which Collect finds.
//
// Without root, mounts are made by a mount helper (pkg/sandbox/internal/rootless), and each container has a runtime helper: this program
// once more, root of a user namespace and first process of a pid namespace of its own, in which bundle, runtime and container are, and
// end.
//
// Concurrency. Safe for concurrent use. Lock order: Backend.mu, those of package box, container.opening, the mount helper's or a runtime
// helper's; the mount thread takes none.
//
// Limits. Of the runtimes, runc and runsc serve an ordinary user; runsc needs subordinate ids and delegated cgroups for that. What gVisor
// can not do is said in its Isolation.
//
// Init. The runtime's own exec is not used, except for terminals with runsc: a second process of a phase is a message to our init, as
// with native. The socket is a pair that the supervisor makes. runc, crun and youki pass descriptor 3 on (--preserve-fds). runsc passes
// on standard input only, and imports a Unix socket there. The kernel names the process at the other end (SO_PASSCRED): the init, or the
// sentry.
//
// Terminals with runsc. gVisor's kernel hands out no end of a terminal, but takes one of the host's from `runsc exec`. That starts our
// init's executable as a terminal relay. The relay connects to the container's init, gets the program as its child, and reports its end.
// `runsc exec` keeps running: it passes Ctrl-C and new sizes on. It has written its pid file before the program starts, and ends before
// the container.
//
// Volumes with runsc that lie in the root are mounts of the bundle: gVisor caches attributes of the root's files.
//
// Early start. runc is started before its bundle is made and blocks on a pipe in place of config.json: a link to a descriptor of the
// supervisor. The file replaces the link first, then its content is written to the pipe, so that early and late readers get the same. If
// the bundle can not be made, the runtime is killed; if the supervisor dies, the pipe ends, and the link leads nowhere. While runc starts,
// the supervisor moves it once into the cgroup that it is in: on v1 the first move of a process waits for all processors, and this wait
// then overlaps with the rest. A started container has copies of its mounts.
//
// Cgroups. With runc the program is in sandbox-run/<supervisor>/<n>, as with native, and the init is outside. On v1 the runtime gets a
// group sandbox-run-oci-<supervisor>-<n>. below the supervisor's own; hierarchies other than those that limit, and devices, are hidden
// from it. The runtime removes its groups, or Collect does. A thread that joins the program's group for a moment makes the cgroup
// namespace. runsc runs in the program's group as a whole, with --ignore-cgroups.
//
// Ids of an ordinary user, inside the container (initUser):
//
//	subordinate ids, none of the user's files shown   0 → own id, 1000 → subordinate   the init is 0 with six capabilities; the program
//	                                                                                   drops them and becomes 1000, as with native
//	volumes, a root of the user's own, or one id      0 → own id                       the init is 0 with SETFCAP; each program makes a user
//	                                                                                   namespace in which its id is 1000 (Exec.NewUserNS)
//	runsc                                             0 and 1000, one of them own      the init is 1000 without capabilities
//
// In the first two rows the init has the id that owns the cgroups, and joins them as that id. The runtime helper's cgroup mount is
// read-only, so that the runtime makes no groups.
//
// Verification. Namespaces, ids, capabilities, no_new_privs, filter and root are read from the host's /proc of the init, and from the
// init's own report. For gVisor: the kernel inside is not the host's, and the sentry is in the limited group. A control that is missing
// is absent, and the Manager refuses.
package oci
