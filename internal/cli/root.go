package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Exit codes of sandbox-run, not of the program.
const (
	CodeUnhealthy   = 1   // doctor: the default tier is not available; audit verify: the chain is broken
	codeUsage       = 2   // the request is invalid
	codeOurs        = 125 // sandbox-run failed
	codeRefused     = 126 // refused by policy; also a program that can not be executed, as in shells
	codeNoProgram   = 127 // a program that does not exist, as in shells; also a language that is not installed
	codeSignalBase  = 128
	CodeBrokenPipe  = codeSignalBase + 13
	CommandName     = "sandbox-run"
	fullName        = "sandbox-rund"
	environmentStem = "SANDBOX_RUN_"
)

// Streams are the standard streams of the command.
type Streams struct{ In, Out, Err *os.File }

// Invocation is one invocation of the command.
type Invocation struct {
	Args []string
	Std  Streams
	Code int  // the exit code if no function returns an error
	JSON bool // results and failures are JSON documents on standard output

	full *Full  // nil in the thin executable
	from string // version of the executable that has handed over to this one; empty without a hand-over
	back string // its path, if it can do the work itself

	format string // value of --format; empty until it is known
	colour string // value of --color; empty is auto
	seq    uint64 // of the last event that was written

	local *localServer // nil if there is none, or it was not looked for

	// Set by onSignals.
	signalled      context.Context //nolint:containedctx // of the whole command
	cancel         context.CancelCauseFunc
	kill           atomic.Pointer[func()]
	signalledTwice atomic.Bool

	chosen *openedBackend    // a backend that was chosen before the code was read; nil is none
	early  *app.EarlyBackend // opened while the command line is parsed; nil if no sandbox is expected
}

// Main runs the thin executable. It ends the process.
func Main() { runAndExit(nil) }

// MainFull runs the full executable. It ends the process.
func MainFull(f Full) { runAndExit(&f) }

func runAndExit(full *Full) {
	os.Exit(run(full, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// Run executes a command line in this process and returns the exit code; without full it is the thin executable's.
func Run(full *Full, args []string, std Streams) int { return run(full, args, std) }

// run runs the command and returns the exit code.
func run(full *Full, args []string, std Streams) int {
	c := &Invocation{Args: args, Std: std, full: full}
	c.from, c.back = readHandOver()
	if err := c.checkCallerVersion(); err != nil {
		return c.reportFailure(err)
	}
	a := scanArguments(args, os.Getenv)
	if err := c.handOverScanned(a); err != nil {
		return c.reportFailure(err)
	}
	if a.localServer {
		c.local = findLocalServer()
		defer func() { c.local.close() }()
	}
	if a.sandbox && c.local == nil {
		app.Warm()
	}
	if a.native && c.local == nil {
		c.early = app.OpenEarly()
		defer c.early.Close() // an error matters only if a sandbox was needed
	}
	root := c.newRoot()
	if a.completion && c.full != nil {
		c.full.Complete(root)
	}
	root.SetArgs(args)
	defer c.closeChosen()
	if err := root.Execute(); err != nil {
		return c.reportFailure(err)
	}
	return c.Code
}

// NewTree returns the command tree of the full executable. It is for reading: its commands are not to be executed.
func NewTree(f Full) *cobra.Command { return (&Invocation{full: &f}).newRoot() }

func (c *Invocation) newRoot() *cobra.Command {
	var version bool
	var o *runOptions
	root := &cobra.Command{
		Use:           CommandName + " [flags] [FILE|DIR|-] [-- ARGUMENT...]",
		Short:         "Run untrusted code in fresh sandboxes",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true, // fail reports them, as text or as JSON
		SilenceUsage:  true, // an error names the command that explains more
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return c.printVersion()
			}
			return c.runRoot(cmd, o, args)
		},
		// Flags that are not given are read from the environment. Then it is known which executable does the work.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkVariables(cmd, os.Environ()); err != nil && !cmd.Hidden { // __complete is hidden
				return err
			}
			if err := ReadEnvironment(cmd.Flags(), os.LookupEnv, HelpHint(cmd)); err != nil {
				return err
			}
			return c.handOverParsed(cmd)
		},
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	o = c.addRunFlags(root, &version)
	root.SetOut(c.Std.Out)
	root.SetErr(c.Std.Err)
	root.SetFlagErrorFunc(c.flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		var err error
		if cmd.Name() == runName {
			cmd = root
		}
		if cmd.DisableFlagParsing { // the full executable has the help text
			err = cmd.RunE(cmd, nil)
		} else {
			err = c.writeHelp(c.Std.Out, cmd)
		}
		if err != nil {
			c.Code = c.reportFailure(err)
		}
	})
	for i := range commands {
		root.AddCommand(c.newCommand(&commands[i]))
	}
	addCommonSettings(root)
	return root
}

