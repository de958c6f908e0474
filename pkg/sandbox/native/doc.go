// Package native is the default backend: Linux namespaces, cgroups, seccomp and Landlock, driven
// directly. No daemon, no images, nothing to install.
//
// Place in the flow. It implements sandbox.Backend on top of internal/linux: supervisor (our claim
// on the machine), spawn (the init), scratch and idmap (mounts), cgroup and seccomp.
//
// Whoever may mount has a bench for it; an ordinary user has a steward (pkg/sandbox/internal/rootless), this program once more in a user
// namespace, who makes the same mounts to order and opens files in them. All else is the same for both.
//
// Lifecycle. New claims nothing; the first Create registers this supervisor and collects what dead
// ones left. A sandbox is a scratch disk and up to one init per phase; Create starts the init of
// the first phase, with its root built, so that Start only has to fork. A phase ends with its last
// process: the init exits, the kernel kills all that is left in its pid namespace, the cgroup is
// removed.
//
// Concurrency. Backend and instances may be used from any number of goroutines. Lock order:
// Backend.mu, instance.mu; the keeper's thread takes neither. Files are carried with none of them held: each one that is
// opened takes the scratch's own lock, then the steward's, and what is read or written afterwards takes no lock at all.
//
// Limits. cgroup v1, v2 or both; where an ordinary user has none, limits are kept by looking (tier namespace). The files of the host that are shown inside are
// shared and read-only: two sandboxes that lock the same file of /usr can notice each other.
package native
