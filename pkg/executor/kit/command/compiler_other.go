//go:build !linux

package command

import (
	"errors"
	"flag"
)

// runCompiler is only for Linux.
func runCompiler(_ *flag.FlagSet, _ []string, s Streams) int {
	return internal(s, errors.ErrUnsupported)
}
