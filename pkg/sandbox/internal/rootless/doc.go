// Package rootless is what an ordinary user has in place of root: ids, and a process that mounts.
//
// Place in the flow. Between the backends that mount (pkg/sandbox/{native,oci}) and pkg/sandbox/internal/rootfs. [Look] says which user
// this is; [Self.Identify] which ids a sandbox's root and user have outside; a [HelperProcess] makes the mounts that root makes in a
// thread of its own; [Self.Obstacle] explains why nothing of that can be had here, and what would change it.
//
// Lifecycle. A HelperProcess is this very program in another process, root of a user namespace of its own. It starts with
// StartHelperProcess, is replaced when it dies, and ends with its socket: with Close, or with the supervisor, however that ends.
//
// Concurrency. A Self does not change. A HelperProcess may be used from several goroutines and takes one order at a time.
//
// Limits. What only root can do (a disk of its own, ids of others, the host's root to be changed in a copy) a HelperProcess refuses by
// name. Mapping more than one's own id takes newuidmap and a line in /etc/subuid. A HelperProcess shows the host's devices, checked by
// number; it maps no ids (volumes are used with the user's own rights), and its scratch is memory.
//
// Ids outside, by [Self.Identify]:
//
//	subordinate ids, no volumes                       root is the user                       the user is a subordinate id
//	subordinate ids, volumes or a root of the user's  root is an unused subordinate id       the user is the user
//	no subordinate ids                                no root                                the user is the user
//
// In the last two rows the init has the user's id, because the cgroup files are the user's, and differs from the program by capabilities
// only. The kernel counts inotify and others per user: the init sets lower limits for its user namespace (/proc/sys/user).
//
// A HelperProcess never runs foreign code. The supervisor clones the inits, into user namespaces beside the helper's; they move the
// helper's detached mounts into their own mount namespaces.
package rootless
