package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagGroup is the annotation of a flag with the title of its group in help.
const FlagGroup = "group"

// helpColumn is the column at which descriptions begin.
const helpColumn = 33

// writeHelp replaces cobra's help, which can not list flags in groups.
func (c *Invocation) writeHelp(to io.Writer, cmd *cobra.Command) error {
	var b bytes.Buffer
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(&b, "%s\n\nUsage:\n", text)
	if cmd.Runnable() {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND [flags]\n", cmd.CommandPath())
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-10s %s\n", sub.Name(), sub.Short)
			}
		}
	}
	writeFlags(&b, cmd.LocalFlags())
	if name := firstFlag(cmd); name != "" {
		fmt.Fprintf(&b, "\nEvery flag has a variable that gives its default: --%s is %s.\n", name, EnvironmentName(name))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help describes a command.\n", cmd.CommandPath())
	}
	_, err := to.Write(b.Bytes())
	return err
}

// firstFlag returns a flag of the command as the example of a variable.
func firstFlag(cmd *cobra.Command) string {
	name := ""
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if name == "" && FlagVariable(f) != "" {
			name = f.Name
		}
	})
	return name
}

// writeFlags lists flags by group, in the order of the set.
func writeFlags(b *bytes.Buffer, flags *pflag.FlagSet) {
	var groups []string
	lines := map[string][]string{}
	flags.VisitAll(func(f *pflag.Flag) {
		group := "Flags"
		if g := f.Annotations[FlagGroup]; len(g) > 0 {
			group = g[0]
		}
		if lines[group] == nil {
			groups = append(groups, group)
		}
		lines[group] = append(lines[group], flagLine(f))
	})
	for _, g := range groups {
		fmt.Fprintf(b, "\n%s:\n%s", g, strings.Join(lines[g], ""))
	}
}

func flagLine(f *pflag.Flag) string {
	left := "      --" + f.Name
	if f.Shorthand != "" {
		left = "  -" + f.Shorthand + ", --" + f.Name
	}
	name, usage := FlagUsage(f)
	if name != "" {
		left += " " + name
	}
	return fmt.Sprintf("%-*s %s\n", helpColumn, left, usage)
}

// FlagUsage returns the name of a flag's value and the description with the default.
func FlagUsage(f *pflag.Flag) (value, usage string) {
	value, usage = pflag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "false" {
		usage += " (default " + f.DefValue + ")"
	}
	return value, usage
}
