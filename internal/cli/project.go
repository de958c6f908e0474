package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ProjectOptions is the command line of a run of the project in a directory, for commands of the full executable.
type ProjectOptions struct{ run runOptions }

// runTimeoutFlag is the time limit of a run, for commands whose --timeout is that of a part of it.
const runTimeoutFlag = "run-timeout"

// AddTo adds the flags of a project to a command. own are further flags of the first group; formats are the values of --format. The flags
// of the run's own time limit and of its output have other names or none.
func (o *ProjectOptions) AddTo(cmd *cobra.Command, c *Invocation, own func(*pflag.FlagSet), formats ...string) {
	r := &o.run
	FlagGroups{
		{"What is run", func(fs *pflag.FlagSet) {
			own(fs)
			pickFlags(fs, r.addCodeFlags, "exclude", "include", "no-cache")
		}},
		{string(executor.GroupLimits), func(fs *pflag.FlagSet) {
			limits := pflag.NewFlagSet("", pflag.ContinueOnError)
			limits.SortFlags = false
			r.addLimitFlags(limits)
			limits.VisitAll(func(f *pflag.Flag) {
				if f.Name == "timeout" {
					f.Name, f.DefValue, f.Usage = runTimeoutFlag, projectTimeout.String(), "`duration` of the whole run"
				}
				fs.AddFlag(f)
			})
		}},
		{string(executor.GroupSees), func(fs *pflag.FlagSet) {
			skipFlags(fs, r.addEnvironmentFlags, "out", "workspace", "workspace-cap", "workspace-inodes")
		}},
		{string(executor.GroupStrength), r.addStrengthFlags},
		{string(executor.GroupOutput), func(fs *pflag.FlagSet) {
			fs.BoolVar(&c.JSON, "json", false, "print the result as one JSON document, and nothing else")
			AddParsed(fs, &c.format, "format", FormatText, "output `format`: "+strings.Join(formats, ", "), ReadOneOf(formats...))
			pickFlags(fs, func(fs *pflag.FlagSet) { r.addOutputFlags(fs, &Invocation{}) }, "audit-log")
			AddParsed(fs, &c.colour, "color", ColourAuto, "`when` to use colour: auto, always, never", ReadOneOf(ColourAuto, ColourAlways,
				ColourNever))
			fs.BoolP("help", "h", false, "show this help")
		}},
		{string(executor.GroupPackages), r.addPackageFlags},
		{string(executor.GroupLanguages), func(fs *pflag.FlagSet) { skipFlags(fs, r.addLanguageFlags, "setup", "test", "module") }},
	}.AddTo(cmd)
}

// projectTimeout is the time limit of the run of a project.
const projectTimeout = 10 * time.Minute

// Read checks the flags, and reads the files of the directory.
func (o *ProjectOptions) Read(c *Invocation, flags *pflag.FlagSet, dir string, args []string) error {
	if err := o.ReadSettings(c, flags); err != nil {
		return err
	}
	r := &o.run
	r.limits.Wall = cmp.Or(r.limits.Wall, projectTimeout)
	r.program.args = args
	if err := r.program.readPath(dir); err != nil {
		return err
	}
	if r.program.hostDir == "" {
		return sandbox.Invalid("test", "%s is not a directory; name the directory of the project", dir)
	}
	return nil
}

// ReadTree does the same for a directory that may have no files.
func (o *ProjectOptions) ReadTree(c *Invocation, flags *pflag.FlagSet, dir string) error {
	if err := o.ReadSettings(c, flags); err != nil {
		return err
	}
	r := &o.run
	r.limits.Wall = cmp.Or(r.limits.Wall, projectTimeout)
	t := &tree{name: dir, selection: r.selected}
	if err := t.readRoot(dir); err != nil {
		return err
	}
	r.program.files, r.program.left, r.program.hostDir = t.files, t.left, dir
	return t.root.Close()
}

// ReadSettings checks the flags, for a command whose programs are no directory.
func (o *ProjectOptions) ReadSettings(c *Invocation, flags *pflag.FlagSet) error {
	r := &o.run
	if err := r.boxOptions.complete(c, flags); err != nil {
		return err
	}
	var err error
	if r.selected.exclude, err = readPatterns("exclude", r.exclude.Values); err != nil {
		return err
	}
	if r.selected.include, err = readPatterns("include", r.include.Values); err != nil {
		return err
	}
	if err := r.readLock(); err != nil {
		return err
	}
	for _, text := range r.in.Values {
		files, left, err := readInput(text, r.selected)
		if err != nil {
			return err
		}
		r.inputs, r.left = append(r.inputs, files...), append(r.left, left...)
	}
	r.policy.MergeOutput = false
	r.program = &source{selected: r.selected}
	return nil
}

// Request is the command line as a request.
func (o *ProjectOptions) Request() executor.Request { return o.run.request() }

// Format is the value of --format.
func (c *Invocation) Format() string { return c.format }

// ProjectRun is a run of a project in this process. Context is cancelled by signals, and with cause by Stop.
type ProjectRun struct {
	Context  context.Context //nolint:containedctx // of the whole command
	Stop     context.CancelCauseFunc
	Executor *executor.Executor
	// Notes are for the result.
	Notes []string
}

// RunProject opens the backend, calls do, and removes everything. onPrepare is called before a preparation that takes long.
func (c *Invocation) RunProject(o *ProjectOptions, onPrepare func(what string) (done func()), do func(*ProjectRun) error) error {
	s, err := c.openRunEnvironment(&o.run.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	engine, err := app.NewExecutor(s.manager, app.ExecutorOptions{Audit: s.log, EntryPoint: audit.EntryCLI, OnPrepare: onPrepare,
		Registries: registries{c}})
	if err != nil {
		return err
	}
	p := &ProjectRun{Context: s.ctx, Stop: s.stop, Executor: engine}
	if note := noteLeftOut(slices.Concat(o.run.program.left, o.run.left), false); note != "" {
		p.Notes = append(p.Notes, note)
	}
	p.Notes = appendNotes(p.Notes, nil, s.unlogged)
	err = c.withPulledImage(s.ctx, &o.run.boxOptions, func() {}, func() error { return do(p) })
	return errors.Join(nameSignal(s.ctx, err), s.release())
}
