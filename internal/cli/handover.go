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

// The thin executable has the whole command tree, and lacks what some of it takes. For that it hands over:
//
//	sandbox-run ARGUMENTS ── reads them, finds that it lacks something ──► exec sandbox-rund ARGUMENTS
//	                         SANDBOX_RUN_HANDED_OVER=version of sandbox-run
//	                                                     sandbox-rund: another version than mine? refuses, or
//	                         goes on by itself ◄── exec ── gives back what sandbox-run can do as well
//
// Arguments, environment, descriptors, the process and so its exit code stay the same. A thin one that finds the variable set
// does not hand over again, so nothing goes round in circles.

// handedOver is the variable by which one executable tells the next which version it is.
const handedOver = environmentStem + "HANDED_OVER"

// The annotation of commands that the full executable runs.
const (
	runBy       = "run-by"
	onlyTheFull = "the full executable"
	bestTheFull = "the full executable, where there is one" // it sees more: its backends
)

// takeOver returns the version of the executable that has handed over to us, if one has, and its path if it can go on by itself.
// The variable is for nobody else.
func takeOver() (from, back string) {
	from, back, _ = strings.Cut(os.Getenv(handedOver), "\n")
	_ = os.Unsetenv(handedOver) // it can only fail for names that are none
	return from, back
}

// sameVersion refuses to go on for an executable of another version: what it has read of the command line may mean something
// else here.
func (c *cli) sameVersion() error {
	own := version(debug.ReadBuildInfo())
	if c.full == nil || c.from == "" || c.from == own {
		return nil
	}
	if c.back != "" {
		return c.become(c.back, commandName, own)
	}
	path, err := os.Executable()
	if err != nil {
		path = fullName
	}
	return &sandbox.Error{
		Op: "hand over to " + path, Err: fmt.Errorf("it is version %s, and %s is version %s", own, commandName, c.from), Hint: bothAnew,
	}
}

// become lets another executable go on, and returns when that is over, or was not possible.
func (c *cli) become(path, name, word string) error {
	code, err := replace(path, append([]string{name}, c.args...), append(os.Environ(), handedOver+"="+word))
	if err != nil {
		return &sandbox.Error{Op: "hand over to " + path, Err: err, Hint: bothAnew}
	}
	return replaced(code)
}

const (
	bothAnew = "make install, for executables of one version"
	module   = "github.com/sandbox-run/sandbox-run"
)

// handOver lets the full executable run a command that we lack something for. It returns when there is no need.
func (c *cli) handOver(cmd *cobra.Command) error {
	what := c.lacks(cmd)
	if what == "" {
		return nil
	}
	needed := what != bestTheFull
	if c.from != "" { // somebody calls the thin one sandbox-rund
		if !needed {
			return nil
		}
		return &sandbox.Error{
			Op: what, Err: fmt.Errorf("%s leads to an executable that is not the full one", fullName), Hint: bothAnew,
		}
	}
	path, err := findFull()
	if err != nil {
		if !needed {
			return nil
		}
		return &sandbox.Error{Op: what, Err: err, Hint: c.howToGet()}
	}
	word := version(debug.ReadBuildInfo())
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

// lacks names what a command takes that we do not have.
func (c *cli) lacks(cmd *cobra.Command) string {
	if c.full != nil {
		return ""
	}
	if cmd.Annotations[runBy] == onlyTheFull {
		return strings.TrimPrefix(cmd.CommandPath(), commandName+" ")
	}
	if f := cmd.Flags().Lookup("attack"); f != nil && f.Value.String() == "true" {
		return "doctor --attack"
	}
	if f := cmd.Flags().Lookup("backend"); f != nil && app.InOtherExecutable(f.Value.String()) {
		return "--backend " + f.Value.String()
	}
	if f := cmd.Flags().Lookup("server"); f != nil && isWeb(f.Value.String()) {
		return "--server " + f.Value.String()
	}
	if c.from == "" && !c.serverServes(cmd) && c.scout(cmd) != "" {
		return bestTheFull
	}
	return cmd.Annotations[runBy] // the better one, or nothing
}

// serverServes reports whether a run is sure enough to take place at a server, and needs no backend of ours.
func (c *cli) serverServes(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("server")
	if f == nil || f.Value.String() == serverNever {
		return false
	}
	auto := f.Value.String() == serverAuto
	if flag, _ := staysFor(cmd.Flags(), auto); flag != "" && auto {
		return false
	}
	return !auto || c.near != nil && c.near.serves(c)
}

var errNoFull = errors.New("it takes " + fullName + ", which is neither beside " + commandName + " nor on PATH")

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
func (c *cli) howToGet() string {
	return c.installFull() + ", or in the repository: go run ./cmd/" + fullName + " " + quotedArgv(c.args)
}

// installFull is the way to the full executable for somebody who has come by this one: as part of a release, or by building it.
func (c *cli) installFull() string {
	// A release can be asked for; what is built in a repository has no version, or one made of its commit.
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") && strings.Trim(info.Main.Version, "v.0123456789") == "" {
		return "go install " + module + "/cmd/" + fullName + "@" + info.Main.Version
	}
	return "make install"
}

// mentionsElsewhere guesses, before anything is read, whether another executable will have to run this.
func mentionsElsewhere(args []string) bool {
	if app.InOtherExecutable(os.Getenv(environmentName("backend"))) || isWeb(os.Getenv(environmentName("server"))) {
		return true
	}
	for i, a := range beforeDashes(args) {
		if name, ok := strings.CutPrefix(a, "--backend"); ok && (app.InOtherExecutable(strings.TrimPrefix(name, "=")) || i+1 < len(args) && app.InOtherExecutable(args[i+1])) {
			return true
		}
		if address, ok := strings.CutPrefix(a, "--server"); ok && (isWeb(strings.TrimPrefix(address, "=")) || i+1 < len(args) && isWeb(args[i+1])) {
			return true
		}
	}
	return false
}
