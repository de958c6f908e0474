package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Exit codes that are ours, not the program's.
const (
	codeUnhealthy   = 1   // doctor: the default tier is not available; audit verify: the chain does not hold
	codeUsage       = 2   // the request itself is wrong
	codeOurs        = 125 // sandbox-run failed
	codeRefused     = 126 // refused by policy; also a program that can not be executed, as in shells
	codeNoProgram   = 127 // a program that does not exist, as in shells; also a language that is not installed
	codeSignalBase  = 128
	codeBrokenPipe  = codeSignalBase + 13
	commandName     = "sandbox-run"
	fullName        = "sandbox-rund"
	environmentStem = "SANDBOX_RUN_"
)

// streams are what the command talks through.
type streams struct{ in, out, err *os.File }

// cli is one invocation of the command.
type cli struct {
	args []string
	std  streams
	full *Full  // what this executable has beyond the thin one; nil is the thin one
	from string // version of the executable that handed over to us
	back string // its path, if it can do without us
	code int    // the exit code when nothing failed
	json bool   // results and failures are JSON documents on stdout

	format string // of what is printed: one of the forms; empty until it is known
	colour string // when to use it; empty is auto
	seq    uint64 // of the last event that was written

	near *near // the user's own server; nil is none, or nobody has looked

	// What onSignals has made; nil before that.
	signalled context.Context //nolint:containedctx // of the whole command
	cancel    context.CancelCauseFunc
	kill      atomic.Pointer[func()]

	scouted *opened           // a backend that was chosen before the command line was read; nil is none
	ahead   *app.EarlyBackend // where a sandbox will be needed; or nil
}

// Main is the whole of the thin executable: it ends the process.
func Main() { start(nil) }

// MainFull is the whole of the full one.
func MainFull(f Full) { start(&f) }

func start(full *Full) {
	os.Exit(run(full, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// run is the whole command; it returns the exit code.
func run(full *Full, args []string, std streams) int {
	c := &cli{args: args, std: std, full: full}
	c.from, c.back = takeOver()
	if err := c.sameVersion(); err != nil {
		return c.fail(err)
	}
	if runsSomething(args) && mayUseNear(args) {
		c.near = findNear()
		defer func() { c.near.close() }()
	}
	if runsSomething(args) && c.near == nil {
		app.Warm()
	}
	if runsByDefault(args) && c.near == nil {
		c.ahead = app.OpenEarly()
		defer c.ahead.Close() // nobody needed it, and nobody waits to hear what became of it
	}
	root := c.newRoot()
	if completes(args) {
		addCompletions(root)
	}
	root.SetArgs(args)
	defer c.dismiss()
	if err := root.Execute(); err != nil {
		return c.fail(err)
	}
	return c.code
}

func (c *cli) newRoot() *cobra.Command {
	var version bool
	var o *runOptions
	root := &cobra.Command{
		Use:                   commandName + " [flags] [FILE|DIR|-] [-- ARGUMENT...]",
		Short:                 "Run code nobody has vouched for, in fresh sandboxes",
		Long:                  rootLong,
		Example:               rootExample,
		DisableFlagsInUseLine: true,
		SilenceErrors:         true, // fail reports them, as text or as JSON
		SilenceUsage:          true, // an error names the command that explains more
		Args:                  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return c.printVersion()
			}
			return c.run(cmd, o, args)
		},
		// Flags left open are read from the environment before any command runs. Then it is known who has to run it.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags(), os.LookupEnv, helpHint(cmd)); err != nil {
				return err
			}
			return c.handOver(cmd)
		},
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	o = c.addRunFlags(root, &version)
	root.SetOut(c.std.out)
	root.SetErr(c.std.err)
	root.SetFlagErrorFunc(c.flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := c.writeHelp(c.std.out, cmd); err != nil {
			c.code = codeOurs
		}
	})
	root.AddCommand(
		c.newExec(), c.newLanguages(), c.newTemplate(), c.newAudit(), c.newReceipt(), c.newWorkspace(), c.newImage(), c.newServe(), c.newKey(), c.newSetup(), c.newDoctor(), c.newGC(),
		c.newCompletion(), c.newMan(), c.newVersion(),
	)
	addHelp(root)
	return root
}

// addHelp gives every command its help flag, described in our words.
func addHelp(cmd *cobra.Command) {
	if cmd.Flags().Lookup("help") == nil {
		cmd.Flags().BoolP("help", "h", false, "show this text")
	}
	for _, sub := range cmd.Commands() {
		addHelp(sub)
	}
}

