package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// runOptions is the command line of a run.
type runOptions struct {
	boxOptions
	serverOptions
	lang    string
	code    string
	files   List
	exclude List
	include List
	entry   string
	compile sandbox.Limits
	in      List
	out     List
	setup   List
	lock    string // path
	noCache bool
	dryRun  bool
	// interactive: the program is the first piece of code of a session.
	interactive bool
	project     string // of that session

	workspace workspaceOptions
	template  string
	variables List

	selected selection
	program  *source
	inputs   []executor.File
	left     []leftOut // entries of --in that are not copied
	copyOuts []copyOut
}

// runName is the subcommand that does the same as the root command.
const runName = "run"

// newRun makes the subcommand run. It has no flags of its own: the root command parses its arguments, all of which are flags, code and
// arguments of the program.
func (c *Invocation) newRun() *cobra.Command {
	return &cobra.Command{
		Use: runName + " [flags] [FILE|DIR|-] [-- ARGUMENT...]", DisableFlagParsing: true,
		Long: "Runs code. sandbox-run does the same without this word, unless the first argument is the name of a\ncommand.",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if err := root.ParseFlags(args); err != nil {
				return root.FlagErrorFunc()(root, err)
			}
			if help, _ := root.Flags().GetBool("help"); help {
				return root.Help()
			}
			if err := root.PersistentPreRunE(root, nil); err != nil {
				return err
			}
			return root.RunE(root, root.Flags().Args())
		},
	}
}

const rootLong = `Runs untrusted code in a fresh Linux sandbox that is isolated and limited, and removed
afterwards. The program's output is passed on as it is printed; the exit code is the
program's own.

The code is a FILE, a DIRectory with a program, the text of --code, the files of --file,
or standard input (-). Unless the code is read from it, standard input is the program's.
Words after FILE and everything after -- are arguments of the program; flags before --
are flags of sandbox-run.`

const rootExample = `  sandbox-run --lang python --code 'print("hello")'
  sandbox-run --timeout 10 --memory 256m script.py
  sandbox-run script.py one -- --two
  sandbox-run project/ --entry tool.py
  echo 'print(input())' > ask.py; echo hi | sandbox-run ask.py
  sandbox-run --in data.csv --out '*.png:plots' plot.py
  sandbox-run --json script.py | jq .verdict

Exit codes:
  the program's own, or
  1    does not compile                 2    usage
  124  time or CPU limit                125  sandbox-run itself failed
  137  memory limit, or SIGKILL         126  refused by policy
  128+n  ended by signal n              127  the language is not installed
  130, 143  cancelled: Ctrl-C, SIGTERM`

// addRunFlags adds the flags of a run to the root command.
func (c *Invocation) addRunFlags(root *cobra.Command, version *bool) *runOptions {
	o := &runOptions{}
	FlagGroups{
		{"What is run", o.addCodeFlags}, {string(executor.GroupLimits), o.addLimitFlags}, {string(executor.GroupSees), o.addEnvironmentFlags},
		{string(executor.GroupStrength), o.addStrengthFlags}, {"Where it runs", o.addServerFlags},
		{string(executor.GroupOutput), func(fs *pflag.FlagSet) {
			o.addOutputFlags(fs, c)
			fs.BoolVarP(version, "version", "V", false, "print the version")
		}},
		{string(executor.GroupPackages), o.addPackageFlags},
		{string(executor.GroupLanguages), o.addLanguageFlags},
	}.AddTo(root)
	return o
}

func (o *runOptions) addCodeFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.lang, "lang", "l", "", "`language` (default detected by file names, #! lines and project files)")
	fs.VarP(&single{into: &o.code}, "code", "c", "the `code` itself")
	fs.VarP(&o.files, "file", "f", "a `file` with code; repeatable, the first is started")
	fs.StringVar(&o.entry, "entry", "", "`file` of the directory that starts the program")
	fs.Var(&o.exclude, "exclude", "leave out entries of a directory by a `pattern` as in .gitignore; repeatable")
	fs.Var(&o.include, "include", "copy entries by a `pattern` although .gitignore or a rule leaves them out; repeatable")
	fs.StringVar(&o.template, "template", "", "`name` of a template to fill in; the code is its variable \"code\"")
	fs.Var(&o.variables, "var", "set a variable of the template: `name=value`, or name=@file; repeatable")
	fs.BoolVar(&o.noCache, "no-cache", false, "do not use the compile cache")
	fs.BoolVarP(&o.interactive, "interactive", "i", false, "stay in a session after the code, as repl does")
	Annotate(fs.Lookup("interactive"), NoVariable, "true")
	addProjectFlag(fs, &o.project)
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would be done, and do nothing")
}

