//go:build !unix

package pool

import "io/fs"

// identity is empty: there is no file number here; time and size must suffice.
func identity(fs.FileInfo) string { return "" }
