package full

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/verify"
)

// headRevision is the revision of --diff without a value.
const headRevision = "HEAD"

func init() { implement("verify", (*commands).newVerify) }

// verifyOptions is the command line of verify.
type verifyOptions struct {
	project   cli.ProjectOptions
	languages cli.List
	update    bool
	write     string
	diff      string
	staged    bool
	verbose   bool
}

func (c *commands) newVerify() *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use: "verify [FILE.md|DIR] [flags]",
		Long: `Runs the code blocks of a Markdown file, or of all in a directory, each in a fresh sandbox, and
compares what each prints with the block "output" that follows. --write checks a text before
it replaces a file: it is parsed or compiled, and the tests of the project are run with it. --diff and --staged do
the same for what has changed in a git work tree, of which they write nothing.

Nothing of a document or of a project is executed outside of the sandbox.`,
		Example: `  sandbox-run verify README.md
  sandbox-run verify docs --lang python --format junit > report.xml
  sandbox-run verify README.md --update
  sandbox-run verify --write app.py < proposed.py
  sandbox-run verify --diff main
  sandbox-run verify --staged

Exit codes:
  0    all is right                     2    usage, or a document that can not be read
  1    a check failed                   125  sandbox-run itself failed
  126  refused by policy                127  a language is not installed
  130, 143  cancelled: Ctrl-C, SIGTERM`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.NameSource(cmd.Flags(), c.verify(cmd, o, args), cli.HelpHint(cmd))
		},
	}
	o.project.AddTo(cmd, c.Invocation, func(fs *pflag.FlagSet) {
		fs.Var(&o.languages, "lang", "run the blocks of this `language` only; repeatable")
		cli.Annotate(fs.Lookup("lang"), cli.NoVariable, "true") // that of other commands is one language
		fs.BoolVar(&o.update, "update", false, "rewrite output blocks with what was printed")
		cli.Annotate(fs.Lookup("update"), cli.NoVariable, "true") // it changes files
		fs.StringVar(&o.write, "write", "", "check the text of standard input as that of a `file`, and replace the file if it is right")
		cli.Annotate(fs.Lookup("write"), cli.NoVariable, "true") // it changes files
		fs.StringVar(&o.diff, "diff", "", "check what differs from a `revision` (default HEAD) in the git work tree")
		fs.Lookup("diff").NoOptDefVal = headRevision
		cli.Annotate(fs.Lookup("diff"), cli.NoVariable, "true")
		fs.BoolVar(&o.staged, "staged", false, "check what the next commit of the git work tree has")
		cli.Annotate(fs.Lookup("staged"), cli.NoVariable, "true")
		fs.BoolVarP(&o.verbose, "verbose", "v", false, "print what passes, too")
	}, cli.FormatText, cli.FormatJSON, formatJUnit, formatSARIF, formatGitHub)
	return cmd
}

// verify runs what the command line asks for, prints the report, and sets c.Code.
func (c *commands) verify(cmd *cobra.Command, o *verifyOptions, args []string) error {
	switch {
	case cmd.Flags().Changed("write") && (len(args) > 0 || o.update):
		return sandbox.Invalid("write", "it takes no documents, and no --update; leave them out")
	case cmd.Flags().Changed("write"):
		return c.verifyWrite(cmd, o)
	case cmd.Flags().Changed("diff") || o.staged:
		return c.verifyChange(cmd, o, args)
	case len(args) != 1:
		return &sandbox.Error{Op: "verify", Kind: sandbox.ErrInvalid, Hint: "sandbox-run verify README.md",
			Err: fmt.Errorf("%d files or directories; name one", len(args))}
	}
	return c.verifyDocuments(cmd, o, args[0])
}

func (c *commands) verifyDocuments(cmd *cobra.Command, o *verifyOptions, name string) error {
	if err := o.project.ReadSettings(c.Invocation, cmd.Flags()); err != nil {
		return err
	}
	files, err := verify.OpenDocuments(name)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	show := c.newVerifyPrinter(o.verbose)
	return c.RunProject(&o.project, show.prepare, func(p *cli.ProjectRun) error {
		show.stop = p.Stop
		show.begin()
		r, updates, err := verify.Documents(p.Context, p.Executor, verify.Sources(files), verify.Options{
			Request: o.project.Request(), Languages: o.languages.Values, OnCheck: show.checkUnless(o.update),
		})
		show.end()
		if err != nil {
			return err
		}
		if o.update {
			if err := r.Write(files, updates); err != nil {
				return err
			}
		}
		r.Notes = append(r.Notes, p.Notes...)
		c.Code = r.ExitCode()
		return show.conclude(r)
	})
}

// verifyWrite replaces a file by standard input, if its checks succeed.
func (c *commands) verifyWrite(cmd *cobra.Command, o *verifyOptions) error {
	proposed, err := io.ReadAll(io.LimitReader(c.Std.In, verify.MaxProposed+1))
	if err != nil {
		return &sandbox.Error{Op: "read standard input", Err: err}
	}
	f, err := verify.OpenProposal(o.write, proposed)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := o.project.ReadTree(c.Invocation, cmd.Flags(), f.Project); err != nil {
		return err
	}
	show := c.newVerifyPrinter(o.verbose)
	return c.RunProject(&o.project, show.prepare, func(p *cli.ProjectRun) error {
		show.stop = p.Stop
		show.begin()
		r, err := f.Write(p.Context, p.Executor, verify.Change{Request: o.project.Request(), OnCheck: show.check})
		show.end()
		if err != nil {
			return err
		}
		r.Notes = append(r.Notes, p.Notes...)
		c.Code = r.ExitCode()
		return show.conclude(r)
	})
}

// verifyChange checks a change of the git work tree that the current directory is in.
func (c *commands) verifyChange(cmd *cobra.Command, o *verifyOptions, args []string) error {
	if len(args) == 1 && o.diff == headRevision && !o.staged { // --diff REVISION
		o.diff, args = args[0], nil
	}
	if len(args) > 0 || o.update || o.staged && o.diff != "" {
		return sandbox.Invalid("verify", "--diff and --staged exclude each other, --update and documents")
	}
	repository, err := verify.OpenRepository(".")
	if err != nil {
		return err
	}
	defer repository.Close()
	if o.staged {
		err = o.project.ReadSettings(c.Invocation, cmd.Flags())
	} else {
		err = o.project.ReadTree(c.Invocation, cmd.Flags(), repository.Top)
	}
	if err != nil {
		return err
	}
	show := c.newVerifyPrinter(o.verbose)
	return c.RunProject(&o.project, show.prepare, func(p *cli.ProjectRun) error {
		show.stop = p.Stop
		show.begin()
		r, err := repository.Verify(p.Context, p.Executor, verify.Change{Request: o.project.Request(), OnCheck: show.check}, o.diff)
		show.end()
		if err != nil {
			return err
		}
		r.Notes = append(r.Notes, p.Notes...)
		c.Code = r.ExitCode()
		return show.conclude(r)
	})
}
