package image

// Leftover is something in a store that belongs to no image: what Collect removes.
type Leftover struct {
	Kind string // "download", "unpacking", "root" or "layer"
	Path string
}

// The kinds of leftovers.
const (
	LeftoverDownload  = "download"  // a part of a blob that nobody has gone on with for a day
	LeftoverUnpacking = "unpacking" // work of a process that is gone
	LeftoverRoot      = "root"      // unpacked, and of no image
	LeftoverLayer     = "layer"     // or any other blob of no image
)