// addCommonSettings sets up a command and its subcommands: a help flag, a usage line without cobra's [flags], and no arguments unless the
// command accepts them.
func addCommonSettings(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	if cmd.Args == nil && !cmd.DisableFlagParsing {
		cmd.Args = refuseArguments
	}
	if cmd.Flags().Lookup("help") == nil {
		cmd.Flags().BoolP("help", "h", false, "show this help")
	}
	for _, sub := range cmd.Commands() {
		addCommonSettings(sub)
	}
}

// NewGroup makes a command that has only subcommands. Without a subcommand it prints its help and exits with status 2.
func (c *Invocation) NewGroup(name, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: name + " COMMAND", Long: long, Example: example,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownWordError(cmd, "command", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Code = codeUsage
			return c.writeHelp(c.Std.Err, cmd)
		},
	}
}

// unknownWordError returns the error for an unknown word, with the most similar command as the hint.
func unknownWordError(cmd *cobra.Command, what, word string) error {
	hint := HelpHint(cmd) + ", which lists the commands"
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		hint = cmd.CommandPath() + " " + like[0]
	}
	return newUnknownWord(what, word, hint)
}

func newUnknownWord(what, word, hint string) error {
	return &sandbox.Error{
		Op: "command line", Kind: sandbox.ErrInvalid, Hint: hint,
		Err: fmt.Errorf("unknown %s %q", what, word),
	}
}

// CommandWords returns the name of a subcommand with those of the commands above it: image rm.
func CommandWords(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), CommandName+" ")
}

// HelpHint returns the hint of errors that points to a command's help.
func HelpHint(cmd *cobra.Command) string { return cmd.CommandPath() + " --help" }

func refuseArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &sandbox.Error{
		Op: CommandWords(cmd), Kind: sandbox.ErrInvalid, Hint: HelpHint(cmd),
		Err: fmt.Errorf("unexpected argument %q", args[0]),
	}
}

// flagError explains an invalid flag: its name, the cause, and the most similar flag.
func (c *Invocation) flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	e := &sandbox.Error{Op: "command line", Kind: sandbox.ErrInvalid, Err: err, Hint: HelpHint(cmd)}
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var required *pflag.ValueRequiredError
	switch {
	case errors.As(err, &value):
		f := value.GetFlag()
		e.Op, e.Err = fmt.Sprintf("--%s %q", f.Name, value.GetValue()), PlainCause(value.Unwrap())
		if strings.Contains(e.Err.Error(), strconv.Quote(value.GetValue())) {
			e.Op = "--" + f.Name // the cause has the value
		}
		if isFlag(cmd.Flags(), value.GetValue()) {
			e.Op, e.Err = "--"+f.Name, fmt.Errorf("it needs a value, and %s is a flag", value.GetValue())
		}
		e.Hint = hintOfFlag(f, e.Err, e.Hint)
	case errors.As(err, &unknown):
		if like := nearestFlag(cmd.Flags(), unknown.GetSpecifiedName()); like != "" && unknown.GetSpecifiedShortnames() == "" {
			e.Hint = "--" + like + ", or " + HelpHint(cmd)
		}
		return explainUnknownFlag(cmd, e)
	case errors.As(err, &required):
		f := required.GetFlag()
		value, _ := pflag.UnquoteUsage(f)
		e.Op, e.Err = "--"+f.Name, errors.New("it needs a value")
		e.Hint = hintOfFlag(f, e.Err, "--"+f.Name+" "+strings.ToUpper(cmp.Or(value, "value")))
	}
	return e
}

