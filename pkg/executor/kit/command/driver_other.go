//go:build !linux

package command

import (
	"errors"
	"flag"
)

func runDriver(_ *flag.FlagSet, _ []string, s Streams) int {
	return internal(s, errors.New("sessions need Linux"))
}
