package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var shells = []string{"bash", "zsh", "fish"}

func (c *cli) newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands in a shell",
		Long: `Prints a script with which your shell completes commands, flags and their values when
you press Tab.`,
		Example: `  source <(sandbox-run completion bash)     # in ~/.bashrc
  source <(sandbox-run completion zsh)      # in ~/.zshrc, after compinit
  sandbox-run completion fish > ~/.config/fish/completions/sandbox-run.fish`,
		DisableFlagsInUseLine: true,
		ValidArgs:             shells,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return wrongShell(cmd, errors.New("which shell? One of "+strings.Join(shells, ", ")))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(c.std.out, true)
			case "zsh":
				return root.GenZshCompletion(c.std.out)
			case "fish":
				return root.GenFishCompletion(c.std.out, true)
			}
			return wrongShell(cmd, fmt.Errorf("no completion for %q; there is %s", args[0], strings.Join(shells, ", ")))
		},
	}
}

func wrongShell(cmd *cobra.Command, err error) error {
	return &sandbox.Error{Op: cmd.Name(), Kind: sandbox.ErrInvalid, Err: err, Hint: helpHint(cmd)}
}

// completes reports whether a shell asks what could come next.
func completes(args []string) bool {
	return len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd)
}

// addCompletions says which values flags can have. Only a shell that asks needs to know.
func addCompletions(root *cobra.Command) {
	words := map[string][]string{
		"network": {string(sandbox.NetworkNone), string(sandbox.NetworkLocalhost)},
		"scratch": {string(sandbox.ScratchAuto), string(sandbox.ScratchDisk), string(sandbox.ScratchMemory)},
		"backend": app.AllBackends(),
		"require": {string(sandbox.TierProcess), string(sandbox.TierNamespace), string(sandbox.TierContainer), string(sandbox.TierGVisor), string(sandbox.TierMicroVM)},
		"format":  {formatText, formatJSON, formatNDJSON},
		"color":   {colourAuto, colourAlways, colourNever},
		"lang":    languageNames(),
	}
	root.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault // files, besides the commands
	}
	for _, cmd := range append([]*cobra.Command{root}, root.Commands()...) {
		for flag, values := range words {
			if cmd.Flags().Lookup(flag) != nil {
				_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
			}
		}
	}
}

func languageNames() []string {
	var names []string
	for _, l := range executor.New(nil, executor.Options{}).Languages() {
		names = append(names, l.Name+"\t"+l.Title)
	}
	return names
}
