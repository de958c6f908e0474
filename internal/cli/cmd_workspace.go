package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

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
			for _, line := range [][2]string{
				{"name", i.Name},
				{"path", i.Path},
				{"size", fmt.Sprintf("%s of at most %s (polled)", held(i, i.Usage.Bytes.String()), i.Cap)},
				{"files", fmt.Sprintf("%s of at most %d (polled)", held(i, strconv.Itoa(i.Usage.Inodes)), i.Inodes)},
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
