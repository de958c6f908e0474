// Package scratch makes the writable disk of one sandbox: /workspace, /tmp and $HOME together.
//
// What. A [Scratch] is a mount, held by a descriptor and attached nowhere on the host, with a limit on bytes and one on
// inodes that the kernel enforces: the program that touches them gets ENOSPC. [Memory] makes it of tmpfs, whose pages count
// against the memory limit of whoever writes them. [Disk] makes it independent of memory, as root: an unnamed sparse file,
// filled from a preformatted template, a loop device over it, an ext4 on that.
//
// Place in the flow. The native backend makes one per sandbox, puts directories into it with [Scratch.Mkdir], hands
// [Scratch.File] to the sandbox's init (initproto.Setup.Scratch), which attaches it inside; asks [Scratch.Usage] at the end
// for the verdict disk_limit; closes it last. doctor asks [DiskAvailable]. Nothing of ours is imported.
//
// Lifecycle.
//
//	template (once per size, kept in the cache directory) ─► unnamed file ─► loop device ─► mount ─► Close
//
// Every arrow is undone by the kernel when the last holder of the thing on its right is gone: the file has no name, the
// device has LO_FLAGS_AUTOCLEAR, the mount is a descriptor. A supervisor that dies by SIGKILL at any instant leaves nothing
// (W6), and there is no tree to walk, however deep it is (F14). Close throws away what is on the disk, without writing it
// back first, and returns when space and device are free; while another process has the mount it says [ErrHeld].
//
// Concurrency. Everything may be called from any goroutine, and from any number of processes on one cache directory. Locks,
// in order: Scratch.mu, the list of cache directories, one cache directory's templates, the search for a free loop device.
// Templates appear under their name only when whole, carry a checksum and are remade when it fails. No goroutine is started.
//
// Limits. A disk takes from the host only what was written to it: when the host's own disk is full before
// the limit is reached, an fsync inside fails with ENOSPC or EIO, and data that nobody syncs is lost as with any page cache. Up to 1 % more bytes than asked for
// are given, and inodes are rounded up to whole blocks of 16 per block group of 128 MiB. All disks of one size have the same
// UUID. What the kernel writes for the loop device is accounted to the writer's memory cgroup, not to its CPU quota. A host
// with udev may open new loop devices to look at them, and so delay Close a little. Loop device nodes that the kernel made
// for a burst of disks stay in /dev, unbound.
package scratch
