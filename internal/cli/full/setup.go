package full

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker"
	"github.com/spf13/cobra"
)

func init() { implement("setup", (*commands).newSetup) }

const setupLong = `Installs and starts programs that backends need, from the distribution's packages. It
shows the commands first, and asks.`

func (c *commands) newSetup() *cobra.Command {
	cmd := c.NewGroup("setup", setupLong, "  sandbox-run setup docker")
	cmd.AddCommand(c.newSetupDocker())
	return cmd
}

func (c *commands) newSetupDocker() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "docker [flags]",
		Short:   "Install and start Docker, for --backend docker",
		Long:    "Shows the commands that install Docker from the distribution's packages and start it,\nasks, and runs them.",
		Example: "  sandbox-run setup docker\n  sandbox-run setup docker --yes",
		RunE: func(*cobra.Command, []string) error {
			return docker.Setup(context.Background(), docker.ThisMachine(), yes, c.Std.In, c.Std.Err)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
