package cli

import (
	"context"
	"errors"
	"fmt"
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
	entry   string
	compile sandbox.Limits
	in      List
	out     List
	setup   List
	noCache bool
	dryRun  bool

	workspace workspaceOptions
	template  string
	variables List

	program  *source
	inputs   []executor.File
	copyOuts []copyOut
}

const rootLong = `Runs code that nobody has vouched for in a fresh Linux sandbox: isolated, limited,
watched, and gone afterwards. What it prints is passed on while it prints it; the exit
code is its own.

The code is a FILE, a DIRectory with a program in it, what --code or --file say, or
standard input (-). When it comes from elsewhere, standard input is the program's.
What follows FILE, and everything after --, are the program's arguments; flags before
-- are ours.`

const rootExample = `  sandbox-run --lang python --code 'print("hello")'
  sandbox-run --timeout 10 --memory 256m script.py
  sandbox-run script.py one -- --two
  sandbox-run project/ --entry tool.py
  echo 'print(input())' > ask.py; echo hi | sandbox-run ask.py
  sandbox-run --in data.csv --out '*.png:plots' plot.py
  sandbox-run --json script.py | jq .verdict

Exit codes:
  the program's own, or
  1    it does not compile              2    usage
  124  time or CPU limit                125  sandbox-run itself failed
  137  memory limit, or SIGKILL         126  refused by policy
  128+n  ended by signal n              127  the language is not installed
  130, 143  cancelled: Ctrl-C, SIGTERM`

// addRunFlags gives the root command what it needs to run code.
func (c *Invocation) addRunFlags(root *cobra.Command, version *bool) *runOptions {
	o := &runOptions{}
	FlagGroups{
		{"What is run", o.codeFlags}, {string(executor.GroupLimits), o.limitFlags}, {string(executor.GroupSees), o.worldFlags},
		{string(executor.GroupStrength), o.strengthFlags}, {"Where it runs", o.serverFlags}, {"Input and output", func(fs *pflag.FlagSet) {
			o.outputFlags(fs, c)
			fs.BoolVar(version, "version", false, "say which version this is")
		}},
		{string(executor.GroupLanguages), o.languageFlags},
	}.AddTo(root)
	return o
}

func (o *runOptions) codeFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.lang, "lang", "l", "", "`language`; found out from names, #! lines and project files without it")
	fs.VarP(&single{into: &o.code}, "code", "c", "the `code` itself")
	fs.VarP(&o.files, "file", "f", "a `file` with code; of several, the first is started")
	fs.StringVar(&o.entry, "entry", "", "`file` of a directory that starts the program")
	fs.StringVar(&o.template, "template", "", "`name` of a template to fill in; the code is its variable code")
	fs.Var(&o.variables, "var", "set a variable of the template: `name=value`, or name=@file; repeatable")
	fs.BoolVar(&o.noCache, "no-cache", false, "compile even what was compiled before, and keep nothing")
	fs.BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

func (o *runOptions) limitFlags(fs *pflag.FlagSet) {
	o.boxOptions.limitFlags(fs)
	fs.Lookup("memory").Usage += "; Go and Rust start with 128m"
	fs.Lookup("pids").Usage += "; Java starts with 256"
	defaults := sandbox.DefaultCompileLimits()
	AddCompileLimits(fs, "", &o.compile, &defaults)
}

func (o *runOptions) worldFlags(fs *pflag.FlagSet) {
	fs.Var(&o.in, "in", "copy `host[:dest]`, a file or directory, into /workspace; repeatable")
	fs.Var(&o.out, "out", "bring `pattern[:dir]` back out of /workspace, into dir or here; repeatable")
	o.boxOptions.worldFlags(fs)
	o.workspace.workspaceFlags(fs)
}

func (o *runOptions) languageFlags(fs *pflag.FlagSet) {
	addFields(fs, executor.GroupLanguages, o.fields())
	fs.Var(&o.setup, "setup", "sql, postgres: a `file` to run first; repeatable")
}

// runRoot is the root command with code to run.
func (c *Invocation) runRoot(cmd *cobra.Command, o *runOptions, args []string) error {
	flags := cmd.Flags()
	// No arguments, on a terminal: print the help.
	if len(c.Args) == 0 && IsTerminal(c.Std.In) {
		c.Code = codeUsage
		return c.writeHelp(c.Std.Err, cmd)
	}
	err := o.complete(c, flags)
	if err == nil {
		err = o.readProgram(c, cmd, args)
	}
	done := false
	if err == nil {
		done, err = c.runRemotely(o, flags)
	}
	if err == nil && !done {
		err = c.executeHere(o)
	}
	if errors.Is(err, errNothing) && len(c.Args) == 0 {
		c.Code = codeUsage
		return c.writeHelp(c.Std.Err, cmd)
	}
	return NameSource(flags, err, HelpHint(cmd))
}

