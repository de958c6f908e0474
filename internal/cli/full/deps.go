package full

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/deps/sbom"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("deps", (*commands).newDeps) }

func (c *commands) newDeps() *cobra.Command {
	cmd := c.NewGroup("deps",
		`Packages that runs have installed (--deps, --install) are kept as layers: read-only
directories that later runs with the same packages show in their sandboxes. A layer is found
by what was asked for, the toolchain, and the configuration of the registries.`,
		"  sandbox-run deps list\n  sandbox-run deps show 3f2a\n  sandbox-run deps rm 3f2a")
	cmd.AddCommand(c.newDepsList(), c.newDepsShow(), c.newDepsLock(), c.newDepsSBOM(), c.newDepsRemove(), c.newDepsPrune(), c.newDepsDoctor(),
		c.newDepsProxy())
	return cmd
}

// layers returns the store of layers.
func (c *commands) layers() (*deps.Store, error) {
	if s := app.Layers(); s != nil {
		return s, nil
	}
	return nil, sandbox.Errorf(sandbox.ErrUnsupported, "deps", "set HOME", "this user has no directory for packages")
}

// layer returns the layer whose id begins with a text.
func (c *commands) layer(id string) (*deps.Info, error) {
	s, err := c.layers()
	if err != nil {
		return nil, err
	}
	i, err := s.Get(id)
	if err == nil && i.Lock == nil {
		err = &sandbox.Error{Op: "layer " + id, Err: fmt.Errorf("it can not be read: %s", i.Error.Message), Hint: "sandbox-run deps rm " + id}
	}
	return i, err
}

func (c *commands) newDepsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [flags]", Short: "List the layers", Long: "Lists the layers, the newest first.",
		Example: "  sandbox-run deps list\n  sandbox-run deps list --json", Aliases: []string{"ls"},
		RunE: func(*cobra.Command, []string) error {
			s, err := c.layers()
			if err != nil {
				return err
			}
			list, err := s.List()
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(append([]deps.Info{}, list...))
			}
			if len(list) == 0 {
				_, err := io.WriteString(c.Std.Out, "no packages are installed; try: sandbox-run --deps PACKAGE …\n")
				return err
			}
			t := c.NewTable(c.Std.Out, "ID", "LANGUAGE", ">PACKAGES", ">SIZE", "ADDED", "REQUIRES")
			for _, i := range list {
				count, requires := "?", ""
				if i.Lock != nil {
					count, requires = strconv.Itoa(len(i.Lock.Packages)), strings.Join(i.Lock.Requires, ", ")
				}
				if err := t.Add(i.Short(), i.Language, count, sandbox.Size(i.Size).String(), formatTime(i.Added), cli.EscapeLine(requires)); err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the layers as one JSON document")
	return cmd
}

func (c *commands) newDepsShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [flags] ID", Short: "Describe a layer", Long: "Describes a layer: what was asked for, and the packages in it with their digests.",
		Example: "  sandbox-run deps show 3f2a", Args: requireNames("layer", 1, 1),
		RunE: func(_ *cobra.Command, ids []string) error {
			i, err := c.layer(ids[0])
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(i)
			}
			if err := c.printFields([][2]string{
				{"id", i.ID}, {"language", i.Language + " " + i.Lock.Version}, {"platform", i.Lock.Platform}, {"size", sandbox.Size(i.Size).String()},
				{"added", formatTime(i.Added)}, {"requires", strings.Join(i.Lock.Requires, ", ")},
			}); err != nil {
				return err
			}
			fmt.Fprintln(c.Std.Out)
			t := c.NewTable(c.Std.Out, "PACKAGE", "VERSION", "DIGEST")
			for _, p := range i.Lock.Packages {
				if err := t.Add(cli.EscapeLine(p.Name), cli.EscapeLine(p.Version), cli.EscapeLine(p.Hash)); err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the layer as one JSON document")
	return cmd
}

