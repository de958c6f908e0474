// Package quota limits directory trees by project quotas.
//
// What. Files of one project id share a limit on bytes and on inodes that the kernel enforces. A directory with an id hands it down to
// everything that is made in it, and a file with another id can neither be linked nor renamed into it (EXDEV). Deleted files count as
// long as they are open. ext4 reports the limit as EDQUOT, XFS as ENOSPC.
//
// Place in the flow. pkg/workspace caps its directories by it. All functions take descriptors: no path is resolved here.
//
// Lifecycle. [Check] says whether a file system enforces limits. [SetProject] gives an id to a file or directory, [SetLimits] sets and
// drops the limits of an id; both survive the process. Neither the kernel nor this package records the owner of an id.
//
// Concurrency. There is no state; every call is one or two system calls.
//
// Limits. Linux 5.14 (quotactl_fd). Reading and setting limits takes CAP_SYS_ADMIN in the initial user namespace, changing an id the
// initial user namespace. On ext4 the limits do not bind processes with CAP_SYS_RESOURCE, and blocks that describe a file's extents
// are counted but never refused: a tree may exceed its limit by 1/340 of it. Only regular files and directories can get an id;
// symlinks and special files have the one of the directory in which they were made.
package quota
