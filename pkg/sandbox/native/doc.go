// Package native is the default backend: Linux namespaces, cgroups, seccomp and Landlock, driven directly. No daemon, no images, nothing
// to install.
//
// Place in the flow. It implements sandbox.Backend on pkg/sandbox/internal/box, whose Kind it gives: it clones inits
// (internal/linux/spawn) and has them build their file systems.
//
// Root's mounts are made by a thread, those of an ordinary user by a mount helper (pkg/sandbox/internal/rootless): this program once more
// in a user namespace, which also opens files in them. All else is the same for both.
//
// Lifecycle. New registers nothing; the first Create registers this supervisor and collects what dead ones left. A sandbox is a scratch
// disk and up to one init per phase; Create starts the init of the first phase, with its root built, so that Start only has to fork. A
// phase ends with its last process: the init exits, the kernel kills all that is left in its pid namespace, the cgroup is removed.
//
// Concurrency. Backend and instances may be used from any number of goroutines. Lock order: Backend.mu, initStarter.mu, those of package
// box; the mount thread takes none.
//
// Limits. cgroup v1, v2 or both; where an ordinary user has none, limits are polled (tier namespace). The files of the host that are
// shown inside are shared and read-only: two sandboxes that lock the same file of /usr can notice each other.
//
// Spare inits. The start of a process is most of the time that a sandbox takes. A backend that has made a second sandbox keeps one spare
// init: cloned, with id maps and a phase cgroup, without root, scratch and program. The next Create takes it, and another is started
// while that sandbox's program runs. A spare init that died is replaced during setup. It has the default ids; specs with others start
// their own.
//
// Options.Eager starts the first init and a scratch of the default size before the first Create: commands open the backend while the
// command line is parsed (app.OpenEarly). Close drops them if they are not used. With Eager, the next spare init is started at the end of
// a sandbox, not while its program runs; servers use it too.
//
// Zygotes. As root the backend is a sandbox.Forker (zygote_linux.go, pkg/sandbox/internal/zygote).
package native
