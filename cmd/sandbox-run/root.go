package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Exit codes that are ours, not the program's.
const (
	codeUnhealthy   = 1   // doctor: the default tier is not available
	codeUsage       = 2   // the request itself is wrong
	codeOurs        = 125 // sandbox-run failed
	codeRefused     = 126 // refused by policy; also a program that can not be executed, as in shells
	codeNoProgram   = 127 // a program that does not exist, as in shells
	codeSignalBase  = 128
	codeBrokenPipe  = codeSignalBase + 13
	commandName     = "sandbox-run"
	environmentStem = "SANDBOX_RUN_"
)

// streams are what the command talks through.
type streams struct{ in, out, err *os.File }

// cli is one invocation of the command.
type cli struct {
	args []string
	std  streams
	code int  // the exit code when nothing failed
	json bool // results and failures are JSON documents on stdout
}

// run is the whole command; it returns the exit code.
func run(args []string, std streams) int {
	if len(args) > 0 && args[0] == "exec" {
		app.Warm()
	}
	c := &cli{args: args, std: std}
	root := c.newRoot()
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		return c.fail(err)
	}
	return c.code
}

func (c *cli) newRoot() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   commandName,
		Short: "Run commands nobody has vouched for, in fresh sandboxes",
		Long: `Runs commands that nobody has vouched for in fresh Linux sandboxes: isolated,
limited, watched, and gone afterwards.`,
		Example: `  sandbox-run exec -- ls -la /
  sandbox-run exec --memory 256m --timeout 5s -- ./a-strangers-script
  sandbox-run doctor`,
		SilenceErrors: true, // fail reports them, as text or as JSON
		SilenceUsage:  true, // an error names the command that explains more
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return c.printVersion()
			}
			c.code = codeUsage
			return c.writeHelp(c.std.err, cmd)
		},
		// Flags left open are read from the environment before any command runs.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags(), os.LookupEnv, helpHint(cmd))
		},
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.Flags().BoolP("help", "h", false, "show this text")
	root.Flags().BoolVar(&version, "version", false, "say which version this is")
	root.SetOut(c.std.out)
	root.SetErr(c.std.err)
	root.SetFlagErrorFunc(c.flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := c.writeHelp(c.std.out, cmd); err != nil {
			c.code = codeOurs
		}
	})
	root.AddCommand(c.newExec(), c.newDoctor(), c.newGC(), c.newTemplate(), c.newVersion())
	describeHelp(root)
	return root
}

// describeHelp says of every --help what ours says of it.
func describeHelp(parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if cmd.Flags().Lookup("help") == nil {
			cmd.Flags().BoolP("help", "h", false, "show this text")
		}
		describeHelp(cmd)
	}
}

func helpHint(cmd *cobra.Command) string { return cmd.CommandPath() + " --help" }

func unknownCommand(root *cobra.Command, name string) error {
	hint := helpHint(root)
	if like := root.SuggestionsFor(name); len(like) > 0 {
		hint = root.CommandPath() + " " + like[0]
	}
	return &sandbox.Error{
		Op: "command line", Kind: sandbox.ErrInvalid, Hint: hint,
		Err: fmt.Errorf("unknown command %q", name),
	}
}

// noArguments is for commands that take none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &sandbox.Error{
		Op: cmd.Name(), Kind: sandbox.ErrInvalid, Hint: helpHint(cmd),
		Err: fmt.Errorf("unexpected argument %q", args[0]),
	}
}

// flagError says which flag was wrong and why, and what was probably meant.
func (c *cli) flagError(cmd *cobra.Command, err error) error {
	// Parsing stopped at the fault; whether JSON was asked for may stand behind it.
	if j := cmd.Flags().Lookup("json"); j != nil {
		c.json = j.Value.String() == "true" || slices.Contains(beforeDashes(c.args), "--json")
	}
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	e := &sandbox.Error{Op: "command line", Kind: sandbox.ErrInvalid, Err: err, Hint: helpHint(cmd)}
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		e.Op, e.Err = fmt.Sprintf("--%s %q", value.GetFlag().Name, value.GetValue()), plainCause(value.Unwrap())
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		if like := nearestFlag(cmd.Flags(), unknown.GetSpecifiedName()); like != "" {
			e.Hint = "--" + like + ", or " + helpHint(cmd)
		}
	}
	return e
}

func beforeDashes(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i]
	}
	return args
}

// plainCause strips what an error says about its place, where we say it better.
func plainCause(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// fail reports our own failure and returns the exit code that belongs to it.
func (c *cli) fail(err error) int {
	code := failureCode(err)
	// What is wrong with a command line is found before its variables are read.
	fromVariable, _ := strconv.ParseBool(os.Getenv(environmentName("json")))
	if c.json || fromVariable {
		if c.writeJSON(failure(err, code)) != nil {
			return codeOurs
		}
		return code
	}
	c.complain(err.Error())
	return code
}

// complain writes a message of ours. Names that came from outside can be anything, so even when
// nobody watches, nothing in it may move a cursor.
func (c *cli) complain(message string) {
	fmt.Fprintf(c.std.err, "%s: %s\n", commandName, escaped(message))
}

func failureCode(err error) int {
	var signal signalCause
	switch {
	case errors.As(err, &signal):
		return codeSignalBase + int(signal)
	case errors.Is(err, sandbox.ErrNotStarted) && errors.Is(err, fs.ErrNotExist):
		return codeNoProgram
	case errors.Is(err, sandbox.ErrNotStarted), errors.Is(err, sandbox.ErrRefused), errors.Is(err, sandbox.ErrUnsupported):
		return codeRefused
	case errors.Is(err, sandbox.ErrInvalid):
		return codeUsage
	}
	return codeOurs
}

// failureDocument is the JSON of a run that never became one. It has the names a reader of
// results looks at first, so that one program can read both.
type failureDocument struct {
	Success   bool               `json:"success"`
	Verdict   sandbox.Verdict    `json:"verdict"`
	ExitCode  int                `json:"exit_code"`
	Stdout    string             `json:"stdout"`
	Stderr    string             `json:"stderr"`
	Isolation *sandbox.Isolation `json:"isolation,omitempty"` // of a refusal: what there would have been
	Error     *sandbox.ErrorInfo `json:"error"`
}

func failure(err error, code int) failureDocument {
	doc := failureDocument{Verdict: sandbox.VerdictInternalError, ExitCode: code, Error: sandbox.Describe(err)}
	var refusal *sandbox.Refusal
	if errors.As(err, &refusal) {
		doc.Isolation = &refusal.Got
	}
	var signal signalCause
	if errors.As(err, &signal) {
		doc.Verdict, doc.Error.Code = sandbox.VerdictCancelled, string(sandbox.VerdictCancelled)
	}
	return doc
}

// writeJSON writes one document to stdout: a line for programs, indented for people. JSON leaves
// the C1 controls and text direction as they are, so on a terminal they are written as \u escapes,
// which say the same.
func (c *cli) writeJSON(doc any) error {
	var out io.Writer = c.std.out
	indent := ""
	if isTerminal(c.std.out) {
		out, indent = newEscaper(out), "  "
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(out, text.String())
	return err
}
