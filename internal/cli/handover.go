package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The thin executable does what it is started for most: run, exec, gc, doctor, version, and the client of a server. The rest is the full
// one's, and so is what takes its libraries (a Docker backend, HTTPS). For that the thin one hands over:
//
//	sandbox-run ARGUMENTS ── a command of the full one, or a backend that it has ──► exec sandbox-rund ARGUMENTS
//	                         SANDBOX_RUN_HANDED_OVER=version of sandbox-run
//	                                                     sandbox-rund: another version than mine? refuses, or
//	                         goes on by itself ◄── exec ── gives back what sandbox-run can do as well
//
// Arguments, environment, descriptors, the process and so its exit code stay the same. A thin one that finds the variable set
// does not hand over again, so nothing goes round in circles.

// handedOver is the variable by which one executable tells the next which version it is.
const handedOver = environmentStem + "HANDED_OVER"

// takeOver returns the version of the executable that has handed over to us, if one has, and its path if it can go on by itself.
// The programs that we start do not get the variable.
func takeOver() (from, back string) {
	from, back, _ = strings.Cut(os.Getenv(handedOver), "\n")
	_ = os.Unsetenv(handedOver) // it can only fail for names that are none
	return from, back
}

// sameVersion refuses to go on for an executable of another version: what it has read of the command line may mean something
// else here.
func (c *Invocation) sameVersion() error {
	own := Version(debug.ReadBuildInfo())
	if c.full == nil || c.from == "" || c.from == own {
		return nil
	}
	if c.back != "" {
		return c.become(c.back, CommandName, own)
	}
	path, err := os.Executable()
	if err != nil {
		path = fullName
	}
	return &sandbox.Error{
		Op: "hand over to " + path, Err: fmt.Errorf("it is version %s, and %s is version %s", own, CommandName, c.from), Hint: bothAnew,
	}
}

// become lets another executable go on, and returns when that is over, or was not possible.
func (c *Invocation) become(path, name, word string) error {
	code, err := replace(path, append([]string{name}, c.Args...), append(os.Environ(), handedOver+"="+word))
	if err != nil {
		return &sandbox.Error{Op: "hand over to " + path, Err: err, Hint: bothAnew}
	}
	return replaced(code)
}

const (
	bothAnew = "make install, for executables of one version"
	module   = "github.com/sandbox-run/sandbox-run"
)

// handOver has the full executable go on with the command line, and returns when that is over. Where there is no full one it is an error
// if work needs it, and nil otherwise: the thin one goes on.
func (c *Invocation) handOver(work string, needed bool) error {
	if c.from != "" { // the name of the full executable leads to a thin one
		if !needed {
			return nil
		}
		return &sandbox.Error{
			Op: work, Err: fmt.Errorf("%s leads to an executable that is not the full one", fullName), Hint: bothAnew,
		}
	}
	path, err := findFull()
	if err != nil {
		if !needed {
			return nil
		}
		return &sandbox.Error{Op: work, Err: err, Hint: c.howToGet()}
	}
	word := Version(debug.ReadBuildInfo())
	if !needed {
		if self, err := os.Executable(); err == nil {
			word += "\n" + self
		}
	}
	return c.become(path, fullName, word)
}

// replaced is the end of a command that another process has run for us: there is nothing left to say.
type replaced int

func (r replaced) Error() string { return fmt.Sprintf("exit code %d", int(r)) }

// handOverScanned hands over a command that is the full executable's whatever its flags are.
func (c *Invocation) handOverScanned(a arguments) error {
	switch {
	case c.full != nil:
		return nil
	case a.completion: // the full one knows the flags of all commands
		return c.handOver("", false)
	case a.command != nil && a.command.by == full:
		return c.handOver(fullWork(c.Args), true)
	}
	return nil
}

// handOverParsed hands over a command whose flags, or their variables, take what only the full executable has.
func (c *Invocation) handOverParsed(cmd *cobra.Command) error {
	if c.full != nil {
		return nil
	}
	value := func(flag string) string {
		if f := cmd.Flags().Lookup(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	switch of := findCommand(cmd.Name()); {
	case value("attack") == "true":
		return c.handOver("doctor --attack", true)
	case app.InOtherExecutable(value("backend")):
		return c.handOver("--backend "+value("backend"), true)
	case isWeb(value("server")):
		return c.handOver("--server "+value("server"), true)
	case of != nil && of.by == thinFull, c.from == "" && !c.serverServes(cmd) && c.chooseEarly(cmd) != "":
		return c.handOver("", false)
	}
	return nil
}

// serverServes reports whether a run is sure enough to take place at a server, and needs no backend of ours.
func (c *Invocation) serverServes(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("server")
	if f == nil || f.Value.String() == serverNever {
		return false
	}
	auto := f.Value.String() == serverAuto
	if flag, _ := localFlag(cmd.Flags(), auto); flag != "" && auto {
		return false
	}
	return !auto || c.local != nil && c.local.serves(c)
}

var errNoFull = errors.New("the executable " + fullName + " is needed, and is neither beside " + CommandName + " nor on PATH")

// findFull looks for the full executable beside ours, then on PATH.
func findFull() (string, error) {
	name := fullName
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if self, err := os.Executable(); err == nil {
		// LookPath of a path only looks whether it can be executed.
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errNoFull
	}
	return path, nil
}

// howToGet is what to try where the full executable is missing.
func (c *Invocation) howToGet() string {
	return c.installFull() + " in the repository, or there: " + ShellQuote(append([]string{"go", "run", "./cmd/" + fullName}, c.Args...))
}

// installFull is how to get the full executable: of the same release, or by building it.
func (c *Invocation) installFull() string {
	// A release can be asked for; what is built in a repository has no version, or one made of its commit.
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") && strings.Trim(info.Main.Version, "v.0123456789") == "" {
		return "go install " + module + "/cmd/" + fullName + "@" + info.Main.Version
	}
	return "make install"
}
