// Package image keeps container images on this machine, unpacked and ready to be a sandbox's root.
//
// What. A store of images by content: a manifest, a configuration and layers, each named by its SHA-256, and for every
// image one directory in which its layers lie flattened. Each user has a store, and so has root:
//
//	blobs/HEX            a manifest, a configuration or a layer, as it came; never changed
//	images/HEX.json      an image, by its id (the digest of its configuration); present only when the image is whole
//	names/HASH           a symlink whose text is an image's id and one of its names; never followed
//	roots/HEX/root       the layers of an image, flattened; roots/HEX is locked, shared, by the processes that use it
//	partial/HEX          a blob that is not all here yet, locked by the process that fetches it
//	work/RANDOM          an unpacking or a removal that is under way, locked by the process that does it
//
// Place in the flow. Every way in (Import here, pulling in pkg/image/remote, building in pkg/image/build) ends in
// Store.Add. Sandboxes are given Lease.Dir as their root. It stands on the standard library and pkg/sandbox's errors, so that
// the executable that starts with every run can use what is stored; what else it takes to read layers registers itself (RegisterDecoder).
//
// Lifecycle. Add checks everything (digests, sizes, diff ids), unpacks, and then makes the image visible by renaming. Use holds an
// unpacked image against Remove and Prune until the lease is closed or its process ends, however that comes. What a killed process left
// is found by its free lock and removed by the next Add, Remove, Prune or Collect; of a download the part that is here is kept for a day,
// and continued.
//
// Concurrency. A Store may be used by many goroutines, and a directory by many processes. Looking up takes no lock. Lock order:
// content (shared by Add, alone by the removal of blobs), then partial and work entries, then index (alone, for
// moments, by whatever changes images, names or roots), then roots.
//
// Limits. Images are hostile until proven otherwise (F3, F9): see Limits for what they may use up, and docs/ARCHITECTURE.md for how each
// kind of entry is treated. Nothing is written outside an image's own directory, no link is followed out of it, no device,
// FIFO or socket is made. Linux only.
package image
