// Package registry says which supervisors live, so that what the dead ones left can be removed (D4, W6).
//
// What. Each supervisor holds a slot, a number below [Slots], as a file in a directory they share, and a lock on that file
// for as long as it lives. The kernel drops the lock when the process is gone, however it went; no process id is ever
// looked at. The file holds a record, opaque here: where its cgroups and directories are.
//
// Place in the flow. The native backend registers at start-up, names its cgroups after [Entry.Name], and asks [Dead] for
// what to collect; `sandbox-run gc` does only the latter. Nothing of ours is imported.
//
// Lifecycle. A file reaches its slot's name locked and whole, and never replaces another:
//
//	create .new-<random> ─► flock ─► is it still linked? ─► write record ─► rename to s<slot>, unless that exists
//	                           Close: unlink ─► unlock            killed: the lock goes, the file stays
//	Dead: open ─► flock, don't wait ─► is it still that name's file? ─► record ─► Remove: unlink ─► unlock
//	                                                                              Release: unlock
//
// So a slot is not given away before what its last holder left has been collected. An unlocked .new- file is of a process
// that died (or is to lose: it then finds its file unlinked, and takes another), and Dead removes it on the way.
//
// Concurrency. Everything may be called by any number of processes and goroutines at once. Of several collectors each
// leftover goes to one; a collector that dies leaves it to the next. Entry and Leftover are safe for concurrent use.
//
// Limits. The lock is on the open file: a child that is forked and does not exec keeps its dead parent alive, here. The
// directory needs a file system with flock and RENAME_NOREPLACE, local to the machine: /run is best, since after a reboot
// there is nothing to collect. Records are not synced; after a power cut they may come back empty.
package registry