func (o *runOptions) addLimitFlags(fs *pflag.FlagSet) {
	o.boxOptions.addLimitFlags(fs)
	fs.Lookup("memory").Usage += "; Go and Rust start with 128m"
	fs.Lookup("pids").Usage += "; Java starts with 256"
	defaults := sandbox.DefaultCompileLimits()
	AddCompileLimits(fs, "", &o.compile, &defaults)
}

func (o *runOptions) addEnvironmentFlags(fs *pflag.FlagSet) {
	fs.Var(&o.in, "in", "copy `host[:dest]`, a file or directory, into /workspace; repeatable")
	fs.Var(&o.out, "out", "copy `pattern[:dir]` out of /workspace, into dir (default the current directory); repeatable")
	o.boxOptions.addEnvironmentFlags(fs)
	addFields(fs, executor.GroupCompiling, o.fields())
	o.workspace.addWorkspaceFlags(fs)
}

func (o *runOptions) addPackageFlags(fs *pflag.FlagSet) {
	addFields(fs, executor.GroupPackages, o.fields())
	fs.StringVar(&o.lock, "lock", "", "install what this `file` says; it is written if it is missing")
}

func (o *runOptions) addLanguageFlags(fs *pflag.FlagSet) {
	addFields(fs, executor.GroupLanguages, o.fields())
	fs.Var(&o.setup, "setup", "sql, postgres: a `file` to run first; repeatable")
}

// runRoot runs code: the work of the root command.
func (c *Invocation) runRoot(cmd *cobra.Command, o *runOptions, args []string) error {
	flags := cmd.Flags()
	// No arguments, on a terminal: print the help.
	if c.isBare() && IsTerminal(c.Std.In) {
		c.Code = codeUsage
		return c.writeHelp(c.Std.Err, cmd)
	}
	err := o.complete(c, flags)
	if err == nil {
		err = o.readProgram(c, cmd, args)
	}
	done := false
	if err == nil && !o.interactive && isOnCommandLine(flags, "project") {
		err = sandbox.Invalid("project", "it is for a session; add --interactive, or name the directory as the program")
	}
	if err == nil && o.interactive {
		return NameSource(flags, c.runInteractively(o, flags), HelpHint(cmd))
	}
	if err == nil {
		done, err = c.runRemotely(o, flags)
	}
	if err == nil && !done {
		err = c.executeHere(o)
	}
	if errors.Is(err, errNoCode) && c.isBare() {
		c.Code = codeUsage
		return c.writeHelp(c.Std.Err, cmd)
	}
	return NameSource(flags, err, HelpHint(cmd))
}

// isBare reports whether the command line has neither code nor flags.
func (c *Invocation) isBare() bool {
	return len(c.Args) == 0 || len(c.Args) == 1 && c.Args[0] == runName
}

// complete fills in the fields that depend on several flags, and checks their values.
func (o *runOptions) complete(c *Invocation, flags *pflag.FlagSet) error {
	if err := o.boxOptions.complete(c, flags); err != nil {
		return err
	}
	if err := o.serverOptions.complete(flags); err != nil {
		return err
	}
	for _, name := range []string{"lang", "entry", "template"} {
		if err := CheckNotEmpty(flags, name); err != nil {
			return err
		}
	}
	var err error
	if o.selected.exclude, err = readPatterns("exclude", o.exclude.Values); err != nil {
		return err
	}
	if o.selected.include, err = readPatterns("include", o.include.Values); err != nil {
		return err
	}
	if err := o.readLock(); err != nil {
		return err
	}
	for _, text := range o.in.Values {
		files, left, err := readInput(text, o.selected)
		if err != nil {
			return err
		}
		o.inputs = append(o.inputs, files...)
		o.left = append(o.left, left...)
	}
	for _, text := range o.setup.Values {
		file, err := readSetup(text)
		if err != nil {
			return err
		}
		o.inputs = append(o.inputs, file)
		o.options.Setup = append(o.options.Setup, file.Path)
	}
	for _, text := range o.out.Values {
		b, err := readCopyOut(text)
		if err != nil {
			return err
		}
		o.copyOuts = append(o.copyOuts, b)
	}
	return o.checkWorkspace(flags)
}