// PlainCause returns the cause of a sandbox.Error without its operation, for callers that name the operation themselves.
func PlainCause(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// reportFailure prints the error, as text or as JSON, and returns its exit code.
func (c *Invocation) reportFailure(err error) int {
	var done replacedError
	if errors.As(err, &done) {
		return int(done)
	}
	code := FailureCode(err)
	if c.format == "" {
		c.guessFormat()
	}
	if c.JSON || c.format == FormatJSON || c.format == FormatNDJSON {
		if c.writeResult(newFailureDocument(err, code)) != nil {
			return codeOurs
		}
		return code
	}
	c.PrintMessage(err.Error())
	return code
}

// PrintMessage prints a message of sandbox-run to standard error. It escapes control characters even if standard error is no terminal,
// because messages contain untrusted names.
func (c *Invocation) PrintMessage(message string) {
	fmt.Fprintf(c.Std.Err, "%s: %s\n", CommandName, indentText(message))
}

// FailureCode returns the exit code for an error.
func FailureCode(err error) int {
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Missing() {
		return codeNoProgram
	}
	return executor.FailureCode(err)
}

// failureDocument is the JSON document of a run that failed before there was a result. Its first fields have the names of those of a
// result, so that one program can read both.
type failureDocument struct {
	Success   bool               `json:"success"`
	Verdict   sandbox.Verdict    `json:"verdict"`
	ExitCode  int                `json:"exit_code"`
	Program   *int               `json:"program_exit_code"` // always null
	Stdout    string             `json:"stdout"`
	Stderr    string             `json:"stderr"`
	Isolation *sandbox.Isolation `json:"isolation,omitempty"` // of a refusal: the isolation that was available
	Error     *sandbox.ErrorInfo `json:"error"`
}

func newFailureDocument(err error, code int) failureDocument {
	doc := failureDocument{Verdict: executor.FailureVerdict(err), ExitCode: code, Error: DescribeError(err)}
	if doc.Error.Hint == "" {
		_, doc.Error.Hint, _ = wire.CutAdvice(doc.Error.Message)
	}
	var missing *toolchain.Missing
	if errors.As(err, &missing) {
		doc.Error.Code = "no_toolchain"
		if len(missing.Install) > 0 {
			doc.Error.Hint = missing.Install[0]
		}
	}
	var none *executor.NoImage
	if errors.As(err, &none) {
		if none.Missing == nil {
			doc.Error.Code, doc.Error.Hint = "no_image", none.How()
		}
	}
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Missing() {
		doc.Error.Code = problem.Code
	}
	var refusal *sandbox.Refusal
	if errors.As(err, &refusal) {
		doc.Isolation = &refusal.Got
	}
	var signal SignalCause
	if errors.As(err, &signal) {
		doc.Error.Code = string(sandbox.VerdictCancelled)
	}
	return doc
}

func (c *Invocation) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:  "version",
		Long: "Prints the version of this executable, the commit and the Go version that it was built with,\nand its platform.",
		RunE: func(*cobra.Command, []string) error { return c.printVersion() },
	}
}

func (c *Invocation) printVersion() error {
	_, err := fmt.Fprintln(c.Std.Out, c.executableName(), Version(debug.ReadBuildInfo()))
	return err
}

func (c *Invocation) executableName() string {
	if c.full != nil {
		return fullName
	}
	return CommandName
}

// Version formats build information: release or commit, Go version and platform. Its parameters are the results of debug.ReadBuildInfo.
func Version(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	if text == "" {
		text = "(devel)"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			text += " " + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			text += " modified"
		}
	}
	return fmt.Sprintf("%s %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}

// SignalCause is the signal that cancelled a run.
type SignalCause = sandbox.SignalCause

// interrupt is the signal of Ctrl-C.
const interrupt = SignalCause(syscall.SIGINT)

// CancelOnSignals handles SIGINT, SIGTERM, SIGHUP and SIGQUIT: the first signal cancels the context with a SignalCause, the second calls
// kill in a goroutine, and the third ends this process, even if a call blocks. The handler stays until the process ends.
func CancelOnSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	// With a handler of SIGPIPE, a write to a closed pipe returns an error. Without one, the signal ends this process before it has
	// removed the sandbox. The channel needs no reader.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	signals := make(chan os.Signal, 3)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // as under nohup, and in background jobs of scripts
			signal.Notify(signals, s)
		}
	}
	go func() {
		for count := 0; ; {
			s, ok := (<-signals).(syscall.Signal)
			if !ok {
				continue
			}
			switch count++; count {
			case 1:
				cancel(SignalCause(s))
			case 2:
				go kill()
			default:
				restoreTerminal()
				os.Exit(codeSignalBase + int(s))
			}
		}
	}()
	return ctx, cancel
}

// onSignals is CancelOnSignals with one handler per command: a second call replaces kill. A run that a server refuses makes that second
// call when it takes place here.
func (c *Invocation) onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	c.kill.Store(&kill)
	if c.signalled == nil {
		c.signalled, c.cancel = CancelOnSignals(func() {
			c.signalledTwice.Store(true)
			(*c.kill.Load())()
		})
	}
	return c.signalled, c.cancel
}
