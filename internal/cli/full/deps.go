package full

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("deps", (*commands).newDeps) }

func (c *commands) newDeps() *cobra.Command {
	cmd := c.NewGroup("deps",
		`Installed packages are kept as layers: read-only directories that later runs with the same
packages show in their sandboxes. A layer is found by the packages that were asked for, the
toolchain and the configuration of the registries.`,
		"  sandbox-run deps list\n  sandbox-run deps show 3f2a\n  sandbox-run deps rm 3f2a")
	cmd.AddCommand(c.newDepsList(), c.newDepsProxy())
	return cmd
}

func (c *commands) newDepsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [flags]", Short: "List the layers", Long: "Lists the layers, the newest first.",
		Example: "  sandbox-run deps list",
		RunE: func(*cobra.Command, []string) error {
			list, err := app.Layers().List()
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(append([]deps.Info{}, list...))
			}
			for _, i := range list {
				fmt.Fprintln(c.Std.Out, i.Short(), i.Language)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the layers as one JSON document")
	return cmd
}

// newDepsProxy is the proxy of one registry, which installations of sandbox-run start: see cli.RegistryMessage.
func (c *commands) newDepsProxy() *cobra.Command {
	return &cobra.Command{
		Use: "proxy NAME", Hidden: true, Short: "Serve a registry to one installation", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			say := func(m cli.RegistryMessage) error { return json.NewEncoder(c.Std.Out).Encode(m) }
			p, err := registry.Open(deps.RegistriesFile(), args[0])
			if err != nil {
				return say(cli.RegistryMessage{Error: sandbox.Describe(err)})
			}
			defer p.Close()
			access := p.Access()
			if err := say(cli.RegistryMessage{Access: &access}); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, os.Stdin) // until the caller closes it, or is gone
			return say(cli.RegistryMessage{Refused: p.Refused()})
		},
	}
}
