// Package memory reads how much memory is left on the machine and in the cgroups of this process.
//
// What. [Read] returns the minimum of the kernel's estimate (MemAvailable) and of what each memory cgroup above this process
// still allows. It also returns how long tasks wait for memory (pressure stall information), where the kernel reports it.
//
// Place in the flow. A server reads it before it admits more work; the limits of sandboxes are separate.
//
// Lifecycle. None: every call reads files.
//
// Concurrency. Any.
//
// Limits. Pages of files that are not in use count as free in a cgroup, as they do in MemAvailable. Limits of cgroups outside
// of a container's cgroup namespace are visible only as far as the root of the namespace shows them.
package memory
