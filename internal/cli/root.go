package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Exit codes that are ours, not the program's.
const (
	CodeUnhealthy   = 1   // doctor: the default tier is not available; audit verify: the chain does not hold
	codeUsage       = 2   // the request itself is wrong
	codeOurs        = 125 // sandbox-run failed
	codeRefused     = 126 // refused by policy; also a program that can not be executed, as in shells
	codeNoProgram   = 127 // a program that does not exist, as in shells; also a language that is not installed
	codeSignalBase  = 128
	CodeBrokenPipe  = codeSignalBase + 13
	CommandName     = "sandbox-run"
	fullName        = "sandbox-rund"
	environmentStem = "SANDBOX_RUN_"
)

// Streams are what the command talks through.
type Streams struct{ In, Out, Err *os.File }

// Invocation is one invocation of the command.
type Invocation struct {
	Args []string
	Std  Streams
	full *Full  // what this executable has beyond the thin one; nil is the thin one
	from string // version of the executable that handed over to us
	back string // its path, if it can do without us
	Code int    // the exit code when nothing failed
	JSON bool   // results and failures are JSON documents on stdout

	format string // of what is printed: one of the forms; empty until it is known
	colour string // when to use it; empty is auto
	seq    uint64 // of the last event that was written

	local *localServer // the local server; nil is none, or it was not looked for

	// What onSignals has made; nil before that.
	signalled context.Context //nolint:containedctx // of the whole command
	cancel    context.CancelCauseFunc
	kill      atomic.Pointer[func()]

	chosen *openedBackend    // a backend that was chosen before the code was read; nil is none
	ahead  *app.EarlyBackend // where a sandbox will be needed; or nil
}

// Main is the whole of the thin executable: it ends the process.
func Main() { start(nil) }

// MainFull is the whole of the full one.
func MainFull(f Full) { start(&f) }

func start(full *Full) {
	os.Exit(run(full, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// Run executes a command line in this process and returns the exit code; without full it is the thin executable's.
func Run(full *Full, args []string, std Streams) int { return run(full, args, std) }

// run is the whole command; it returns the exit code.
func run(full *Full, args []string, std Streams) int {
	c := &Invocation{Args: args, Std: std, full: full}
	c.from, c.back = takeOver()
	if err := c.sameVersion(); err != nil {
		return c.fail(err)
	}
	a := scanArguments(args, os.Getenv)
	if err := c.handOverScanned(a); err != nil {
		return c.fail(err)
	}
	if a.localServer {
		c.local = findLocalServer()
		defer func() { c.local.close() }()
	}
	if a.sandbox && c.local == nil {
		app.Warm()
	}
	if a.native && c.local == nil {
		c.ahead = app.OpenEarly()
		defer c.ahead.Close() // if no sandbox was needed, neither is its error
	}
	root := c.newRoot()
	if a.completion && c.full != nil {
		c.full.Complete(root)
	}
	root.SetArgs(args)
	defer c.closeChosen()
	if err := root.Execute(); err != nil {
		return c.fail(err)
	}
	return c.Code
}

func (c *Invocation) newRoot() *cobra.Command {
	var version bool
	var o *runOptions
	root := &cobra.Command{
		Use:           CommandName + " [flags] [FILE|DIR|-] [-- ARGUMENT...]",
		Short:         "Run code nobody has vouched for, in fresh sandboxes",
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
		// Flags left open are read from the environment before any command runs. Then it is known who has to run it.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
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
		if cmd.DisableFlagParsing { // the full executable has the text
			err = cmd.RunE(cmd, nil)
		} else {
			err = c.writeHelp(c.Std.Out, cmd)
		}
		if err != nil {
			c.Code = c.fail(err)
		}
	})
	for i := range commands {
		root.AddCommand(c.newCommand(&commands[i]))
	}
	completeTree(root)
	return root
}

// completeTree gives every command what all have: a help flag that is described in our words, a usage line without [flags] of cobra's,
// and no arguments unless it says otherwise.
func completeTree(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	if cmd.Args == nil && !cmd.DisableFlagParsing {
		cmd.Args = noArguments
	}
	if cmd.Flags().Lookup("help") == nil {
		cmd.Flags().BoolP("help", "h", false, "show this text")
	}
	for _, sub := range cmd.Commands() {
		completeTree(sub)
	}
}

// NewGroup is a command that only has commands of its own. Alone it explains itself, as the root does.
func (c *Invocation) NewGroup(name, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: name + " COMMAND", Long: long, Example: example,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownWord(cmd, "command", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Code = codeUsage
			return c.writeHelp(c.Std.Err, cmd)
		},
	}
}

// unknownWord is the error for a word that is none of what it should be, with what was probably meant.
func unknownWord(cmd *cobra.Command, what, word string) error {
	hint := HelpHint(cmd) + ", which lists the commands"
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		hint = cmd.CommandPath() + " " + like[0]
	}
	return unknownWordError(what, word, hint)
}

