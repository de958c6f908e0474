package cli

import (
	"context"

	"github.com/spf13/cobra"
)

const setupLong = `Installs and starts what sandbox-run can use besides itself, from the distribution's
packages. It shows the commands first, and asks.`

func (c *cli) newSetup() *cobra.Command {
	cmd := c.newGroup("setup", "Install what sandboxes can be made with", setupLong, "  sandbox-run setup docker")
	cmd.AddCommand(c.newSetupDocker())
	return cmd
}

func (c *cli) newSetupDocker() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:                   "docker [flags]",
		Short:                 "Install and start Docker, for --backend docker",
		Long:                  "Shows the commands that install Docker from the distribution's packages and start it,\nasks, and runs them.",
		Example:               "  sandbox-run setup docker\n  sandbox-run setup docker --yes",
		DisableFlagsInUseLine: true,
		Annotations:           byTheFull(),
		Args:                  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return c.full.SetUpDocker(context.Background(), yes, c.std.in, c.std.err)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
