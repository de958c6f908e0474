package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

func (c *cli) newWorkspace() *cobra.Command {
	cmd := c.newGroup("workspace", "List, show and remove workspaces",
		`A workspace is a directory that survives between runs: sandboxes see it, writable, as
/workspace. It is made on first use below $XDG_DATA_HOME/sandbox-run/workspaces
(~/.local/share/…), has a cap of its own, and one user at a time.`,
		"  sandbox-run workspace list\n  sandbox-run workspace show mine\n  sandbox-run workspace rm mine")
	cmd.AddCommand(c.newWorkspaceList(), c.newWorkspaceShow(), c.newWorkspaceRemove())
	return cmd
}

func (c *cli) newWorkspaceList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the workspaces there are",
		Long: `Lists the workspaces there are, with what they hold, what they may hold, when they were
last used, and by which process they are used now.`,
		Example:               "  sandbox-run workspace list\n  sandbox-run workspace list --json",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := workspace.List(cmd.Context(), "")
			if err != nil {
				return err
			}
			if c.json {
				return c.writeJSON(append([]workspace.Info{}, infos...))
			}
			if len(infos) == 0 {
				_, err := io.WriteString(c.std.out, "there are no workspaces\n")
				return err
			}
			t := c.newTable(c.std.out, "NAME", ">SIZE", ">CAP", ">FILES", "LAST USED", "IN USE BY")
			for _, i := range infos {
				if err := t.add(i.Name, held(i, i.Usage.Bytes.String()), i.Cap.String(), held(i, strconv.Itoa(i.Usage.Inodes)), moment(i.LastUsed), user(i)); err != nil {
					return err
				}
			}
			return t.flush()
		},
	}
	cmd.Flags().BoolVar(&c.json, "json", false, "print them as one JSON document")
	return cmd
}

func (c *cli) newWorkspaceShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "show [flags] NAME",
		Short:                 "Say what is known of a workspace",
		Long:                  "Says what is known of a workspace: where it is, what it holds and may hold, who uses it.",
		Example:               "  sandbox-run workspace show mine\n  sandbox-run workspace show --json mine",
		DisableFlagsInUseLine: true,
		Args:                  someNames(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			i, err := workspace.Show(cmd.Context(), "", names[0])
			if err != nil {
				return err
			}
			if c.json {
				return c.writeJSON(i)
			}
			state := sandbox.Polled
			if i.Enforced {
				state = sandbox.Enforced
			}
			for _, line := range [][2]string{
				{"name", i.Name},
				{"path", i.Path},
				{"size", fmt.Sprintf("%s of at most %s (%s)", held(i, i.Usage.Bytes.String()), i.Cap, state)},
				{"files", fmt.Sprintf("%s of at most %d (%s)", held(i, strconv.Itoa(i.Usage.Inodes)), i.Inodes, state)},
				{"made", moment(i.Created)},
				{"last used", moment(i.LastUsed)},
				{"in use by", user(i)},
			} {
				if _, err := fmt.Fprintf(c.std.out, "%-10s %s\n", line[0], cell(line[1])); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&c.json, "json", false, "print it as one JSON document")
	return cmd
}

// removedWorkspace is what became of one name, as JSON.
type removedWorkspace struct {
	Name    string             `json:"name"`
	Removed bool               `json:"removed"`
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *cli) newWorkspaceRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm [flags] NAME…",
		Short: "Remove workspaces and all that is in them",
		Long: `Removes workspaces and all that is in them. One that is in use is refused. All that can
be removed is, whatever becomes of the others.`,
		Example:               "  sandbox-run workspace rm mine\n  sandbox-run workspace rm one two",
		DisableFlagsInUseLine: true,
		Args:                  someNames(-1),
		RunE: func(cmd *cobra.Command, names []string) error {
			var failed []error
			report := []removedWorkspace{}
			for _, name := range names {
				err := workspace.Remove(cmd.Context(), "", name)
				failed = append(failed, err)
				report = append(report, removedWorkspace{name, err == nil, sandbox.Describe(err)})
				if err == nil && !c.json {
					fmt.Fprintf(c.std.out, "removed %s\n", cell(name))
				}
			}
			err := errors.Join(failed...)
			if !c.json {
				return err
			}
			if err != nil {
				c.code = failureCode(err)
			}
			return c.writeJSON(report)
		},
	}
	cmd.Flags().BoolVar(&c.json, "json", false, "print what became of each as one JSON document")
	return cmd
}

// someNames is for commands that take names of workspaces: so many, or one and more.
func someNames(most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		problem := ""
		switch {
		case len(args) == 0:
			problem = "no workspace is named"
		case most > 0 && len(args) > most:
			problem = fmt.Sprintf("unexpected argument %q", args[most])
		default:
			return nil
		}
		return &sandbox.Error{Op: cmd.Name(), Kind: sandbox.ErrInvalid, Hint: helpHint(cmd), Err: errors.New(problem)}
	}
}

