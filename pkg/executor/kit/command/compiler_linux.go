package command

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

// runCompiler has a compiler wait for its source. The source is a pipe to which nobody has written: the compiler starts, loads what it consists of,
// and stops where it would read. Whoever feeds it is its child, so that how the compiler ends is how this process ends.
func runCompiler(flags *flag.FlagSet, args []string, s Streams) int {
	source := flags.String("source", "", "")
	feeds := flags.Bool("feed", false, "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if *source == "" || flags.NArg() == 0 {
		flags.Usage()
		return statusUsage
	}
	if *feeds {
		return feed(*source, flags.Args(), s)
	}
	if err := unix.Mkfifo(*source, 0o600); err != nil {
		return internal(s, fmt.Errorf("make %s: %w", *source, err))
	}
	self, err := os.Executable()
	if err != nil {
		return internal(s, err)
	}
	feeder := exec.Command(self, slices.Concat([]string{"compiler", "--feed", "--source", *source, "--"}, flags.Args())...)
	feeder.Args[0], feeder.Stdin, feeder.Stderr = kitpath.Name, s.In, s.Err
	if err := feeder.Start(); err != nil {
		return internal(s, err)
	}
	return internal(s, syscall.Exec(flags.Arg(0), flags.Args(), os.Environ()))
}

// feed waits until the compiler reads its source, and then for the order to write it. The pipe is gone by then, and the program's own file in its place.
func feed(source string, command []string, s Streams) int {
	compiler, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return internal(s, err)
	}
	fail := func(err error) int {
		_ = unix.PidfdSendSignal(compiler, unix.SIGKILL, nil, 0) // it would compile nothing, or wait for ever
		return internal(s, err)
	}
	pipe, err := os.OpenFile(source, os.O_WRONLY, 0)
	if err != nil {
		return fail(err)
	}
	if err := os.Remove(source); err != nil {
		return fail(err)
	}
	o, err := wait(nil, s)
	if err != nil {
		return fail(err)
	}
	if !slices.Equal(o.Args, command) {
		return fail(fmt.Errorf("an order for another command: %q", o.Args))
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return fail(err)
	}
	_, _ = pipe.Write(text) // a compiler that has had enough says why
	_ = pipe.Close()
	return statusOK
}
