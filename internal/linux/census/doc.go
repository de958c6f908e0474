// Package census counts what the processes of a pid namespace use, by looking at each of them: for sandboxes
// without a delegated cgroup.
//
// Place in the flow. The native backend opens one per phase, on the /proc, the /dev/shm and the socket that the phase's
// init has handed out, and polls it.
//
// Lifecycle. Open takes over what it is given; Close lets go of it. A census of a namespace that has ended counts
// nothing.
//
// Concurrency. A Census may be used from several goroutines.
//
// Limits. It sees what belongs to a process, to /dev/shm or to a socket. Buffers of pipes belong to no process; memory files
// that no process maps do not either, which is why a sandbox that is counted this way is refused them. A count takes some
// 20 µs per process, and what is used and given back between two counts is not seen.
package census