// request returns the command line as a request to the executor.
func (o *runOptions) request() executor.Request {
	req := executor.Request{
		Language: o.lang, Code: o.program.code, Name: o.program.name, Files: o.program.files, Entry: o.program.entry,
		Image: o.image, Args: o.program.args, Stdin: o.program.stdin, Env: o.environ,
		HostDir: o.program.hostDir, Limits: o.limits, CompileLimits: o.compile, Policy: o.policy, Options: o.options,
		Inputs: o.inputs, NoCache: o.noCache,
	}
	if f := o.program.variables; f != nil {
		req.Template, req.Variables = f.template, f.values
	}
	for _, b := range o.copyOuts {
		req.Outputs.Patterns = append(req.Outputs.Patterns, b.pattern)
	}
	return req
}

// commandOrFile names the first word of a command line in errors.
const commandOrFile = "command or file"

// explainUnknownFlag adds a hint to the error of an unknown flag. The flag is probably the program's, or that of a misspelt subcommand.
func explainUnknownFlag(root *cobra.Command, err *sandbox.Error) error {
	words := root.Flags().Args()
	if root.HasParent() || len(words) == 0 {
		return err
	}
	if !pathExists(words[0]) && words[0] != StdinName {
		return unknownCommandOrFile(root, words)
	}
	if nearest, _, _ := strings.Cut(err.Hint, ","); !strings.HasPrefix(nearest, "--") {
		err.Hint = fmt.Sprintf("sandbox-run %s -- …, if it is the program's", words[0])
	}
	return err
}

