// Package native is the default backend: Linux namespaces, cgroups, seccomp and Landlock, driven
// directly. No daemon, no images, nothing to install.
//
// Place in the flow. It implements sandbox.Backend on pkg/sandbox/internal/box, whose Kind it gives: it clones inits
// (internal/linux/spawn) and has them build their file systems.
//
// Root's mounts are made by a thread, those of an ordinary user by a mount helper (pkg/sandbox/internal/rootless): this program once more
// in a user namespace, which also opens files in them. All else is the same for both.
//
// Lifecycle. New registers nothing; the first Create registers this supervisor and collects what dead
// ones left. A sandbox is a scratch disk and up to one init per phase; Create starts the init of
// the first phase, with its root built, so that Start only has to fork. A phase ends with its last
// process: the init exits, the kernel kills all that is left in its pid namespace, the cgroup is
// removed.
//
// Concurrency. Backend and instances may be used from any number of goroutines. Lock order: Backend.mu, initStarter.mu, those of package
// box; the mount thread takes none.
//
// Limits. cgroup v1, v2 or both; where an ordinary user has none, limits are polled (tier namespace). The files of the host that are shown
// inside are shared and read-only: two sandboxes that lock the same file of /usr can notice each other.
package native