// held marks a figure that is only a lower bound.
func held(i workspace.Info, figure string) string {
	if i.Usage.Partial || i.Usage.Hidden > 0 {
		return "≥ " + figure
	}
	return figure
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Local().Format(time.DateTime)
}

func user(i workspace.Info) string {
	switch {
	case !i.Locked:
		return "nobody"
	case i.LockedBy == 0:
		return "somebody"
	}
	return "process " + strconv.Itoa(i.LockedBy)
}

// workspaceOptions is a directory that survives the run.
type workspaceOptions struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o *workspaceOptions) workspaceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "workspace", "", "show the workspace of this `name` as /workspace: it survives the run")
	addParsed(fs, &o.cap, "workspace-cap", "", "most that it may hold, as a `size` (default what it had, or 1g)", readSize)
	addParsed(fs, &o.inodes, "workspace-inodes", "", "`number` of files it may hold (default what it had, or 65536)", readCount)
}

// checkWorkspace refuses what could not be kept: a volume in the place of /workspace hides what is copied there.
func (o *runOptions) checkWorkspace(flags *pflag.FlagSet) error {
	if err := notEmpty(flags, "workspace"); err != nil {
		return err
	}
	taken := ""
	for _, v := range o.policy.Volumes {
		if v.Target == sandbox.WorkspaceDir {
			taken = v.Source
		}
	}
	switch w := &o.workspace; {
	case w.name == "" && (w.cap != 0 || w.inodes != 0):
		return sandbox.Invalid("workspace-cap", "it is of no use without --workspace")
	case w.name != "" && taken != "":
		return sandbox.Invalid("workspace", "%s is to be /workspace already", taken)
	case w.name != "" && len(o.bringing) > 0:
		return &sandbox.Error{
			Op: "out", Kind: sandbox.ErrInvalid, Err: errors.New("what is written to a workspace stays in it"), Hint: "sandbox-run workspace show " + w.name,
		}
	case taken != "" && len(o.bringing) > 0:
		return sandbox.Invalid("out", "/workspace is %s itself; what is written to it stays there", taken)
	case taken != "" && len(o.inputs) > 0:
		return sandbox.Invalid("in", "/workspace is %s itself; put the file there", taken)
	}
	return nil
}

// enterWorkspace opens the workspace for the run, puts the inputs into it, and watches its cap. leave may be called twice.
func (o *runOptions) enterWorkspace(s *stage, req *executor.Request) (leave func() error, err error) {
	if o.workspace.name == "" {
		return func() error { return nil }, nil
	}
	w, err := workspace.Open(s.ctx, "", o.workspace.name, workspace.Options{Cap: o.workspace.cap, Inodes: o.workspace.inodes})
	if err != nil {
		return nil, err
	}
	var watching sync.WaitGroup
	ctx, stopWatching := context.WithCancel(s.ctx)
	leave = sync.OnceValue(func() error {
		stopWatching()
		watching.Wait()
		return w.Close()
	})
	files := make([]sandbox.File, len(req.Inputs))
	for i, f := range req.Inputs {
		files[i] = sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open}
	}
	if err := w.Put(s.ctx, files); err != nil {
		return nil, errors.Join(err, leave())
	}
	req.Inputs = nil
	req.Policy.Volumes = append(req.Policy.Volumes, w.Volume())
	watching.Go(func() {
		err := w.Watch(ctx, func(workspace.Usage) {
			most, inodes := w.Cap()
			s.stop(overfull{w.Name(), most, inodes})
		})
		if err != nil {
			s.stop(unwatched{err})
		}
	})
	return leave, nil
}

// unwatched ends a run whose workspace can not be watched, or is on a disk that is full: a failure of ours.
type unwatched struct{ error }

// overfull ends a run whose workspace holds more than it may.
type overfull struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o overfull) Error() string {
	return fmt.Sprintf("the workspace %s holds more than %s or %d files; to allow more: --workspace-cap, --workspace-inodes", o.name, o.cap, o.inodes)
}

// judgeWorkspace calls a run that was ended for that by its name.
func judgeWorkspace(s *stage, r *sandbox.Result) {
	var full overfull
	if r.Verdict != sandbox.VerdictCancelled || !errors.As(context.Cause(s.ctx), &full) {
		return
	}
	r.Verdict = sandbox.VerdictDiskLimit
	r.Violations = append(r.Violations, sandbox.Violation{Kind: "disk", Count: 1, Allow: "--workspace-cap, --workspace-inodes", Detail: full.Error()})
}
