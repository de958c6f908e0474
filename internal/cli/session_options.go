package cli

import (
	"cmp"
	"context"
	"errors"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// SessionOptions is the command line of a session: the flags of a run that apply to one.
type SessionOptions struct {
	run     runOptions
	project string           // --project; "": none
	detect  executor.Request // of --interactive
}

// defaultLanguage is the language of a session without --lang.
const defaultLanguage = "python"

// AddTo adds the flags of a session to a command. printing says whether the command prints what cells print. more are further flags of the
// first group.
func (o *SessionOptions) AddTo(cmd *cobra.Command, c *Invocation, printing bool, more func(*pflag.FlagSet)) {
	r := &o.run
	groups := FlagGroups{
		{"What is run", func(fs *pflag.FlagSet) {
			addProjectFlag(fs, &o.project)
			pickFlags(fs, r.addCodeFlags, "exclude", "include")
			fs.StringVarP(&r.lang, "lang", "l", defaultLanguage, "`language` of the session")
			if more != nil {
				more(fs)
			}
		}},
		{string(executor.GroupLimits), r.addLimitFlags},
		{string(executor.GroupSees), func(fs *pflag.FlagSet) {
			skipFlags(fs, r.addEnvironmentFlags, "out", "workspace", "workspace-cap", "workspace-inodes")
		}},
		{string(executor.GroupStrength), r.addStrengthFlags},
		{string(executor.GroupOutput), func(fs *pflag.FlagSet) {
			names := []string{"audit-log"}
			if printing {
				names = append(names, "raw", "color", "quiet")
			}
			pickFlags(fs, func(fs *pflag.FlagSet) { r.addOutputFlags(fs, c) }, names...)
		}},
		{string(executor.GroupPackages), r.addPackageFlags},
		{string(executor.GroupLanguages), func(fs *pflag.FlagSet) { skipFlags(fs, r.addLanguageFlags, "setup", "test", "check") }},
	}
	groups.AddTo(cmd)
}

// pickFlags adds the flags of these names, of those that add adds.
func pickFlags(fs *pflag.FlagSet, add func(*pflag.FlagSet), names ...string) {
	filterFlags(fs, add, func(name string) bool { return slices.Contains(names, name) })
}

// skipFlags adds the flags that add adds, but those of these names.
func skipFlags(fs *pflag.FlagSet, add func(*pflag.FlagSet), names ...string) {
	filterFlags(fs, add, func(name string) bool { return !slices.Contains(names, name) })
}

func filterFlags(fs *pflag.FlagSet, add func(*pflag.FlagSet), keep func(name string) bool) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	add(all)
	all.VisitAll(func(f *pflag.Flag) {
		if keep(f.Name) {
			fs.AddFlag(f)
		}
	})
}

// Complete fills in the fields that depend on several flags, and checks their values.
func (o *SessionOptions) Complete(c *Invocation, flags *pflag.FlagSet) error {
	if err := o.run.complete(c, flags); err != nil {
		return err
	}
	o.run.policy.MergeOutput = false // the interpreter stays, and cells may be read by different readers
	return o.readProject(flags)
}

func addProjectFlag(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "project", "", "copy a `directory` into the session, for import")
}

// readProject reads the files of --project, chosen as for a program that is a directory.
func (o *SessionOptions) readProject(flags *pflag.FlagSet) error {
	o.run.program = &source{selected: o.run.selected}
	if err := CheckNotEmpty(flags, "project"); err != nil || o.project == "" {
		return err
	}
	p := o.run.program
	if err := p.readDirectory(o.project); err != nil {
		return err
	}
	p.hostDir = "" // nothing of the directory itself is shown
	o.run.left = append(o.run.left, p.left...)
	if base := filepath.Base(absoluteName(o.project)); token.IsIdentifier(base) && isOnePackage(p.files) {
		for i := range p.files {
			p.files[i].Path = path.Join(base, p.files[i].Path)
		}
	}
	return nil
}

// isOnePackage reports whether a directory is one Python package, and no project that contains it.
func isOnePackage(files []executor.File) bool {
	has := func(name string) bool { return language.Find(files, name) != nil }
	return has("__init__.py") && !has("pyproject.toml") && !has("setup.py") && !has("setup.cfg")
}

// LeftOut describes the entries of directories that could not be copied; "": all were.
func (o *SessionOptions) LeftOut() string { return noteLeftOut(o.run.left, false) }

// Request is the command line as a request for a session of a language; "" is that of --lang.
func (o *SessionOptions) Request(language string) executor.Request {
	req := o.run.request()
	req.Language = cmp.Or(language, o.run.lang)
	return req
}

// Network is the network policy of the command line.
func (o *SessionOptions) Network() network.Policy { return o.run.policy.Network }

// IsQuiet reports whether only output and errors are printed.
func (o *SessionOptions) IsQuiet() bool { return o.run.quiet }

// SessionEnvironment has what makes sessions in this process. The caller closes it.
type SessionEnvironment struct {
	Executor *executor.Executor
	// Unlogged is why the default audit log can not be used; nil if it can, or there is none.
	Unlogged error
	manager  *sandbox.Manager
	options  *SessionOptions
	c        *Invocation
	close    func() error
}

