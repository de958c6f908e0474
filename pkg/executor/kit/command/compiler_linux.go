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

// runCompiler starts a compiler that waits for its source. The source is an empty pipe: the compiler starts, loads its libraries,
// and blocks where it reads the source. A child process writes the source, so that this process ends as the compiler does.
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
		return writeSource(*source, flags.Args(), s)
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

// writeSource waits until the compiler opens its source, and then for the order to write it. By then the pipe is removed, and the
// program's own file is in its place.
func writeSource(source string, command []string, s Streams) int {
	compiler, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return internal(s, err)
	}
	fail := func(err error) int {
		_ = unix.PidfdSendSignal(compiler, unix.SIGKILL, nil, 0) // it would compile an empty file, or wait for ever
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
		return fail(fmt.Errorf("read order: for another command: %q", o.Args))
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return fail(err)
	}
	_, _ = pipe.Write(text) // a compiler that stops reading prints why
	_ = pipe.Close()
	return statusOK
}
