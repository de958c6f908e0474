// Package rootfs puts the root of a sandbox together: from paths of the host or from a directory with a whole one, with
// what is added to it, a /dev of its own, and the places where a scratch and volumes are mounted.
//
// Place in the flow. Between the backends that mount (pkg/sandbox/{native,oci}) and the kernel. It speaks of a
// sandbox.Spec, and hands out mounts.
//
// Lifecycle. A MountHelper is a thread in a mount namespace of its own. It keeps the roots it has made, up to a bound; all of it
// is gone with Close, or with the process, however that ends.
//
// Concurrency. A MountHelper may be used from several goroutines; its thread does one thing at a time.
//
// Limits. It needs the mount calls of Linux 5.12. Nothing that it is given a path of is followed through a symbolic link.
package rootfs
