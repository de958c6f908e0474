package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
)

// subcommand is an entry of the list of subcommands.
type subcommand struct {
	name, short string
	by          executable
	// sandbox: the command makes a sandbox, which is prepared while the command line is parsed.
	sandbox bool
	// make is nil for a command of the full executable until Implement sets it.
	make func(*Invocation) *cobra.Command
}

// executable is the executable that does the work of a command.
type executable int

const (
	thin     executable = iota
	thinFull            // the full one if it is installed, because it has more backends; otherwise the thin one
	full                // the full one alone
)

// commands is the list of subcommands, in the order of help. Both executables build their command tree from it; the thin one hands
// over the commands of the full one.
var commands = []subcommand{
	{name: runName, short: "Run code: the same as without a command", sandbox: true, make: (*Invocation).newRun},
	{name: "exec", short: "Run a command in a fresh sandbox", sandbox: true, make: (*Invocation).newExec},
	{name: "test", short: "Run the tests of a project, with a result for each", by: full},
	{name: "verify", short: "Run the examples of documents, and compare their output", by: full},
	{name: "repl", short: "Type code, and see its values", by: full},
	{name: "session", short: "Create, use, list and close named sessions", by: full},
	{name: "languages", short: "List the languages and their toolchains", by: full},
	{name: "template", short: "List, show and start code templates", by: full},
	{name: "audit", short: "Show and check the audit log of runs", by: full},
	{name: "receipt", short: "Verify the signed receipts of a server", by: full},
	{name: "workspace", short: "List, show and remove workspaces", by: full},
	{name: "image", short: "Fetch, make, list and remove images", by: full},
	{name: "deps", short: "List, show and remove installed packages", by: full},
	{name: "serve", short: "Serve the HTTP API", by: full},
	{name: "mcp", short: "Serve an agent over the Model Context Protocol", by: full},
	{name: "key", short: "Make, list and remove API keys of a server", by: full},
	{name: "setup", short: "Install programs that backends need, such as Docker", by: full},
	{name: "doctor", short: "Report what this machine can enforce", by: thinFull, make: (*Invocation).newDoctor},
	{name: "gc", short: "Remove what a crash left behind", by: thinFull, make: (*Invocation).newGC},
	{name: "completion", short: "Print a script that completes commands in a shell", by: full},
	{name: "man", short: "Print the manual page", by: full},
	{name: "version", short: "Print the version", make: (*Invocation).newVersion},
}

// Implement gives a command of the list its implementation; the full executable calls it from initialisers. It panics if the list has no
// such command, or has an implementation of it already.
func Implement(name string, make func(*Invocation) *cobra.Command) {
	c := findCommand(name)
	if c == nil || c.make != nil {
		panic(fmt.Sprintf("cli: command %q is not in the list, or is implemented twice", name))
	}
	c.make = make
}

// findCommand returns the entry of that name, or nil.
func findCommand(name string) *subcommand {
	for i := range commands {
		if commands[i].name == name {
			return &commands[i]
		}
	}
	return nil
}

// newCommand makes the node of the command tree. A command without an implementation has its name and its line in the list of commands,
// and passes its arguments to the full executable.
func (c *Invocation) newCommand(of *subcommand) *cobra.Command {
	if of.make == nil && c.full != nil {
		panic(fmt.Sprintf("cli: command %q is in the list and has no implementation", of.name))
	}
	if of.make == nil {
		return &cobra.Command{
			Use: of.name, Short: of.short, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return c.handOver(cmp.Or(describeFullWork(c.Args), of.name), true)
			},
		}
	}
	cmd := of.make(c)
	cmd.Short = of.short
	return cmd
}
