//go:build !linux

package files

import (
	"context"
	"os"
)

// fillFile leaves the copying to the caller.
func fillFile(context.Context, *os.File, *os.File) (done bool, err error) { return false, nil }
