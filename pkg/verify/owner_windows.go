package verify

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: a file has the access rights of its directory.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
