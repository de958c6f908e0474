package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
)

// watchSize does nothing: there is no signal for it here, and no backend with a terminal either.
func watchSize(func()) (stop func()) { return func() {} }

// isForeground has no meaning here.
func isForeground(*os.File) bool { return true }

// replace runs another executable in our place and returns its exit code: a process here can not become another.
func replace(path string, args, env []string) (int, error) {
	// Ctrl-C reaches both of us; what it means is for the other to say.
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
