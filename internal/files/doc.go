// Package files copies files into a scratch and out of it, safely against what a program has left there.
//
// What. [Scratch.Put] and [Scratch.Take] are sandbox.Filer for a backend that has a [Place]. On Linux that is a [Tree]: a directory whose
// entries are opened by openat2 beneath a descriptor, following no link and entering no mount (D5, F6). Put always makes a new file, so
// nothing is ever written through a planted link, hard or soft (F8), nor through a link that Put itself has made; Take returns regular
// files only, checks that after opening, and never waits (F7).
//
// Place in the flow. Between the backends and internal/linux. A supervisor that may not open the files of its sandboxes itself has an
// [Opener] in another process that sends it the descriptors; contents go from descriptor to descriptor, within the kernel where it can
// copy them.
//
// Lifecycle. Nothing is kept between calls. A cancelled call closes what it has open, and returns.
//
// Concurrency. Calls may run side by side, and beside the programs of the sandbox. A file that a program changes meanwhile is taken in
// its old form or its new one; a file that grows or shrinks while it is read is reported.
//
// Limits. Directories are walked without recursion, at most [MaxEntries] of their entries in all, and no path longer than the kernel's
// 4095 bytes (F14). Files that are not taken are listed with the reason, at most [MaxUntaken] of them.
//
// Neither call needs an init: the descriptor of the scratch serves as long as the scratch exists. Half a file is removed again. Owner and
// mode are set by descriptor. Take opens without waiting (a FIFO, a lease) and copies a file at the length it had when it was opened.
// Contents never pass through a mount helper. Files that are put count against the disk limit; their pages are charged to the supervisor.
// Volumes are not part of the scratch: a path in one is refused by Put, and listed by Take. Deleting the sandbox ends a copy that is
// under way.
package files
