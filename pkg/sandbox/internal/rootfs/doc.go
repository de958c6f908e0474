// Package rootfs makes the roots of sandboxes: the read-only file system, its /dev, and the places where scratch and volumes are mounted.
//
// Place in the flow. Between the backends that mount (pkg/sandbox/{native,oci}) and the kernel. A [MountHelper] takes a sandbox.Spec and
// returns detached mounts. The init attaches them, pivots, and adds the mounts of its own namespaces.
//
// Lifecycle. A MountHelper is a thread in a mount namespace of its own (the mount thread). It makes one root per distinct spec, keeps up
// to 64 of them, and copies one per sandbox with a single system call. Close ends the thread, and the namespace with all roots in it; so
// does the end of the process. The host's mount table shows none of it. The thread is needed because the kernel clones mount trees
// (open_tree) only from the caller's own mount namespace.
//
// Concurrency. A MountHelper may be used from several goroutines; its thread does one thing at a time.
//
// Limits. It needs the mount calls of Linux 5.12. No symbolic link is followed in a source or in a target (openat2 with
// RESOLVE_NO_SYMLINKS). A given root is refused where /proc, /dev, /sys, /tmp, /workspace, /home/sandbox or a volume's target is, or lies
// behind, a symbolic link. In an image, the skeleton covers such links where the scratch is mounted.
//
// The mounts of a default sandbox, all with nosuid; nodev except for /dev and /dev/pts:
//
//	/                              the root skeleton, a tmpfs                     ro           supervisor
//	/usr, /bin /sbin /lib…         host, cloned mount tree; links as links        ro           supervisor
//	/etc/alternatives, ssl/certs   host                                           ro           supervisor
//	/etc/passwd, group, hosts …    written for this spec, in the skeleton         ro           supervisor
//	/etc/ld.so.cache, localtime …  copies of at most 4 MiB, in the skeleton       ro           supervisor
//	/dev                           tmpfs with null zero full random urandom tty   ro, noexec   supervisor
//	what Root.Add names            host, cloned mount tree, owners as they are    ro           supervisor
//	/dev/shm                       tmpfs, half the memory limit                   rw, noexec   init
//	/dev/pts                       a devpts of its own, 64 terminals              rw, noexec   init
//	/proc                          a procfs of its own, hidepid=invisible         noexec       init
//	masks of /proc                 /dev/null, or an empty directory; /proc/sys    ro           init
//	/sys                           an empty directory of the skeleton             ro           supervisor
//	/workspace, /tmp, $HOME        three directories of the scratch               rw           init
//	volumes                        host, id-mapped (internal/linux/idmap)         ro or rw     init
//
// Masks. [FindMasks] lists the files of /proc that exist on this kernel and are open to every user. Each mask is a mount that every
// sandbox pays for. Files that only root can read need none: the ids of a program are no user's on the host.
//
// There is no sysfs. Programs read CPU counts from sched_getaffinity and /proc, and see the machine's cores, not the quota.
//
// Skeleton. It is filled through its descriptor before it is mounted, and made read-only before a sandbox sees it.
//
// Whole roots (Root.Dir). A read-only overlay with the skeleton above the directory, so that all mount points exist. /etc is the
// directory's own, except for hosts, hostname, resolv.conf, and its passwd and group with the sandbox's user added (package etc). Where
// /etc is no directory, or one of the two files is not regular, they stay as they are. The directory must not change while sandboxes use
// it.
//
// Added paths (Root.Add). Part of the root: mounted once, without cost per sandbox, read-only even in a writable root. Outer paths are
// mounted before inner ones. Below a directory of the host the target must exist; elsewhere it is made. The key of a kept root includes
// the identity of each source, so a source that was replaced under its name leads to a new root.
//
// Writable roots. An overlay with the image below, the skeleton above it, and an upper layer in the scratch (.root), so that changes
// count against the disk limit and are removed with the scratch. The image's files are id-mapped from root to the sandbox's user;
// otherwise the kernel would refuse changes to them. The mapping makes files of mode 0600 readable, so only images can have a writable
// root. An ordinary user's mount helper maps nothing, and accepts that user's own directory too. One writable root serves all phases of a
// sandbox.
package rootfs
