package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
)

// arguments is the result of one pass over the command line before it is parsed: which executable does the work, and what can be
// started while the command line is parsed. command and completion are certain. The other fields are guesses; a wrong one only costs time,
// because the parser decides (handOverParsed).
type arguments struct {
	command     *subcommand // the subcommand; nil is a run without its name, or flags of the root alone
	completion  bool        // a shell requests completions
	sandbox     bool        // this executable will make a sandbox
	native      bool        // the sandbox is one of the default backend
	localServer bool        // the local server may do the run
}

func scanArguments(args []string, getenv func(string) string) arguments {
	if len(args) == 0 {
		return arguments{}
	}
	a := arguments{command: findCommand(args[0])}
	a.completion = args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd
	if a.completion || args[0] == "help" || a.command != nil && !a.command.sandbox {
		return a
	}
	a.sandbox, a.native, a.localServer = true, true, a.command == nil || a.command.name == runName
	for _, name := range append([]string{"server"}, localFlags...) {
		if value := getenv(EnvironmentName(name)); value != "" {
			a.applyFlag(name, value)
		}
	}
	args = beforeDashes(args)
	for i, arg := range args {
		flag, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		if name, ok := strings.CutPrefix(flag, "--"); ok {
			a.applyFlag(name, value)
		} else if arg == "-h" || arg == "-V" {
			a.applyFlag("help", "")
		}
	}
	return a
}

// applyFlag updates the guesses for a flag, or for its variable.
func (a *arguments) applyFlag(flag, value string) {
	switch flag {
	case "help", "version":
		a.sandbox = false
	case "backend":
		a.native, a.sandbox = false, a.sandbox && !app.InOtherExecutable(value)
	case "server":
		a.localServer, a.sandbox = a.localServer && value == serverAuto, a.sandbox && !isWeb(value)
	case "runtime", "require":
		a.native = false
	}
	if flag == "require" || flag == "strict" || slices.Contains(localFlags, flag) {
		a.localServer = false
	}
	a.native, a.localServer = a.native && a.sandbox, a.localServer && a.sandbox
}

// describeFullWork returns the first words of the command line: errors name the full executable's work by them.
func describeFullWork(args []string) string {
	words := args
	if i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-") }); i >= 0 {
		words = args[:i]
	}
	return strings.Join(words[:min(len(words), 2)], " ")
}

// beforeDashes returns the arguments before --.
func beforeDashes(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i]
	}
	return args
}
