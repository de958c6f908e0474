// Package files puts files into a scratch and takes them out again, past whatever a sandboxed program has left there.
//
// What. [Scratch.Put] and [Scratch.Take] are sandbox.Filer for a backend that can give a [Place]. On Linux that is a
// [Tree]: a directory whose entries are opened by openat2 beneath a descriptor, following no link and entering no mount
// (D5, F6). A file that is put is always a new one, so nothing is ever written through a link that was planted, hard or
// soft (F8); a file that is taken is a regular one, looked at after it was opened, which never waits (F7).
//
// Place in the flow. Between the backends and internal/linux. Whoever may not open the files of its sandboxes itself has
// an [Opener] in another process that hands it the descriptors; contents go from descriptor to descriptor in any case, and
// through nobody's memory where the kernel can copy them.
//
// Lifecycle. Nothing is kept between calls. A call that is cancelled closes what it has open, and returns.
//
// Concurrency. Calls may run side by side, and beside the programs of the sandbox. What these change meanwhile may be taken
// in its old form or its new one; a file that grows or shrinks while it is read is reported.
//
// Limits. Directories are walked without recursion, at most [MaxEntries] of their entries in all, and no path longer than
// the kernel's 4095 bytes (F14). What was not taken for any reason is listed, at most [MaxUntaken] of it.
package files
