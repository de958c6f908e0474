package full

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { implement("man", (*commands).newMan) }

func (c *commands) newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man",
		Long:    "Prints the manual page, which is made of the texts of --help.",
		Example: "  sandbox-run man | man -l -\n  sandbox-run man > /usr/local/share/man/man1/sandbox-run.1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := c.Std.Out.Write(manPage(cmd.Root()))
			return err
		},
	}
}

// manPage formats the help of all commands as one manual page. It has no date: that of the build does not help a reader.
func manPage(root *cobra.Command) []byte {
	var b bytes.Buffer
	name := root.Name()
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\" \"User Commands\"\n", strings.ToUpper(roff(name)), roff(name))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(lowerFirst(root.Short)))
	b.WriteString(".SH SYNOPSIS\n")
	manUsage(&b, root)
	for _, sub := range root.Commands() {
		if sub.IsAvailableCommand() {
			b.WriteString(".br\n")
			manUsage(&b, sub)
		}
	}
	b.WriteString(".SH DESCRIPTION\n")
	manText(&b, root.Long)
	b.WriteString(".SH OPTIONS\n")
	manFlags(&b, root.LocalFlags(), ".SS")
	b.WriteString(".SH COMMANDS\n")
	for _, sub := range root.Commands() {
		if sub.IsAvailableCommand() {
			manCommand(&b, sub)
		}
	}
	b.WriteString(".SH EXAMPLES\n")
	manExample(&b, root.Example)
	b.WriteString(".SH ENVIRONMENT\n")
	manText(&b, "Every flag has a variable that gives its default: --memory is SANDBOX_RUN_MEMORY. A flag that may be repeated takes "+
		"one value per line. NO_COLOR switches colours off.")
	return b.Bytes()
}

func manUsage(b *bytes.Buffer, cmd *cobra.Command) {
	rest := strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())
	fmt.Fprintf(b, "\\fB%s\\fR%s\n", roff(cmd.CommandPath()), roff(rest))
}

func manCommand(b *bytes.Buffer, cmd *cobra.Command) {
	fmt.Fprintf(b, ".SS %s\n", roff(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")))
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	manText(b, text)
	manFlags(b, cmd.LocalFlags(), ".PP")
	if cmd.Example != "" {
		manExample(b, cmd.Example)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			manCommand(b, sub)
		}
	}
}

// manText writes paragraphs without line breaks: man breaks the lines.
func manText(b *bytes.Buffer, text string) {
	for i, paragraph := range strings.Split(text, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		b.WriteString(roff(strings.Join(strings.Fields(paragraph), " ")) + "\n")
	}
}

// manExample writes an example with its line breaks.
func manExample(b *bytes.Buffer, text string) {
	fmt.Fprintf(b, ".PP\n.nf\n.RS\n%s\n.RE\n.fi\n", roff(strings.ReplaceAll("\n"+text, "\n  ", "\n")[1:]))
}

func manFlags(b *bytes.Buffer, flags *pflag.FlagSet, heading string) {
	group := ""
	flags.VisitAll(func(f *pflag.Flag) {
		if g := f.Annotations[cli.FlagGroup]; len(g) > 0 && g[0] != group {
			group = g[0]
			if heading == ".SS" {
				fmt.Fprintf(b, ".SS %s\n", roff(group))
			}
		}
		left := "--" + f.Name
		if f.Shorthand != "" {
			left = "-" + f.Shorthand + ", " + left
		}
		value, usage := cli.FlagUsage(f)
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR", roff(left))
		if value != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", roff(value))
		}
		fmt.Fprintf(b, "\n%s\n", roff(usage))
	})
}

// roff escapes text for roff: backslashes, dashes, quotes, and a dot at the beginning of a line.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "…", "...").Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