// newGroup is a command that only has commands of its own. Alone it explains itself, as the root does.
func (c *cli) newGroup(name, short, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: name + " COMMAND", Short: short, Long: long, Example: example, DisableFlagsInUseLine: true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownWord(cmd, "command", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.code = codeUsage
			return c.writeHelp(c.std.err, cmd)
		},
	}
}

// unknownWord is the error for a word that is none of what it should be, with what was probably meant.
func unknownWord(cmd *cobra.Command, what, word string) error {
	hint := helpHint(cmd)
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		hint = cmd.CommandPath() + " " + like[0]
	}
	return &sandbox.Error{
		Op: "command line", Kind: sandbox.ErrInvalid, Hint: hint,
		Err: fmt.Errorf("unknown %s %q", what, word),
	}
}

// runsSomething guesses, before anything is read, whether a sandbox will be needed. A wrong guess costs a little work.
func runsSomething(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "doctor", "gc", "version", "help", "completion", "man", "languages", "audit", "receipt", "workspace", "template", "image", "setup", "serve", "key", "-h", "--help", "--version":
		return false
	}
	return !completes(args) && !mentionsElsewhere(args)
}

// runsByDefault guesses whether that sandbox is one of the default backend, so that it can be begun while the command line is read.
func runsByDefault(args []string) bool {
	other := func(arg string) bool {
		return arg == "-h" || arg == "--help" || arg == "--version" || strings.HasPrefix(arg, "--backend") || strings.HasPrefix(arg, "--runtime") || strings.HasPrefix(arg, "--require")
	}
	return runsSomething(args) && os.Getenv(environmentStem+"BACKEND") == "" && !slices.ContainsFunc(beforeDashes(args), other)
}

func helpHint(cmd *cobra.Command) string { return cmd.CommandPath() + " --help" }

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
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	e := &sandbox.Error{Op: "command line", Kind: sandbox.ErrInvalid, Err: err, Hint: helpHint(cmd)}
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		e.Op, e.Err = fmt.Sprintf("--%s %q", value.GetFlag().Name, value.GetValue()), plainCause(value.Unwrap())
	case errors.As(err, &unknown):
		if like := nearestFlag(cmd.Flags(), unknown.GetSpecifiedName()); like != "" && unknown.GetSpecifiedShortnames() == "" {
			e.Hint = "--" + like + ", or " + helpHint(cmd)
		}
		return misplaced(cmd, e)
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
	var done replaced
	if errors.As(err, &done) {
		return int(done)
	}
	code := failureCode(err)
	if c.format == "" {
		c.guessFormat()
	}
	if c.json || c.format == formatJSON || c.format == formatNDJSON {
		if c.writeResult(failure(err, code)) != nil {
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
	fmt.Fprintf(c.std.err, "%s: %s\n", commandName, indented(message))
}

func failureCode(err error) int {
	var signal signalCause
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
	doc := failureDocument{Verdict: sandbox.VerdictInternalError, ExitCode: code, Error: describe(err)}
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
	var signal signalCause
	if errors.As(err, &signal) {
		doc.Verdict, doc.Error.Code = sandbox.VerdictCancelled, string(sandbox.VerdictCancelled)
	}
	return doc
}

func (c *cli) newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which version this is", Args: noArguments, DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error { return c.printVersion() },
	}
}

func (c *cli) printVersion() error {
	_, err := fmt.Fprintln(c.std.out, c.executable(), version(debug.ReadBuildInfo()))
	return err
}

// executable is the name of the one that runs.
func (c *cli) executable() string {
	if c.full != nil {
		return fullName
	}
	return commandName
}

// version is what the build knows of itself: a release, or the commit it was made from.
func version(info *debug.BuildInfo, ok bool) string {
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

// signalCause is the signal that cancelled a run.
type signalCause syscall.Signal

func (s signalCause) Error() string {
	name := map[syscall.Signal]string{syscall.SIGINT: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT"}[syscall.Signal(s)]
	return "cancelled by " + name
}

// onSignals ends a run in three steps: the first SIGINT, SIGTERM, SIGHUP or SIGQUIT cancels the context,
// which ends the program gracefully; the second calls kill; the third ends us, and the sandbox
// with us, in case something is stuck. Cancelling with any cause ends the listening too.
func onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	// With a reader of SIGPIPE, writing to a closed pipe is an error like any other; without one
	// it would end us with the sandbox still standing. Nobody needs to read the channel.
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
				cancel(signalCause(s))
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

// onSignals is for a run, which may begin at a server and go on here: there is one listener to a command, and whoever asks again only has another
// kill.
func (c *cli) onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	c.kill.Store(&kill)
	if c.signalled == nil {
		c.signalled, c.cancel = onSignals(func() { (*c.kill.Load())() })
	}
	return c.signalled, c.cancel
}
