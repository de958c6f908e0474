package full

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/serve"
)

func init() { implement("mcp", (*commands).newMCP) }

const mcpLong = `Serves an agent over the Model Context Protocol, on standard input and output: tools that
run code in sandboxes, for the user who starts it. The agent's client starts this command;
sandbox-run mcp config prints what the client has to know. A server that runs already
(sandbox-run serve) offers the same at its path /mcp, with its keys.

The agent gets no more than the ceilings below, and of this machine only what is allowed
here by name. At the end of the input, runs and sessions end, and nothing is left of them.`

const mcpExample = `  sandbox-run mcp config --client claude-code --write
  sandbox-run mcp --max-memory 1g --max-network-registries pypi --allow-packages pypi`

// newMCP makes the command. It has those flags of serve that do not concern addresses, keys and what is kept.
func (c *commands) newMCP() *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use: "mcp [flags]", Long: mcpLong, Example: mcpExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runMCP(cmd, o) },
	}
	cli.FlagGroups{
		{Title: "Backend", Add: o.addMakerFlags}, {Title: "Ceilings of requests", Add: o.addCeilingFlags},
		{Title: "Networks of requests", Add: o.addNetworkFlags},
		{Title: "What requests may use of this machine", Add: o.addAllowFlags}, {Title: "Sessions", Add: o.addSessionFlags},
		{Title: "Warm starts", Add: o.addWarmFlags},
		{Title: "Running it", Add: func(fs *pflag.FlagSet) {
			fs.StringVar(&o.settings.AuditLog, "audit-log", "", "audit log `file` (default your own log); off: no log")
		}},
	}.AddTo(cmd)
	cmd.AddCommand(c.newMCPConfig())
	return cmd
}

func (c *commands) runMCP(cmd *cobra.Command, o *serveOptions) error {
	if err := o.complete(cmd.Flags()); err != nil {
		return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
	}
	o.settings.LogLevel = slog.LevelWarn // the client keeps what is on standard error
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a client that has gone is the end of the input
	err := serve.MCP(ctx, serve.Options{
		Settings: &o.settings, Version: cli.Version(debug.ReadBuildInfo()), Err: c.Std.Err, Exit: os.Exit,
	}, c.Std.In, c.Std.Out)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
}
