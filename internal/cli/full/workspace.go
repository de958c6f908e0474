package full

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

func init() { implement("workspace", (*commands).newWorkspace) }

func (c *commands) newWorkspace() *cobra.Command {
	cmd := c.NewGroup("workspace",
		`A workspace is a directory that survives runs: sandboxes see it, writable, as /workspace.
It is created at its first use below $XDG_DATA_HOME/sandbox-run/workspaces
(~/.local/share/…). It has its own cap, and one run at a time can use it.`,
		"  sandbox-run workspace list\n  sandbox-run workspace show mine\n  sandbox-run workspace rm mine")
	cmd.AddCommand(c.newWorkspaceList(), c.newWorkspaceShow(), c.newWorkspaceRemove())
	return cmd
}

func (c *commands) newWorkspaceList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the workspaces",
		Long: `Lists the workspaces with their size, their cap, the time of their last use, and the
process that uses them now.`,
		Example: "  sandbox-run workspace list\n  sandbox-run workspace list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := workspace.List(cmd.Context(), "")
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(append([]workspace.Info{}, infos...))
			}
			if len(infos) == 0 {
				_, err := io.WriteString(c.Std.Out, "there are no workspaces\n")
				return err
			}
			t := c.NewTable(c.Std.Out, "NAME", ">SIZE", ">CAP", ">FILES", "LAST USED", "IN USE BY")
			for _, i := range infos {
				if err := t.Add(i.Name, atLeast(i, i.Usage.Bytes.String()), i.Cap.String(), atLeast(i, strconv.Itoa(i.Usage.Inodes)),
					formatTime(i.LastUsed), describeUser(i)); err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the workspaces as one JSON document")
	return cmd
}

func (c *commands) newWorkspaceShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show [flags] NAME",
		Short:   "Describe a workspace",
		Long:    "Describes a workspace: its path, its size, its cap, and the process that uses it.",
		Example: "  sandbox-run workspace show mine\n  sandbox-run workspace show --json mine",
		Args:    requireNames("workspace", 1, 1),
		RunE: func(cmd *cobra.Command, names []string) error {
			i, err := workspace.Show(cmd.Context(), "", names[0])
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(i)
			}
			state := sandbox.Polled
			if i.Enforced {
				state = sandbox.Enforced
			}
			return c.printFields([][2]string{
				{"name", i.Name},
				{"path", i.Path},
				{"size", fmt.Sprintf("%s of at most %s (%s)", atLeast(i, i.Usage.Bytes.String()), i.Cap, state)},
				{"files", fmt.Sprintf("%s of at most %d (%s)", atLeast(i, strconv.Itoa(i.Usage.Inodes)), i.Inodes, state)},
				{"made", formatTime(i.Created)},
				{"last used", formatTime(i.LastUsed)},
				{"in use by", describeUser(i)},
			})
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the workspace as one JSON document")
	return cmd
}

// removed is the result of rm for one name, as JSON.
type removed struct {
	Name    string             `json:"name"`
	Removed bool               `json:"removed"`
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newWorkspaceRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm [flags] NAME…",
		Short: "Remove workspaces with their files",
		Long: `Removes workspaces with their files. A workspace that is in use is not removed. A failure
does not stop the removal of the others.`,
		Example: "  sandbox-run workspace rm mine\n  sandbox-run workspace rm one two",
		Args:    requireNames("workspace", 1, -1),
		RunE: func(cmd *cobra.Command, names []string) error {
			report := []removed{}
			return c.forEach(names, func(name string) error {
				err := workspace.Remove(cmd.Context(), "", name)
				report = append(report, removed{name, err == nil, sandbox.Describe(err)})
				if err == nil && !c.JSON {
					fmt.Fprintf(c.Std.Out, "removed %s\n", cli.EscapeLine(name))
				}
				return err
			}, func() any { return report })
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

// printFields prints a line for each name and value.
func (c *commands) printFields(fields [][2]string) error {
	for _, f := range fields {
		if _, err := fmt.Fprintf(c.Std.Out, "%-10s %s\n", f[0], cli.EscapeLine(f[1])); err != nil {
			return err
		}
	}
	return nil
}

// atLeast marks a number that is only a lower bound.
func atLeast(i workspace.Info, figure string) string {
	if i.Usage.Partial || i.Usage.Hidden > 0 {
		return "≥ " + figure
	}
	return figure
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Local().Format(time.DateTime)
}

func describeUser(i workspace.Info) string {
	switch {
	case !i.Locked:
		return "no process"
	case i.LockedBy == 0:
		return "another process"
	}
	return "process " + strconv.Itoa(i.LockedBy)
}
