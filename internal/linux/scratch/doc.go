// Package scratch makes the writable disk of one sandbox: /workspace, /tmp and $HOME together.
//
// What. A [Scratch] is a mount, held by a descriptor and attached nowhere on the host, with a limit on bytes and one on inodes that the
// kernel enforces: the program that touches them gets ENOSPC. [Memory] makes it of tmpfs, whose pages count against the memory limit of
// the process that writes them. [Disk] makes it independent of memory, as root: an unnamed sparse file, filled from a preformatted
// template, a loop device over it, an ext4 on that.
//
// Place in the flow. The native backend makes one per sandbox, puts directories into it with [Scratch.Mkdir], hands [Scratch.File] to the
// sandbox's init (initproto.Setup.Scratch), which attaches it inside; asks [Scratch.Usage] at the end for the verdict disk_limit, and
// [Scratch.CheckBacking] whether what was written is there; closes it last. doctor asks [DiskAvailable]. Nothing of ours is imported.
//
// Lifecycle.
//
//	template (once per size, kept in the cache directory) ─► unnamed file ─► loop device ─► mount ─► Close
//
// Every arrow is undone by the kernel when the last holder of the thing on its right is gone: the file has no name, the device has
// LO_FLAGS_AUTOCLEAR, the mount is a descriptor. A supervisor that dies by SIGKILL at any instant leaves nothing (W6), and there is no
// tree to walk, however deep it is (F14). Close throws away what is on the disk, without writing it back first, and returns when space
// and device are free; while another process has the mount it says [ErrHeld].
//
// Space. The file behind a disk is sparse: an idle sandbox takes nothing, and 500 of 1 GiB fit an ordinary machine. Reserving the whole
// would end that (and costs 8 ms per GiB), so the host's disk may be overcommitted, and three things keep that honest.
//
// A ledger that all processes of the machine share (/run/sandbox-run/disks) says how much the disks on each file system may still take.
// [Scratch.Overcommitted] is by how much that is more than there is; the result of a run reports it, and --strict refuses it.
//
// A floor of free space. A disk that would begin below it is refused ([ErrFloor]). A timer per file system looks at the free space while
// this process has disks there, every 250 ms, and every millisecond close to the floor; below it, it calls what [Scratch.OnFloor] was
// given, which stops the sandbox. The kernel reserves space when a loop device writes to the file, so that free space falls at the rate
// of the writes, which the floor is large against.
//
// A check for lost writes, as a net below: [Scratch.CheckBacking]. A write that fails below the disk is never reported to a program that
// does not call fsync; its pages stay right in memory until the kernel drops them, and are zeroes or older data afterwards. The kernel
// counts the failure before it can drop the page: as a warning of ext4, and as an error of the device's or the file's pages. So whatever
// was read before a check that finds nothing is what was written, and data that was not written back yet needs no flush: it either is in
// memory, or reaches the file, or is counted. The check is made at the end of every run and after files were copied out. With the report
// of overcommit it costs 33 µs on a busy machine (BenchmarkCheckBacking). A read that fails is the program's to see (EIO).
//
// Concurrency. Everything may be called from any goroutine, and from any number of processes on one cache directory. Locks, in order:
// Scratch.mu, the list of cache directories, one cache directory's templates, the search for a free loop device; Scratch.mu, the accounts
// of file systems. Templates appear under their name only when whole, carry a checksum and are remade when it fails.
//
// Limits. Subvolumes of one btrfs count as file systems of their own in the ledger, and so do containers with a /run of their own; the
// floor holds for all. Up to 1 % more bytes than asked for are given, and inodes are rounded up to whole blocks of 16 per block group of
// 128 MiB. All disks of one size have the same UUID. What the kernel writes for the loop device is accounted to the writer's memory
// cgroup, not to its CPU quota. A host with udev may open new loop devices to look at them, and so delay Close a little. Loop device
// nodes that the kernel made for a burst of disks stay in /dev, unbound.
package scratch
