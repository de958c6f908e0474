// Package census counts what the processes of a pid namespace use, by looking at each of them: for sandboxes without delegated cgroups.
//
// Place in the flow. The native backend opens one per phase, on the /proc, the /dev/shm and the socket that the phase's init has handed
// out, and polls it.
//
// Lifecycle. Open takes over what it is given; Close lets go of it. A census of a namespace that has ended counts nothing.
//
// Concurrency. A Census may be used from several goroutines.
//
// Limits. It sees what belongs to a process, to /dev/shm or to a socket. Buffers of pipes and memory files without a mapping belong to no
// process; so a sandbox that is counted this way is refused memory files. A count takes some 20 µs per process, and what is used and
// given back between two counts is not seen.
package census
