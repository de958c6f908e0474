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
	// sandbox: it makes a sandbox, which is prepared while the command line is read.
	sandbox bool
	// make is nil for a command of the full executable until that has called Implement.
	make func(*Invocation) *cobra.Command
}

// executable says which of the two does a command's work.
type executable int

const (
	thin     executable = iota
	thinFull            // the full one where it is installed: it has more backends. The thin one otherwise
	full                // the full one alone
)

// commands is the list of subcommands, in the order of help. Both executables build their command tree from it; the thin one hands
// over what is the full one's. The root command, which runs code, is not in it.
var commands = []subcommand{
	{name: "exec", short: "Run a command in a fresh sandbox", sandbox: true, make: (*Invocation).newExec},
	{name: "languages", short: "List the languages, and what they are run with", by: full},
	{name: "template", short: "List, show and start code templates", by: full},
	{name: "audit", short: "Show and check the log of what was run", by: full},
	{name: "receipt", short: "Check what a server has signed", by: full},
	{name: "workspace", short: "List, show and remove workspaces", by: full},
	{name: "image", short: "Fetch, make, list and remove images", by: full},
	{name: "serve", short: "Serve the HTTP API", by: full},
	{name: "key", short: "Make, list and remove API keys of a server", by: full},
	{name: "setup", short: "Install what sandboxes can be made with", by: full},
	{name: "doctor", short: "Say what this machine can enforce", by: thinFull, make: (*Invocation).newDoctor},
	{name: "gc", short: "Remove what a crash left behind", by: thinFull, make: (*Invocation).newGC},
	{name: "completion", short: "Print a script that completes commands in a shell", by: full},
	{name: "man", short: "Print the manual page", by: full},
	{name: "version", short: "Say which version this is", make: (*Invocation).newVersion},
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

// newCommand makes the node of the command tree. One without an implementation has the name and the line in the list of commands, and
// leaves its arguments to the full executable.
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
