// Package memory says how much memory is left before something has to give.
//
// What. [Read] takes the least of what the kernel could give out (MemAvailable) and of what each memory cgroup above this process still allows, and how
// long tasks of the machine wait for memory (pressure stall information), where the kernel tells.
//
// Place in the flow. A server looks here before it lets more in; sandboxes have limits of their own, which are not its business.
//
// Lifecycle. None: every call reads files.
//
// Concurrency. Any.
//
// Limits. Pages of files that are not in use count as free in a cgroup, as they do in MemAvailable. Limits of cgroups that this process can not see, from
// inside of a container's cgroup namespace, are those of its root as far as the kernel shows them.
package memory
