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
	b.WriteString(".SH EXIT STATUS\n")
	manRows(&b, exitCodes)
	b.WriteString(".SH ENVIRONMENT\n")
	manText(&b, variablesText)
	manRows(&b, variables)
	return b.Bytes()
}

// exitCodes is the table of exit codes of the manual page and of the command reference.
var exitCodes = [][2]string{
	{"the program's own", "the program ended by itself"},
	{"124", "time limit or CPU limit"},
	{"137", "memory limit, or the program was ended by SIGKILL"},
	{"128 + n", "the program was ended by signal n; 143 also after --kill-on-output"},
	{"130, 131, 143, 129", "cancelled by Ctrl-C, SIGQUIT, SIGTERM, SIGHUP"},
	{"141", "the reader of the output closed the pipe"},
	{"126", "refused by policy; or the program cannot be executed; or the given image is not a valid image"},
	{"127", "no such program; a language that is not installed; an image for --image that is not in the store"},
	{"125", "sandbox-run itself failed, or a file of --out could not be written"},
	{"2", "usage error; no workspace or image with this name"},
	{"1", "the code does not compile; doctor, audit verify or receipt verify found a fault"},
}

const variablesText = "Most flags have a variable for their default: SANDBOX_RUN_ and the flag's name in capitals, with " +
	"underscores instead of dashes. --memory is SANDBOX_RUN_MEMORY. A flag precedes its variable. An empty variable " +
	"counts as unset. A repeatable flag takes one value per line. Another variable of this form, unless listed " +
	"below, is a usage error."

// variables is the table of environment variables that are no flags, of the manual page and of the command reference.
var variables = [][2]string{
	{"SANDBOX_RUN_INIT", "path of the sandbox-init to use"},
	{"SANDBOX_RUN_KIT", "path of the sandbox-kit to use"},
	{"SANDBOX_RUN_HELPER", "path of the sandbox-helper of the Docker backend"},
	{"SANDBOX_RUN_SOCKET", "absolute path of the server's socket, for serve and for clients"},
	{"SANDBOX_RUN_SERVER_KEY", "the API key of the server that --server names"},
	{"SANDBOX_RUN_IMAGES", "directory of the image store"},
	{"SANDBOX_RUN_IMAGE_PYTHON", "image of the language Python where its toolchain is missing; other languages likewise"},
	{"NO_COLOR", "no colours"},
	{"SOURCE_DATE_EPOCH", "seconds since 1970: no file in a built image is newer"},
	{"XDG_RUNTIME_DIR", "where supervisors of ordinary users register, and the socket of their server"},
	{"XDG_STATE_HOME", "the audit log and the server's data; default ~/.local/state"},
	{"XDG_DATA_HOME", "workspaces, images and keys; default ~/.local/share"},
	{"XDG_CONFIG_HOME", "languages.yaml and your templates; default ~/.config"},
	{"XDG_CACHE_HOME", "compiled programs and shared files of toolchains; default ~/.cache"},
}

func manRows(b *bytes.Buffer, rows [][2]string) {
	for _, row := range rows {
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s\n", roff(row[0]), roff(row[1]))
	}
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

// exampleBreak ends the examples of commands that run programs. The manual page and the command reference have a table of exit codes.
const exampleBreak = "\n\nExit codes:\n"

// manExample writes an example with its line breaks.
func manExample(b *bytes.Buffer, text string) {
	text, _, _ = strings.Cut(text, exampleBreak)
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