// OpenSessions opens the backend, the audit log and the executor. onPrepare may be nil.
func (c *Invocation) OpenSessions(o *SessionOptions, onPrepare func(what string) (done func())) (*SessionEnvironment, error) {
	log, unlogged, err := o.run.openAudit()
	if err != nil {
		return nil, err
	}
	b, chosen, err := c.openBackend(&o.run.boxOptions)
	if err != nil {
		return nil, err
	}
	m := sandbox.NewManager(b, sandbox.Options{Chosen: chosen})
	e := &SessionEnvironment{manager: m, options: o, c: c, Unlogged: unlogged}
	e.close = sync.OnceValue(func() error { return errors.Join(m.Close(), b.Close()) })
	e.Executor, err = app.NewExecutor(m, app.ExecutorOptions{
		Audit: log, EntryPoint: audit.EntryCLI, OnPrepare: onPrepare, Registries: registries{c},
	})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// Close removes every sandbox and closes the backend. It may be called twice.
func (e *SessionEnvironment) Close() error { return e.close() }

// WithImage calls create again after the image that it lacks was downloaded, if --pull or the user says so.
func (e *SessionEnvironment) WithImage(ctx context.Context, pause func(), create func() error) error {
	return e.c.withPulledImage(ctx, &e.options.run.boxOptions, pause, create)
}

// AddProcessFlags adds the flags of a session that concern the process that makes it, and not the session itself.
func (o *SessionOptions) AddProcessFlags(fs *pflag.FlagSet, c *Invocation) {
	pickFlags(fs, o.run.addStrengthFlags, processFlags...)
	pickFlags(fs, func(fs *pflag.FlagSet) { o.run.addOutputFlags(fs, c) }, processFlags...)
}

// processFlags are the flags that AddProcessFlags adds.
var processFlags = []string{"backend", "runtime", "docker-host", "require", "strict", "audit-log"}

// ProcessFlags returns the flags of AddProcessFlags that are set, as arguments.
func ProcessFlags(flags *pflag.FlagSet) (args []string) {
	for _, name := range processFlags {
		if f := flags.Lookup(name); f != nil && f.Changed {
			value := f.Value.String()
			if name == "audit-log" && value != noAudit || strings.Contains(value, "/") && name == "runtime" {
				value = absoluteName(value) // the supervisor has another working directory
			}
			args = append(args, "--"+name+"="+value)
		}
	}
	return args
}

// AddServerFlags adds the flags that choose the server of a session.
func (o *SessionOptions) AddServerFlags(fs *pflag.FlagSet) { o.run.addServerFlags(fs) }

// CheckServerFlags refuses flags of AddServerFlags that have no effect.
func (o *SessionOptions) CheckServerFlags(flags *pflag.FlagSet) error {
	return o.run.serverOptions.complete(flags)
}

// Server is a client of the server that the flags name or, with auto, of the user's own running server; nil: there is none.
func (o *SessionOptions) Server(c *Invocation) (*client.Client, error) {
	switch {
	case o.run.server == serverNever:
		return nil, nil
	case o.run.namesServer():
		t, err := o.run.openTransport(c)
		if err != nil {
			return nil, err
		}
		return client.New(t), nil
	}
	path := wire.DefaultSocket()
	if path == "" {
		return nil, nil
	}
	t := &client.Unix{Path: path, Trusted: checkOwner}
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	if t.Connect(ctx) != nil {
		return nil, nil
	}
	return client.New(t), nil
}

// NamesServer reports whether the flags name a server, which then has to be used.
func (o *SessionOptions) NamesServer() bool { return o.run.namesServer() }

// AddCellFlags adds the flags of one cell: its limits, and how its result is printed.
func (o *SessionOptions) AddCellFlags(fs *pflag.FlagSet, c *Invocation) {
	pickFlags(fs, o.run.addLimitFlags, "timeout", "cpu-time", "output-limit")
	pickFlags(fs, func(fs *pflag.FlagSet) { o.run.addOutputFlags(fs, c) }, "json", "raw", "color", "quiet")
}

// AddPrintFlags adds the flags of how the output of cells is printed.
func (o *SessionOptions) AddPrintFlags(fs *pflag.FlagSet, c *Invocation) {
	pickFlags(fs, func(fs *pflag.FlagSet) { o.run.addOutputFlags(fs, c) }, "raw", "color", "quiet")
}

// CellLimits are the limits that the flags of a cell have set.
func (o *SessionOptions) CellLimits() sandbox.Limits { return o.run.limits }

// ReadUpload reads a file or a directory of this machine for a path inside; the current user's ignore files do not count. The note lists what
// is no file; "" if that is nothing.
func ReadUpload(host, dest string) (list []sandbox.File, note string, err error) {
	files, left, err := readInput(host+":"+dest, selection{})
	if err != nil {
		return nil, "", err
	}
	note = noteLeftOut(left, true)
	if len(files) == 0 && note != "" {
		return nil, "", sandbox.Invalid("cp", "%s", note)
	}
	list = make([]sandbox.File, len(files))
	for i, f := range files {
		list[i] = sandbox.File{Path: f.Path, Mode: f.Mode, Data: f.Data, Open: f.Open, Link: f.Link}
	}
	return list, note, nil
}
