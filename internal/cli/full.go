package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Full is what the full executable has for the commands of the thin one, which does not link it (D10). Its own commands it adds with
// Implement.
type Full struct {
	// Web makes the transport to a server that has an address.
	Web func(address, key, caFile string) (client.Transport, error)
	// CollectBuilds finds what image builds that were killed have left and, unless dryRun, removes it.
	CollectBuilds func(ctx context.Context, dryRun bool) ([]sandbox.Residue, error)
	// Attack carries out the attack suite for doctor --attack, and writes the results. A breach is in the exit code.
	Attack func(c *Invocation, backend, runtime, image string) error
	// Complete adds the values of flags and arguments to the command tree, for shells.
	Complete func(root *cobra.Command)
}
