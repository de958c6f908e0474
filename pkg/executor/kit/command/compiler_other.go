//go:build !linux

package command

import (
	"errors"
	"flag"
)

// runCompiler is for sandboxes, which are Linux's wherever they run.
func runCompiler(_ *flag.FlagSet, _ []string, s Streams) int {
	return internal(s, errors.ErrUnsupported)
}
