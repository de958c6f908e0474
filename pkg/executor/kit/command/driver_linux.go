package command

import (
	"flag"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// runDriver executes the driver of a session in place of this process, for interpreters that can not move a descriptor: the socket on
// standard input becomes another descriptor, and standard input is /dev/null.
func runDriver(flags *flag.FlagSet, args []string, s Streams) int {
	socket := flags.Int("socket", 0, "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if *socket <= 0 || flags.NArg() == 0 {
		flags.Usage()
		return statusUsage
	}
	if err := unix.Dup3(0, *socket, 0); err != nil {
		return internal(s, fmt.Errorf("move the socket: %w", err))
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return internal(s, fmt.Errorf("open %s: %w", os.DevNull, err))
	}
	if err := unix.Dup3(null, 0, 0); err != nil {
		return internal(s, fmt.Errorf("replace standard input: %w", err))
	}
	return internal(s, fmt.Errorf("execute %s: %w", flags.Arg(0), syscall.Exec(flags.Arg(0), flags.Args(), os.Environ())))
}
