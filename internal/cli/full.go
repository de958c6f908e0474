package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Full has the functions of the full executable for commands of this package; the thin executable does not link them (D10). Commands of
// the full executable are added with Implement.
type Full struct {
	// Web makes the transport to a server at an http or https address.
	Web func(address, key, caFile string) (client.Transport, error)
	// CollectBuilds finds the leftovers of killed image builds and, unless dryRun, removes them.
	CollectBuilds func(ctx context.Context, dryRun bool) ([]sandbox.Residue, error)
	// Attack runs the attack suite for doctor --attack and prints the report. A breach sets c.Code.
	Attack func(c *Invocation, backend, runtime, image string) error
	// Interact runs a REPL in a session whose first cell is the code of --interactive.
	Interact func(c *Invocation, o *SessionOptions, code string) error
	// Complete adds the completions of flag values and arguments to the command tree.
	Complete func(root *cobra.Command)
}