// executeHere runs the program in this process, prints its output and its summary, and sets c.Code. It returns an error only if
// sandbox-run itself fails.
func (c *Invocation) executeHere(o *runOptions) error {
	s, err := c.openRunEnvironment(&o.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	show, streams := c.connectOutput(s.ctx, &o.boxOptions, s.stop)
	onPrepare := func(what string) func() {
		show.wait.Start(what)
		return show.wait.End
	}
	engine, err := app.NewExecutor(s.manager, app.ExecutorOptions{Audit: s.log, EntryPoint: audit.EntryCLI, OnPrepare: onPrepare,
		Registries: registries{c}})
	if err != nil {
		return err
	}
	req := o.request()
	if o.dryRun {
		var plan *executor.Plan
		err := c.withPulledImage(s.ctx, &o.boxOptions, func() {}, func() (err error) {
			plan, err = engine.Plan(s.ctx, req)
			return err
		})
		if err != nil {
			return nameSignal(s.ctx, err)
		}
		if note := noteLeftOut(slices.Concat(o.program.left, o.left), true); note != "" {
			plan.Notes = append(plan.Notes, note)
		}
		return c.printPlan(plan, o.backend)
	}
	leave, err := o.enterWorkspace(s, &req)
	if err != nil {
		return nameSignal(s.ctx, err)
	}
	defer func() { _ = leave() }() // for early returns; the call below reports its error
	streams.Stdin = req.Stdin
	var returnTerminal func()
	req.TTY, returnTerminal = c.attachTerminal(&o.boxOptions, &streams)
	defer returnTerminal()
	req.Stdin, req.OnEvent, req.Spill, req.Resize = streams.Stdin, streams.OnEvent, streams.Spill, streams.Resize
	req.OutputSpace = streams.OutputSpace

	var ready *wire.Ready
	req.OnReady = func(p *executor.Plan, i sandbox.Isolation) {
		ready = &wire.Ready{Language: p.Language, Version: p.Version, Image: p.Spec.Root.From.Reference, Isolation: i}
	}
	if c.hasHeader(&o.boxOptions) {
		show.header = func() string { return c.formatHeader(ready) }
	}
	show.wait.Start("preparing")
	var result *executor.Result
	err = c.withPulledImage(s.ctx, &o.boxOptions, show.wait.End, func() (err error) {
		result, err = engine.Execute(s.ctx, req)
		return err
	})
	returnTerminal()
	show.finish()
	left := errors.Join(s.release(), leave())
	if failed := new(workspace.UnwatchedError); errors.As(context.Cause(s.ctx), &failed) {
		return errors.Join(failed.Err, left)
	}
	if err != nil {
		return errors.Join(nameSignal(s.ctx, err), left)
	}
	result.Notes = appendNotes(result.Notes, left, s.unlogged)
	return c.presentResult(s, o, result, show, s.manager.Machine())
}

// presentResult copies the output files of a run to the host, prints its result and sets c.Code.
func (c *Invocation) presentResult(s *runEnvironment, o *runOptions, result *executor.Result, show *outputPrinter,
	m sandbox.Machine) error {
	if o.noStream {
		c.printWhole(&o.boxOptions, &result.Result, show, result.Phases...)
	}
	if note := noteLeftOut(slices.Concat(o.program.left, o.left), false); note != "" {
		result.Notes = append(result.Notes, note)
	}
	if hint := o.hintMissingFile(result); hint != "" {
		result.Notes = append(result.Notes, hintNote+hint)
	}
	copied := o.copyFilesOut(result.Files, c.format != FormatText)
	if err := o.writeLock(result.Deps); err != nil {
		result.Notes = append(result.Notes, cleanupNote+err.Error())
		copied.failed = true
	}
	if copied.failed && result.ExitCode() == 0 {
		result.Code = codeOurs
	}
	return c.concludeRun(s, &o.boxOptions, &result.Result, result, show, &outcome{
		noun: "program", diagnosis: result.Diagnosis, headed: show.headed, phases: result.Phases, machine: m, whole: !o.noStream,
		wrote: copied.written, lost: copied.lost,
	})
}

// hasHeader reports whether runs have a header: standard error is a terminal.
func (c *Invocation) hasHeader(o *boxOptions) bool {
	return c.format == FormatText && !o.quiet && IsTerminal(c.Std.Err)
}

// formatHeader returns language, image and tier of the run that begins. It is empty while its sandbox is not made.
func (c *Invocation) formatHeader(ready *wire.Ready) string {
	if ready == nil {
		return ""
	}
	text := ready.Language
	if ready.Version != "" {
		text += " " + ready.Version
	}
	if ready.Image != "" {
		text += " · image " + ready.Image
	}
	text += " · " + tierText(ready.Isolation)
	return c.Palette(c.Std.Err).Dim(EscapeText(text))
}

// writeKept writes a kept output. On a terminal, a notice stands in place of dropped bytes.
func (l *outputPrinter) writeKept(to *sink, o sandbox.Output) {
	head := o.HeadLen()
	notice := func() {
		if o.Truncated() && to.terminal {
			l.writeTo(to, fmt.Appendf(nil, "\n… %d bytes are left out here …\n", o.Dropped))
		}
		head = -1
	}
	_, err := o.WriteTo(writerFunc(func(b []byte) (int, error) {
		n := max(0, min(head, int64(len(b))))
		l.writeTo(to, b[:n])
		if head -= n; head == 0 {
			notice()
		}
		l.writeTo(to, b[n:])
		return len(b), nil
	}))
	if head == 0 {
		notice()
	}
	l.keepFailure(err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// printWhole prints the kept output after the end of the run: standard output, then standard error.
func (c *Invocation) printWhole(o *boxOptions, r *sandbox.Result, show *outputPrinter, phases ...executor.PhaseResult) {
	if c.format != FormatText {
		return
	}
	show.out, show.err = c.newSinks(o)
	for _, p := range phases {
		if p.Name != r.Phase { // warnings of the compiler about a program that ran
			show.writeTo(show.err, []byte(p.Stdout+p.Stderr))
		}
	}
	stdout := show.out
	if r.Phase != executor.PhaseRun {
		stdout = show.err
	}
	for _, stream := range []struct {
		to  *sink
		out sandbox.Output
	}{{stdout, r.Stdout}, {show.err, r.Stderr}} {
		show.writeKept(stream.to, stream.out)
	}
	show.flushSinks()
}
