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

// The thin executable has the frequent commands: run, exec, gc, doctor, version, and the client of a server. The full one has the other
// commands, and features that need large libraries (the Docker backend, HTTPS). For these the thin one hands over:
//
//	sandbox-run ARGUMENTS ── a command of the full one, or a backend that it has ──► exec sandbox-rund ARGUMENTS
//	                         SANDBOX_RUN_HANDED_OVER=version of sandbox-run
//	                                                     sandbox-rund of another version: refuses, or
//	                         does the work itself ◄── exec ── hands back what sandbox-run can do as well
//
// Arguments, environment, descriptors, the process and its exit code stay the same. A thin executable that finds the variable set
// does not hand over again, so there is no loop.

// handedOverVariable is the variable with the version of the executable that has handed over.
const handedOverVariable = environmentStem + "HANDED_OVER"

// readHandOver returns the version of the executable that has handed over to this one, and its path if it can do the work itself. Both
// are empty without a hand-over. It removes the variable, so that programs do not inherit it.
func readHandOver() (from, back string) {
	from, back, _ = strings.Cut(os.Getenv(handedOverVariable), "\n")
	_ = os.Unsetenv(handedOverVariable) // fails only for invalid names
	return from, back
}

// checkCallerVersion refuses a hand-over from an executable of another version, or hands back: the command line may have another meaning
// in this version.
func (c *Invocation) checkCallerVersion() error {
	own := Version(debug.ReadBuildInfo())
	if c.full == nil || c.from == "" || c.from == own {
		return nil
	}
	if c.back != "" {
		return c.replaceProcess(c.back, CommandName, own)
	}
	path, err := os.Executable()
	if err != nil {
		path = fullName
	}
	return &sandbox.Error{
		Op: "hand over to " + path, Err: fmt.Errorf("it is version %s, and %s is version %s", own, CommandName, c.from), Hint: reinstallHint,
	}
}

// replaceProcess executes another executable in place of this one. It returns only if that fails or, on Windows, has ended.
func (c *Invocation) replaceProcess(path, name, word string) error {
	code, err := replace(path, append([]string{name}, c.Args...), append(os.Environ(), handedOverVariable+"="+word))
	if err != nil {
		return &sandbox.Error{Op: "hand over to " + path, Err: err, Hint: reinstallHint}
	}
	return replacedError(code)
}

const (
	reinstallHint = "make install, for executables of one version"
	module        = "github.com/sandbox-run/sandbox-run"
)

// handOver has the full executable do the work. Without a full executable it returns an error if the work needs one, and otherwise nil:
// then the thin executable does the work.
func (c *Invocation) handOver(work string, needed bool) error {
	if c.from != "" { // the file with the full executable's name is a thin one
		if !needed {
			return nil
		}
		return &sandbox.Error{
			Op: work, Err: fmt.Errorf("%s leads to an executable that is not the full one", fullName), Hint: reinstallHint,
		}
	}
	path, err := findFull()
	if err != nil {
		if !needed {
			return nil
		}
		return &sandbox.Error{Op: work, Err: err, Hint: c.fullHint()}
	}
	word := Version(debug.ReadBuildInfo())
	if !needed {
		if self, err := os.Executable(); err == nil {
			word += "\n" + self
		}
	}
	return c.replaceProcess(path, fullName, word)
}

// replacedError is the exit code of a command that another process has run. Nothing is printed for it.
type replacedError int

func (r replacedError) Error() string { return fmt.Sprintf("exit code %d", int(r)) }

// handOverScanned hands over a command of the full executable, before flags are parsed.
func (c *Invocation) handOverScanned(a arguments) error {
	switch {
	case c.full != nil:
		return nil
	case a.completion: // the full one knows the flags of all commands
		return c.handOver("", false)
	case a.command != nil && a.command.by == full:
		return c.handOver(describeFullWork(c.Args), true)
	}
	return nil
}

// handOverParsed hands over a command whose flags or variables need a feature of the full executable.
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
	case value("interactive") == "true":
		return c.handOver("--interactive", true)
	case app.InOtherExecutable(value("backend")):
		return c.handOver("--backend "+value("backend"), true)
	case isWeb(value("server")):
		return c.handOver("--server "+value("server"), true)
	case of != nil && of.by == thinFull, c.from == "" && !c.serverCanRun(cmd) && c.chooseEarly(cmd) != "":
		return c.handOver("", false)
	}
	return nil
}

// serverCanRun reports whether a run will probably take place at a server, so that no backend is needed here.
func (c *Invocation) serverCanRun(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("server")
	if f == nil || f.Value.String() == serverNever {
		return false
	}
	auto := f.Value.String() == serverAuto
	if flag, _ := localFlag(cmd.Flags(), auto); flag != "" && auto {
		return false
	}
	return !auto || c.local != nil && c.local.canRun(c)
}

var errNoFull = errors.New("the executable " + fullName + " is needed, and is neither beside " + CommandName + " nor on PATH")

// findFull finds the full executable: first beside this one, then on PATH.
func findFull() (string, error) {
	name := fullName
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if self, err := os.Executable(); err == nil {
		// LookPath with a path only checks that the file is executable.
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

// fullHint returns the hint for errors about a missing full executable.
func (c *Invocation) fullHint() string {
	command := append([]string{"go", "run", "./cmd/" + fullName}, c.Args...)
	return c.installHint() + ", or in the repository: " + sandbox.ShellQuote(command...)
}

// installHint returns the command that installs the full executable: that of the same release, or a build.
func (c *Invocation) installHint() string {
	// Only a release has a plain version; a build in a repository has none, or one with its commit.
	info, ok := debug.ReadBuildInfo()
	if ok && strings.HasPrefix(info.Main.Version, "v") && strings.Trim(info.Main.Version, "v.0123456789") == "" {
		return "go install " + module + "/cmd/" + fullName + "@" + info.Main.Version
	}
	return "make install"
}
