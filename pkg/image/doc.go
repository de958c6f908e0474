// Package image keeps container images on this machine, unpacked and ready to be a sandbox's root.
//
// What. A store of images by content: a manifest, a configuration and layers, each named by its SHA-256, and for every image one
// directory in which its layers lie flattened. Each user has a store, and so has root:
//
//	blobs/HEX            a manifest, a configuration or a layer, as it came; never changed
//	images/HEX.json      an image, by its id (the digest of its configuration); present only when the image is whole
//	names/HASH           a symlink whose text is an image's id and one of its names; never followed
//	roots/HEX/root       the layers of an image, flattened; roots/HEX is locked, shared, by the processes that use it
//	partial/HEX          a blob that is not all here yet, locked by the process that fetches it
//	work/RANDOM          an unpacking or a removal that is under way, locked by the process that does it
//
// Place in the flow. Every way in (Import here, pulling in pkg/image/remote, building in pkg/image/build) ends in Store.Add. Sandboxes
// are given Lease.Dir as their root. It stands on the standard library and pkg/sandbox's errors, so that the executable that starts with
// every run can use what is stored; what else it takes to read layers registers itself (RegisterDecoder).
//
// Lifecycle. Add checks everything (digests, sizes, diff ids), unpacks, and then makes the image visible by renaming. Use holds an
// unpacked image against Remove and Prune until the lease is closed or its process ends, however that comes. What a killed process left
// is found by its free lock and removed by the next Add, Remove, Prune or Collect; of a download the part that is here is kept for a day,
// and continued.
//
// Concurrency. A Store may be used by many goroutines, and a directory by many processes. Looking up takes no lock. Lock order: content
// (shared by Add, alone by the removal of blobs), then partial and work entries, then index (alone, for moments, by whatever changes
// images, names or roots), then roots.
//
// Limits. Images are not trusted (F3, F9): [Limits] bounds bytes of files and archives, entries, layers and depth. An image takes at most
// nine tenths of the free disk. Nothing is written outside an image's own directory, no link is followed out of it, no device, FIFO or
// socket is made. Linux only.
//
// Flattened. Layers are unpacked into one directory instead of stacked: overlay marks are attributes that an ordinary user can not set,
// and each layer would cost each mount. Files that several images have exist several times; blobs are shared.
//
// Unpacking goes through one descriptor, with openat2 and RESOLVE_IN_ROOT: a link on the way (/bin in merged-/usr images) leads where it
// would lead inside. Each layer is unpacked as soon as those below it are; up to four are fetched at a time. Entries of a layer become:
//
//	file, directory, symlink, hard link     the same, with its time; as root with its owner, else the user's
//	set-uid and set-gid bits of files       dropped; directories keep theirs
//	devices, FIFOs                          left out; the entry of a lower layer is removed
//	user.* attributes                       kept, without user.overlay.*; all others are dropped, file capabilities too
//	.wh.NAME, .wh..wh..opq                  remove entries of lower layers, wherever in the archive they are
//	the same name twice                     the last one
//	directories without an entry            0755, root's
//	/                                       at least 0555
//	a name that climbs, a hard link out of the image, a parent that is no directory, an invalid owner, an unknown type: refused
//	/proc, /dev, /sys, /dev/pts, /dev/shm as anything but a directory: refused
//
// Owners. Programs inside are user 1000. As root, sandboxes have ids of their own, so permissions that the image gives to user or group
// 1000 are given to others as well (0600 becomes 0606); other users of the machine can not enter the store.
//
// Power cuts. An image is visible before it is on disk. roots/HEX/boot names the boot in which the files were written; synced exists
// after one syncfs. Use unpacks a root of another boot without synced again from its blobs, which were synced one by one.
package image