// complete reads what can only be read once all flags are known.
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
	for _, text := range o.in.Values {
		files, err := readInput(text)
		if err != nil {
			return err
		}
		o.inputs = append(o.inputs, files...)
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

// request is the command line as the engine reads it.
func (o *runOptions) request() executor.Request {
	req := executor.Request{
		Language: o.lang, Code: o.program.code, Name: o.program.name, Files: o.program.files, Entry: o.program.entry,
		Image: o.image, Args: o.program.args, Stdin: o.program.stdin, Env: o.environ,
		Limits: o.limits, CompileLimits: o.compile, Policy: o.policy, Options: o.options, Inputs: o.inputs, NoCache: o.noCache,
	}
	if f := o.program.variables; f != nil {
		req.Template, req.Variables = f.template, f.values
	}
	for _, b := range o.copyOuts {
		req.Outputs.Patterns = append(req.Outputs.Patterns, b.pattern)
	}
	return req
}

// commandOrFile is what the first word should be.
const commandOrFile = "command or file"

// misplaced explains a flag that is not ours and was probably meant for the program, or for a command with a typing error in it.
func misplaced(root *cobra.Command, err *sandbox.Error) error {
	words := root.Flags().Args()
	if root.HasParent() || len(words) == 0 {
		return err
	}
	if !exists(words[0]) && words[0] != StdinName {
		return unknownCommandOrFile(root, words)
	}
	if nearest, _, _ := strings.Cut(err.Hint, ","); !strings.HasPrefix(nearest, "--") {
		err.Hint = fmt.Sprintf("sandbox-run %s -- …, if it is the program's", words[0])
	}
	return err
}

// executeRemotely runs the program, shows what it prints and what became of it, and leaves the exit code in c.code. Its error is
// for failures of ours.
func (c *Invocation) executeHere(o *runOptions) error {
	s, err := c.openRunEnvironment(&o.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	show, streams := c.connectOutput(&o.boxOptions, s.stop)
	engine, err := app.NewExecutor(s.manager, app.ExecutorOptions{Audit: s.log, EntryPoint: audit.EntryCLI, OnPrepare: func(what string) func() {
		show.wait.Start(what)
		return show.wait.End
	}})
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
		return c.printPlan(plan, o.backend)
	}
	leave, err := o.enterWorkspace(s, &req)
	if err != nil {
		return nameSignal(s.ctx, err)
	}
	defer func() { _ = leave() }() // twice is fine; what went wrong is said below
	streams.Stdin = req.Stdin
	var takeBack func()
	req.TTY, takeBack = c.lendTerminal(&o.boxOptions, &streams)
	defer takeBack()
	req.Stdin, req.OnEvent, req.Spill, req.Resize = streams.Stdin, streams.OnEvent, streams.Spill, streams.Resize
	req.OutputSpace = streams.OutputSpace

	var ready *wire.Ready
	req.OnReady = func(p *executor.Plan, i sandbox.Isolation) {
		ready = &wire.Ready{Language: p.Language, Version: p.Version, Image: p.Spec.Root.From.Reference, Isolation: i}
	}
	show.begin = func() { c.printHeader(o, ready) }
	show.wait.Start("preparing")
	var result *executor.Result
	err = c.withPulledImage(s.ctx, &o.boxOptions, show.wait.End, func() (err error) {
		result, err = engine.Execute(s.ctx, req)
		return err
	})
	takeBack()
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

// presentResult shows what became of a program, wherever it was run, and brings its files back.
func (c *Invocation) presentResult(s *runEnvironment, o *runOptions, result *executor.Result, show *outputPrinter,
	m sandbox.Machine) error {
	if o.noStream {
		c.printWhole(&o.boxOptions, &result.Result, show, result.Phases...)
	}
	brought := o.copyFilesOut(result.Files, c.format != FormatText)
	err := c.concludeRun(s, &o.boxOptions, &result.Result, result, show, &outcome{
		noun: "program", headed: true, phases: result.Phases, machine: m, whole: !o.noStream, wrote: brought.written, lost: brought.lost,
	})
	if brought.failed && c.Code == 0 {
		c.Code = codeOurs
	}
	return err
}

// printHeader tells a person what is about to run, and behind which walls.
func (c *Invocation) printHeader(o *runOptions, ready *wire.Ready) {
	if c.format != FormatText || o.quiet || !IsTerminal(c.Std.Err) || ready == nil {
		return
	}
	text := ready.Language
	if ready.Version != "" {
		text += " " + ready.Version
	}
	if ready.Image != "" {
		text += " · image " + ready.Image
	}
	text += " · " + tierText(ready.Isolation)
	fmt.Fprintln(c.Std.Err, c.Palette(c.Std.Err).dim(EscapeText(text)))
}

// writeKept shows an output that was kept, and on a terminal what is missing.
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

// printWhole shows at the end what was kept: standard output, then standard error.
func (c *Invocation) printWhole(o *boxOptions, r *sandbox.Result, show *outputPrinter, phases ...executor.PhaseResult) {
	if c.format != FormatText {
		return
	}
	show.out, show.err = c.sinks(o)
	for _, p := range phases {
		if p.Name != r.Phase { // what a compiler had to say about a program that ran
			show.writeTo(show.err, []byte(p.Stdout+p.Stderr))
		}
	}
	stdout := show.out
	if r.Phase == executor.PhaseCompile {
		stdout = show.err
	}
	for _, stream := range []struct {
		to  *sink
		out sandbox.Output
	}{{stdout, r.Stdout}, {show.err, r.Stderr}} {
		show.writeKept(stream.to, stream.out)
	}
	show.flush()
}
