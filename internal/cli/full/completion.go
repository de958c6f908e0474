package full

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

func init() { implement("completion", (*commands).newCompletion) }

var shells = []string{"bash", "zsh", "fish"}

func (c *commands) newCompletion() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish",
		Long: `Prints a script that makes your shell complete commands, flags and their values with the
Tab key.`,
		Example: `  source <(sandbox-run completion bash)     # in ~/.bashrc
  source <(sandbox-run completion zsh)      # in ~/.zshrc, after compinit
  sandbox-run completion fish > ~/.config/fish/completions/sandbox-run.fish`,
		ValidArgs: shells,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return shellError(cmd, errors.New("which shell? One of "+strings.Join(shells, ", ")))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				var script strings.Builder
				if err := root.GenBashCompletionV2(&script, true); err != nil {
					return err
				}
				_, err := io.WriteString(c.Std.Out, strings.Replace(script.String(), packageSplit, ownSplit, 1))
				return err
			case "zsh":
				return root.GenZshCompletion(c.Std.Out)
			case "fish":
				return root.GenFishCompletion(c.Std.Out, true)
			}
			return shellError(cmd, fmt.Errorf("no completion for %q; there is %s", args[0], strings.Join(shells, ", ")))
		},
	}
}

// packageSplit is the line of cobra's script that needs the bash-completion package. It is replaced by ownSplit, which bash can do alone:
// it fills words, cword, cur and prev with the words up to the cursor. bash itself also splits words at = and :, in COMP_WORDS.
const (
	packageSplit = `    _get_comp_words_by_ref "$@" cur prev words cword
`
	ownSplit = `    local i word line=$COMP_LINE last=-1
    words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((last >= 0)) && [[ $line != [[:space:]]* && ( $word == [=:]* || ${words[last]} == *[=:] ) ]]; then
            words[last]+=$word
        else
            words[++last]=$word
        fi
        line=${line#*"$word"}
    done
    cword=$last cur=${words[last]} prev=
    ((last == 0)) || prev=${words[last-1]}
`
)

func shellError(cmd *cobra.Command, err error) error {
	return &sandbox.Error{Op: cli.CommandWords(cmd), Kind: sandbox.ErrInvalid, Err: err, Hint: cli.HelpHint(cmd)}
}

func networkModes() (modes []string) {
	for _, m := range network.Modes {
		modes = append(modes, string(m))
	}
	return modes
}

// addCompletions adds the values of flags and arguments. It is called only if a shell requests completions.
func addCompletions(root *cobra.Command) {
	words := map[string][]string{
		"network": networkModes(),
		"scratch": {string(sandbox.ScratchAuto), string(sandbox.ScratchDisk), string(sandbox.ScratchMemory)},
		"backend": append([]string{app.Auto}, app.AllBackends()...),
		"require": {
			string(sandbox.TierProcess), string(sandbox.TierNamespace), string(sandbox.TierContainer), string(sandbox.TierGVisor),
			string(sandbox.TierMicroVM),
		},
		"format":  {cli.FormatText, cli.FormatJSON, cli.FormatNDJSON},
		"color":   {cli.ColourAuto, cli.ColourAlways, cli.ColourNever},
		"lang":    languageNames(),
		"base":    dockerfileBases,
		"runtime": {"runc", "crun", "youki", "runsc", "kata"},

		"log-level": {"debug", "info", "warn", "error"}, "allow-backend": app.AllBackends(),
	}
	// Names that take file access are read only when the shell requests them.
	named := map[string]cobra.CompletionFunc{"template": completeUnused(templateNames), "workspace": completeUnused(workspaceNames)}
	for flag, names := range named {
		_ = root.RegisterFlagCompletionFunc(flag, names) // the flag exists
	}
	named["key"] = completeUnused(keyNames)
	for _, group := range root.Commands() {
		for _, cmd := range group.Commands() {
			if cmd.Name() == "rotate" {
				cmd.ValidArgsFunction = named[group.Name()]
			}
			if names := named[group.Name()]; names != nil && (cmd.Name() == "show" || cmd.Name() == "rm") {
				cmd.ValidArgsFunction = names
			}
		}
	}
	root.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault // files, besides the commands
	}
	run, _, _ := root.Find([]string{"run"}) // the command exists
	run.DisableFlagParsing, run.ValidArgsFunction = false, root.ValidArgsFunction
	run.Flags().AddFlagSet(root.Flags())
	images, _, _ := root.Find([]string{"image"}) // the command exists
	for _, cmd := range slices.Concat([]*cobra.Command{root}, root.Commands(), images.Commands()) {
		if slices.Contains([]string{"export", "inspect", "rm", "tag", "update"}, cmd.Name()) && cmd.Parent() == images {
			cmd.ValidArgsFunction = imageNames
		} else if cmd.Name() != "import" && cmd.Parent() == images {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
		if cmd.Flags().Lookup("image") != nil {
			_ = cmd.RegisterFlagCompletionFunc("image", imageNames) // the flag exists
		}
		for flag, values := range words {
			if f := cmd.Flags().Lookup(flag); f != nil && len(f.Annotations[cli.NoVariable]) == 0 { // others have other values
				_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
			}
		}
	}
}

// imageNames completes the names of stored images.
func imageNames(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	images, _ := cli.ListImages() // an unreadable store has no completions
	for _, i := range images {
		for _, name := range i.Names {
			names = append(names, image.Familiar(name))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeUnused completes names that are not yet among the arguments, and no files.
func completeUnused(names func(ctx context.Context) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		left := slices.DeleteFunc(names(cmd.Context()), func(line string) bool {
			name, _, _ := strings.Cut(line, "\t")
			return slices.Contains(args, name)
		})
		return left, cobra.ShellCompDirectiveNoFileComp
	}
}

// templateNames lists the names of templates. A name that several languages have is listed once.
func templateNames(context.Context) []string {
	store, err := templateStore("")
	if err != nil {
		return nil
	}
	var names []string
	for _, t := range store.List() {
		name := t.Name + "\t" + t.Description
		if t.Problem == "" && !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, t.Name+"\t") }) {
			names = append(names, name)
		}
	}
	return names
}

func workspaceNames(ctx context.Context) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	infos, _ := workspace.List(ctx, "") // unreadable ones are left out
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names
}

// keyNames lists the names of keys in the file of the variable, or in the user's own file.
func keyNames(ctx context.Context) (names []string) {
	if ctx == nil {
		ctx = context.Background()
	}
	s, err := key.Open(os.Getenv(cli.EnvironmentName("keys")))
	if err != nil {
		return nil
	}
	keys, _ := s.List(ctx) // unreadable ones are left out
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return names
}

func languageNames() []string {
	var names []string
	for _, l := range executor.New(nil, executor.Options{}).Languages() {
		names = append(names, l.Name+"\t"+l.Title)
	}
	return names
}
