package full

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
)

// sandbox-run knows the variables of the commands that it does not have, and those of the manual page.
func TestVariables(t *testing.T) {
	root := cli.NewTree(cli.Full{})
	own := map[string]bool{}
	var others []string
	for _, collect := range []bool{false, true} {
		visitCommands(root, func(cmd *cobra.Command) {
			thin := cmd == root || slices.Contains([]string{"run", "exec", "doctor", "gc", "version"}, cli.CommandWords(cmd))
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				own[f.Name] = own[f.Name] || thin
				if collect && !own[f.Name] && cli.FlagVariable(f) != "" {
					others = append(others, f.Name)
				}
			})
		})
	}
	slices.Sort(others)
	if want, got := slices.Compact(others), strings.Fields(cli.FullFlags); !slices.Equal(got, want) {
		t.Errorf("FullFlags is\n%q, want\n%q", got, want)
	}
	for _, row := range variables {
		name, ours := strings.CutPrefix(row[0], "SANDBOX_RUN_")
		if ours && !slices.ContainsFunc(cli.OtherVariables, func(o string) bool { return strings.HasPrefix(name, o) }) {
			t.Errorf("%s is unknown", row[0])
		}
	}
}
