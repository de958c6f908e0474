package full

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/image/build"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func (c *commands) newImageBuild() *cobra.Command {
	var o build.Options
	var tags cli.List
	var quiet, verbose bool
	cmd := &cobra.Command{
		Use:   "build [flags] [NAME…]",
		Short: "Build images of languages from Debian packages",
		Long: `Builds images from Debian packages, without Docker and without a registry. The same
packages yield the same image. Without a name it lists the images that can be built.`,
		Example: "  sandbox-run image build\n  sandbox-run image build python node",
		Args:    requireNames("image", 0, -1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return c.printRecipes()
			}
			if err := checkRecipes(names); err != nil {
				return err
			}
			if o.Tags = tags.Values; len(o.Tags) > 0 && len(names) > 1 {
				err := sandbox.Invalid("tag", "%d images can not have the same name; build one at a time", len(names))
				return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
			}
			store, err := app.OpenImages()
			if err != nil {
				return err
			}
			if verbose {
				o.Log = c.EscapedStderr()
			}
			report := []pulledImage{}
			return c.forEachInterruptible(names, func(ctx context.Context, name string) error {
				img, err := c.buildImage(ctx, store, name, o, quiet)
				err = explainSignal(ctx, err)
				report = append(report, pulledImage{name, img, cli.DescribeError(err)})
				if err == nil && !c.JSON {
					c.printImage(img)
				}
				return err
			}, func() any { return report })
		},
	}
	cmd.Flags().Var(&tags, "tag", "an additional `name` of the image; repeatable")
	cmd.Flags().StringVar(&o.Suite, "suite", "", "`name` of a Debian release, such as bookworm (default this machine's)")
	cmd.Flags().StringVar(&o.Mirror, "mirror", "", "`address` of the Debian mirror (default this machine's)")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the output of the package installation")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

// buildImage builds one image and shows the progress: on a terminal in one line, elsewhere with a line for each step.
func (c *commands) buildImage(ctx context.Context, store *image.Store, name string, o build.Options, quiet bool) (*image.Image, error) {
	show := c.newBars(quiet || o.Log != nil) // with --verbose there is no progress line
	defer show.end()
	one := show.add(name, 0)
	before := ""
	o.Progress = func(what string) {
		one.setText(what)
		if kind, _, _ := strings.Cut(what, " "); kind != before && show.size == nil && show.lines {
			fmt.Fprintf(c.Std.Err, "%s: %s\n", cli.EscapeLine(name), cli.EscapeLine(what))
			before = kind
		}
	}
	img, err := build.Build(ctx, store, name, o)
	one.abandon(describeOutcome(ctx, err))
	return img, err
}

// recipe is an image that can be built, as JSON.
type recipe struct {
	Name  string `json:"name"`
	Image string `json:"image"` // the name of the built image
	About string `json:"about"`
}

// listRecipes returns the images that can be built.
func listRecipes() (all []recipe) {
	for _, name := range build.Names() {
		if d, err := build.Lookup(name); err == nil { // a listed name exists
			all = append(all, recipe{Name: name, Image: d.Reference(), About: d.Title + ": " + d.Description})
		}
	}
	return all
}

func (c *commands) printRecipes() error {
	recipes := listRecipes()
	if c.JSON {
		return c.WriteJSON(recipes)
	}
	t := c.NewTable(c.Std.Out, "NAME", "IMAGE", "WHAT IS IN IT")
	for _, r := range recipes {
		if err := t.Add(r.Name, image.Familiar(r.Image), r.About); err != nil {
			return err
		}
	}
	return t.Flush()
}

// checkRecipes refuses unknown recipes before the first build.
func checkRecipes(names []string) error {
	recipes := listRecipes()
	var known []string
	for _, r := range recipes {
		known = append(known, r.Name)
	}
	for _, name := range names {
		full, _ := image.Normalize(name) // an invalid name is no recipe
		if slices.ContainsFunc(recipes, func(r recipe) bool { return name == r.Name || full == r.Image }) {
			continue
		}
		hint := "sandbox-run image build" // it lists them
		if like := nearest.Word(name, known); like != "" {
			hint = "sandbox-run image build " + like
		}
		err := errors.New("there is no recipe of that name")
		return &sandbox.Error{Op: "image " + name, Kind: sandbox.ErrInvalid, Err: err, Hint: hint}
	}
	return nil
}

// dockerfileBases are the base images of Dockerfiles; the first is the default.
var dockerfileBases = []string{string(build.BaseSlim), string(build.BaseDebian), string(build.BaseAlpine)}

func (c *commands) newImageDockerfile() *cobra.Command {
	base := dockerfileBases[0]
	cmd := &cobra.Command{
		Use:   "dockerfile [flags] NAME",
		Short: "Print the Dockerfile of an image",
		Long:  "Prints a Dockerfile that makes the same image as image build, for builds with Docker.",
		Example: "  sandbox-run image dockerfile python | docker build -t sandbox-run/python -\n  sandbox-run image dockerfile --base " +
			"alpine node",
		Args: requireNames("image", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRecipes(args); err != nil {
				return err
			}
			var text string
			d, err := build.Lookup(args[0])
			if err == nil {
				text, err = d.Dockerfile(build.Base(base))
			}
			if err != nil {
				return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
			}
			if c.JSON {
				return c.WriteJSON(map[string]string{"name": args[0], "dockerfile": text})
			}
			_, err = io.WriteString(c.Std.Out, text)
			return err
		},
	}
	cli.AddParsed(cmd.Flags(), &base, "base", base, "base `image`: "+strings.Join(dockerfileBases, ", "),
		cli.ReadOneOf(dockerfileBases...))
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the Dockerfile in a JSON document")
	return cmd
}
