// Package idmap opens a directory or file of the host as a mount for a sandbox.
//
// What. [Open] clones the mount tree at a path into a detached mount, makes it read-only unless asked
// otherwise, never lets set-uid bits and device nodes through, and cuts it off from later mounts on the host. With a
// [Mapping] it shows the files of one owner as the sandbox's own: files that the sandbox writes belong to that owner on the
// host.
//
// Place in the flow. The native backend opens one per volume, and the root with its libraries, and hands the descriptor to
// the sandbox's init (initproto.Volume), which attaches it. Callers decide whether a path may be given at all (D12);
// this package checks what kind of file it is. The package imports nothing of ours.
//
// Lifecycle. The caller owns the file and closes it when the init has it. User namespaces hold the mappings. A child
// that never executes an instruction of its program makes them; they are kept for reuse and end with the process.
//
// Concurrency. Open may be called from any goroutine; one lock orders the making of user namespaces. No goroutine stays.
//
// Limits. Open needs root. A path with a symlink anywhere in it is refused, not resolved (F10), as is anything but
// directories and regular files; neither is ever opened for reading, so nothing blocks, but for a dead network file system.
// Mounts below the source are cloned with it, as with `docker -v`, each with the same flags and mapping: if one can not have
// them, Open fails. Not every file system takes a mapping: [ErrUnsupported]. Files of other owners than the mapped one have
// the overflow id; they are readable by the permissions for others, and never writable. A host with
// kernel.yama.ptrace_scope=3 can not make mappings.
package idmap
