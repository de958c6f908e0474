// Package idmap opens a directory or file of the host as a mount that a sandbox may be given.
//
// What. [Open] clones the mount tree at a path into a descriptor that is attached nowhere, makes it read-only unless asked
// otherwise, never lets set-uid bits and device nodes through, cuts it off from later mounts on the host and, with a
// [Mapping], shows the files of one owner as the sandbox's own: what the sandbox writes belongs to that owner on the host.
//
// Place in the flow. The native backend opens one per volume, and the root with its libraries, and hands the descriptor to
// the sandbox's init (initproto.Volume), which attaches it. Whether a path may be given at all (D12) is decided above;
// whether it is what it seems to be, here. Nothing of ours is imported.
//
// Lifecycle. The caller owns the file and closes it when the init has it. The user namespaces that carry mappings are made
// by a child that never runs an instruction of its program, kept for reuse, and gone with the process.
//
// Concurrency. Open may be called from any goroutine; one lock orders the making of user namespaces. No goroutine stays.
//
// Limits. As root. A path with a symlink anywhere in it is refused, not resolved (F10), as is anything but directories and
// regular files; neither is ever opened for reading, so nothing blocks, but for a dead network file system. Mounts below
// the source come along, as with `docker -v`, each of them with the same flags and mapping: if one can't have them, none is
// given. Not every file system takes a mapping: [ErrUnsupported]. Files of other owners than the mapped one are shown as
// nobody's, readable by what they grant to others, and can not be written even where everybody may. A host with
// kernel.yama.ptrace_scope=3 can't make mappings.
package idmap
