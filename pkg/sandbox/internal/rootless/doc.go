// Package rootless is what an ordinary user has in place of root: ids, and a process that mounts.
//
// Place in the flow. Between the backends that mount (pkg/sandbox/{native,oci}) and pkg/sandbox/internal/rootfs. [Look] says
// who we are; [Self.Identify] who a sandbox's root and user are outside; a [HelperProcess] makes the mounts that root makes in a thread of
// its own; [Self.Obstacle] explains why nothing of that can be had here, and what would change it.
//
// Lifecycle. A HelperProcess is this very program in another process, root of a user namespace of its own. It starts with
// StartHelperProcess, is replaced when it dies, and ends with its socket: with Close, or with the supervisor, however that ends.
//
// Concurrency. A Self does not change. A HelperProcess may be used from several goroutines and takes one order at a time.
//
// Limits. What only root can do (a disk of its own, ids of others, the host's root to be changed in a copy) a HelperProcess refuses
// by name. Mapping more than one's own id takes newuidmap and a line in /etc/subuid.
package rootless
