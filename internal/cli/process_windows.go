package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
)

// watchSize does nothing: Windows has no signal for a new size, and no backend with a terminal.
func watchSize(func()) (stop func()) { return func() {} }

// isForeground returns true: Windows has no background processes of a terminal.
func isForeground(*os.File) bool { return true }

// replace runs another executable as a child and returns its exit code: Windows has no exec.
func replace(path string, args, env []string) (int, error) {
	// Ctrl-C reaches both processes; the child handles it.
	signal.Ignore(os.Interrupt)
	defer signal.Reset(os.Interrupt)
	cmd := exec.Command(path)
	cmd.Args, cmd.Env = args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