func (c *commands) newDepsLock() *cobra.Command {
	return &cobra.Command{
		Use: "lock ID", Short: "Print the lock of a layer", Args: requireNames("layer", 1, 1),
		Long:    "Prints the lock of a layer. A run with --lock FILE --frozen installs exactly this.",
		Example: "  sandbox-run deps lock 3f2a > packages.lock",
		RunE: func(_ *cobra.Command, ids []string) error {
			i, err := c.layer(ids[0])
			if err != nil {
				return err
			}
			return c.WriteJSON(i.Lock)
		},
	}
}

func (c *commands) newDepsSBOM() *cobra.Command {
	return &cobra.Command{
		Use: "sbom ID", Short: "Print a list of components (CycloneDX)", Args: requireNames("layer", 1, 1),
		Long:    "Prints the packages of a layer as a software bill of materials: CycloneDX 1.6, as JSON.",
		Example: "  sandbox-run deps sbom 3f2a > bom.json",
		RunE: func(_ *cobra.Command, ids []string) error {
			i, err := c.layer(ids[0])
			if err != nil {
				return err
			}
			return sbom.Write(c.Std.Out, i)
		},
	}
}

func (c *commands) newDepsRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm [flags] ID…", Short: "Remove layers", Args: requireNames("layer", 1, -1),
		Long:    "Removes layers. A layer that a sandbox shows is not removed. A failure does not stop the\nremoval of the others.",
		Example: "  sandbox-run deps rm 3f2a",
		RunE: func(_ *cobra.Command, ids []string) error {
			s, err := c.layers()
			if err != nil {
				return err
			}
			report := []removed{}
			return c.forEach(ids, func(id string) error {
				i, err := s.Get(id)
				if err == nil {
					err = s.Remove(i)
				}
				report = append(report, removed{id, err == nil, cli.DescribeError(err)})
				if err == nil && !c.JSON {
					fmt.Fprintf(c.Std.Out, "removed %s\n", i.Short())
				}
				return err
			}, func() any { return report })
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

func (c *commands) newDepsPrune() *cobra.Command {
	var older time.Duration
	var dryRun bool
	cmd := &cobra.Command{
		Use: "prune [flags]", Short: "Remove all layers, or old ones",
		Long:    "Removes layers that no sandbox shows. The next run with their packages installs them again.",
		Example: "  sandbox-run deps prune --older 720h",
		RunE: func(*cobra.Command, []string) error {
			s, err := c.layers()
			if err != nil {
				return err
			}
			report, err := runInterruptible(func(ctx context.Context) (*image.Report, error) { return s.Prune(ctx, older, dryRun) })
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(report)
			}
			return c.printPruned(report, dryRun)
		},
	}
	cli.AddParsed(cmd.Flags(), &older, "older", "", "only layers that were added longer ago than this `time`", cli.ReadDuration)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what was removed as one JSON document")
	return cmd
}

func (c *commands) newDepsDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor [flags] [REGISTRY…]", Args: cobra.ArbitraryArgs, Short: "Show the registries, and whether they answer",
		Long: `Shows the registries that installations use, and whether they answer. The registries are the
public ones, unless registries.yaml names others; nothing is taken from the environment.`,
		Example: "  sandbox-run deps doctor\n  sandbox-run deps doctor npm",
		RunE: func(_ *cobra.Command, names []string) error {
			checks, err := runInterruptible(func(ctx context.Context) ([]registry.Check, error) {
				return registry.CheckAll(ctx, deps.RegistriesFile(), names)
			})
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(checks)
			}
			fmt.Fprintf(c.Std.Out, "configuration: %s\n\n", cli.EscapeLine(registry.Describe(deps.RegistriesFile())))
			t := c.NewTable(c.Std.Out, "REGISTRY", "INDEX", "CREDENTIALS", "ANSWER")
			for _, r := range checks {
				answer := "answers"
				if r.Error != "" {
					answer, c.Code = r.Error, 1
				}
				if err := t.Add(r.Name, cli.EscapeLine(r.Index), r.Credentials, cli.EscapeLine(answer)); err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the registries as one JSON document")
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
			defer func() { _ = p.Close() }()
			access := p.Access()
			if err := say(cli.RegistryMessage{Access: &access}); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, os.Stdin) // until the caller closes it, or is gone
			return say(cli.RegistryMessage{Refused: p.Refused()})
		},
	}
}