func unknownWordError(what, word, hint string) error {
	return &sandbox.Error{
		Op: "command line", Kind: sandbox.ErrInvalid, Hint: hint,
		Err: fmt.Errorf("unknown %s %q", what, word),
	}
}

// CommandWords is the name of a subcommand with those of the commands above it: image rm.
func CommandWords(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), CommandName+" ")
}

func HelpHint(cmd *cobra.Command) string { return cmd.CommandPath() + " --help" }

// noArguments is for commands that take none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &sandbox.Error{
		Op: CommandWords(cmd), Kind: sandbox.ErrInvalid, Hint: HelpHint(cmd),
		Err: fmt.Errorf("unexpected argument %q", args[0]),
	}
}

// flagError says which flag was wrong and why, and what was probably meant.
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
		return misplaced(cmd, e)
	case errors.As(err, &required):
		f := required.GetFlag()
		value, _ := pflag.UnquoteUsage(f)
		e.Op, e.Err = "--"+f.Name, errors.New("it needs a value")
		e.Hint = hintOfFlag(f, e.Err, "--"+f.Name+" "+strings.ToUpper(cmp.Or(value, "value")))
	}
	return e
}

// PlainCause strips what an error says about its place, where we say it better.
func PlainCause(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// fail reports our own failure and returns the exit code that belongs to it.
func (c *Invocation) fail(err error) int {
	var done replaced
	if errors.As(err, &done) {
		return int(done)
	}
	code := FailureCode(err)
	if c.format == "" {
		c.guessFormat()
	}
	if c.JSON || c.format == FormatJSON || c.format == FormatNDJSON {
		if c.writeResult(failure(err, code)) != nil {
			return codeOurs
		}
		return code
	}
	c.Complain(err.Error())
	return code
}

// Complain writes a message of ours. Names that came from outside can be anything, so control characters are escaped even where standard
// error is no terminal.
func (c *Invocation) Complain(message string) {
	fmt.Fprintf(c.Std.Err, "%s: %s\n", CommandName, indented(message))
}

func FailureCode(err error) int {
	var signal SignalCause
	var missing *toolchain.Missing
	var none *executor.NoImage
	var problem *client.Problem
	switch {
	case errors.As(err, &problem) && problem.Missing():
		return codeNoProgram
	case errors.As(err, &signal):
		return codeSignalBase + int(signal)
	case errors.As(err, &missing), errors.As(err, &none), errors.Is(err, sandbox.ErrNotStarted) && errors.Is(err, fs.ErrNotExist):
		return codeNoProgram
	case errors.Is(err, sandbox.ErrNotStarted), errors.Is(err, sandbox.ErrRefused), errors.Is(err, sandbox.ErrUnsupported):
		return codeRefused
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrNotFound),
		errors.Is(err, image.ErrNotFound), errors.Is(err, image.ErrAmbiguous):
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
	doc := failureDocument{Verdict: sandbox.VerdictInternalError, ExitCode: code, Error: DescribeError(err)}
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
		doc.Verdict, doc.Error.Code = sandbox.VerdictCancelled, string(sandbox.VerdictCancelled)
	}
	return doc
}

func (c *Invocation) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:  "version",
		RunE: func(*cobra.Command, []string) error { return c.printVersion() },
	}
}

func (c *Invocation) printVersion() error {
	_, err := fmt.Fprintln(c.Std.Out, c.executable(), Version(debug.ReadBuildInfo()))
	return err
}

// executable is the name of the one that runs.
func (c *Invocation) executable() string {
	if c.full != nil {
		return fullName
	}
	return CommandName
}

// Version is what the build knows of itself: a release, or the commit it was made from.
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
type SignalCause syscall.Signal

func (s SignalCause) Error() string {
	name := map[syscall.Signal]string{syscall.SIGINT: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT"}[syscall.Signal(s)]
	return "cancelled by " + name
}

// CancelOnSignals ends a run in three steps: the first SIGINT, SIGTERM, SIGHUP or SIGQUIT cancels the context,
// which ends the program gracefully; the second calls kill; the third ends us, and the sandbox
// with us, in case something is stuck. The listener stays until the process ends.
func CancelOnSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	// With a reader of SIGPIPE, writing to a closed pipe is an error like any other; without one
	// it would end us with the sandbox still standing. The channel needs no reader.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	signals := make(chan os.Signal, 3)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // nohup, and background jobs of scripts, ask to be left alone
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

// onSignals is CancelOnSignals for a run, which may begin at a server and go on here: a command has one listener, and a second call
// replaces kill.
func (c *Invocation) onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	c.kill.Store(&kill)
	if c.signalled == nil {
		c.signalled, c.cancel = CancelOnSignals(func() { (*c.kill.Load())() })
	}
	return c.signalled, c.cancel
}
