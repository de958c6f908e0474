package full

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/image/build"
	"github.com/sandbox-run/sandbox-run/pkg/image/remote"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fetchOptions is how images are fetched.
type fetchOptions struct {
	platform string
	insecure bool
	quiet    bool
}

const insecureUsage = "allow plain HTTP to a registry on this very machine"

func (o *fetchOptions) addTo(fs *pflag.FlagSet) {
	platformFlag(fs, &o.platform)
	fs.BoolVar(&o.insecure, "insecure", false, insecureUsage)
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no word on progress")
}

func platformFlag(fs *pflag.FlagSet, into *string) {
	cli.AddParsed(fs, into, "platform", "", "which one to take of several, like `linux/arm64` (default this machine's)",
		func(s string) (string, error) {
			parts := strings.Split(s, "/")
			if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
				return "", errors.New("it is written like linux/arm64 or linux/arm/v7")
			}
			return s, nil
		})
}

// pulledImage is what became of one reference, as JSON.
type pulledImage struct {
	Ref   string             `json:"ref"`
	Image *image.Image       `json:"image,omitempty"`
	Error *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newImagePull() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "pull [flags] IMAGE…",
		Short: "Fetch images from a registry",
		Long: `Fetches images from a registry and unpacks them. What is here already is not fetched
again, and a download that was cut off goes on where it ended. Every digest is checked.
Credentials are those of docker login and podman login.`,
		Example: `  sandbox-run image pull python:3.13-slim
  sandbox-run image pull ghcr.io/owner/name@sha256:…
  sandbox-run image pull --platform linux/arm64 alpine
  sandbox-run image pull --insecure localhost:5000/mine`,
		Args: takeNames("image", 1, -1),
		RunE: func(_ *cobra.Command, refs []string) error {
			store, err := app.OpenImages()
			if err != nil {
				return err
			}
			report := []pulledImage{}
			return c.forEachInterruptible(refs, func(ctx context.Context, ref string) error {
				img, err := withLayers(ctx, c, o, func(with remote.Options) (*image.Image, error) {
					return remote.Pull(ctx, store, ref, with)
				})
				err = cancelled(ctx, explainRegistry(err))
				report = append(report, pulledImage{ref, img, cli.DescribeError(err)})
				if err == nil && !c.JSON {
					c.announce(img)
				}
				return err
			}, func() any { return report })
		},
	}
	o.addTo(cmd.Flags())
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what became of each as one JSON document")
	return cmd
}

// forEachInterruptible is forEach of something that Ctrl-C ends; then nothing more is begun.
func (c *commands) forEachInterruptible(args []string, do func(context.Context, string) error, document func() any) error {
	ctx, cancel := cli.CancelOnSignals(func() {})
	defer cancel(nil)
	return c.forEach(args, func(a string) error {
		if ctx.Err() != nil {
			return nil // the one that was interrupted has said so
		}
		return do(ctx, a)
	}, document)
}

// withLayers fetches something with a bar for every layer.
func withLayers[T any](ctx context.Context, c *commands, o fetchOptions, fetch func(remote.Options) (T, error)) (T, error) {
	show := c.newBars(o.quiet)
	defer show.end()
	l := layers{bars: show, all: map[layer]*bar{}}
	v, err := fetch(remote.Options{Platform: o.platform, Insecure: o.insecure, Progress: l.move})
	l.conclude(outcome(ctx, err))
	return v, err
}

func outcome(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "cancelled"
	case err != nil:
		return string(remote.Failed)
	}
	return string(remote.Done)
}

// layers are the bars of images: a line for the image, and one for each of its layers, by digest.
type layers struct {
	bars *bars
	all  map[layer]*bar
}

type layer struct{ image, digest string } // no digest is the image itself

func (l *layers) move(p remote.Progress) {
	one := l.all[layer{p.Reference, p.Layer}]
	if one == nil {
		name, total := image.Familiar(p.Reference), int64(0) // an image has no figures: its layers have them
		if p.Layer != "" {
			name, total = shortID(p.Layer), p.Total
		}
		one = l.bars.add(name, total)
		l.all[layer{p.Reference, p.Layer}] = one
	}
	switch {
	case p.Layer == "" && p.State == remote.Done:
		one.drop(string(remote.Done))
	case p.Layer == "", p.State == remote.Waiting, p.State == remote.Failed:
		one.say(string(p.State)) // what failed may have been cancelled: see conclude
	case p.State == remote.Present:
		one.end("already here")
	case p.State == remote.Retrying:
		one.say("trying again: " + p.Reason)
	case p.State == remote.Downloaded:
		one.end(string(remote.Done))
	default:
		one.at(p.Done, p.Total)
	}
}

// conclude says of what is still under way that it no longer is. Of several images some may have failed all by themselves.
func (l *layers) conclude(verdict string) {
	for _, one := range l.all {
		if verdict == string(remote.Done) && one.says(string(remote.Failed)) {
			one.drop(string(remote.Failed))
		}
		one.drop(verdict)
	}
}

// updatedImage is what became of one name, as JSON.
type updatedImage struct {
	Name    string             `json:"name"`
	Outcome remote.Outcome     `json:"outcome"`
	Old     string             `json:"old,omitempty"` // digests of manifests
	New     string             `json:"new,omitempty"`
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newImageUpdate() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "update [flags] [NAME…]",
		Short: "Fetch what has changed under the names of images",
		Long: `Asks registries what the names of images stand for now, fetches what has changed, and
says what did. Without names: all that were pulled. The old images stay, without a name,
until image prune; so does the image of a name that is gone from its registry.`,
		Example: "  sandbox-run image update\n  sandbox-run image update python:3.13-slim",
		Args:    takeNames("image", 0, -1),
		RunE:    func(_ *cobra.Command, names []string) error { return c.update(names, o) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.insecure, "insecure", false, insecureUsage)
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no word on progress")
	fs.BoolVar(&c.JSON, "json", false, "print what became of each as one JSON document")
	return cmd
}

func (c *commands) update(names []string, o fetchOptions) error {
	for _, name := range names {
		if _, err := findImage(name); err != nil {
			return err
		}
	}
	var changes []remote.Change
	store, err := app.OpenExistingImages()
	if err == nil && store != nil {
		changes, err = interruptible(func(ctx context.Context) ([]remote.Change, error) {
			return withLayers(ctx, c, o, func(with remote.Options) ([]remote.Change, error) { return remote.Update(ctx, store, names, with) })
		})
	}
	if err != nil {
		return explainRegistry(err)
	}
	report := []updatedImage{}
	var failed []error
	for _, u := range changes {
		u.Err = explainRegistry(u.Err)
		report = append(report, updatedImage{image.Familiar(u.Name), u.Outcome, u.Old, u.New, cli.DescribeError(u.Err)})
		if u.Outcome == remote.NotDone {
			failed = append(failed, u.Err)
		}
	}
	err = errors.Join(failed...)
	if c.JSON {
		if err != nil {
			c.Code = cli.FailureCode(err)
		}
		return c.WriteJSON(report)
	}
	if len(report) == 0 {
		_, err := io.WriteString(c.Std.Out, "there are no images that were pulled from a registry\n")
		return err
	}
	for _, u := range report {
		text := map[remote.Outcome]string{
			remote.Updated:   fmt.Sprintf("was %s and is %s", shortID(u.Old), shortID(u.New)),
			remote.Unchanged: fmt.Sprintf("is %s, as before", shortID(u.Old)),
			remote.Gone:      fmt.Sprintf("is gone from its registry; %s stays here", shortID(u.Old)),
			remote.NotDone:   fmt.Sprintf("was not updated and is %s, as before", shortID(u.Old)),
		}[u.Outcome]
		fmt.Fprintln(c.Std.Out, cli.EscapeLine(u.Name), text)
	}
	return err
}

func (c *commands) newImageBuild() *cobra.Command {
	var o build.Options
	var tags cli.List
	var quiet, verbose bool
	cmd := &cobra.Command{
		Use:   "build [flags] NAME…",
		Short: "Make the images of languages from Debian's packages",
		Long: `Makes images of our own from Debian's packages, without Docker and without a registry.
The same packages yield the same image. Without a name: lists what can be made.`,
		Example: "  sandbox-run image build\n  sandbox-run image build python node",
		Args:    takeNames("image", 0, -1),
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
				o.Log = c.EscapeErr()
			}
			report := []pulledImage{}
			return c.forEachInterruptible(names, func(ctx context.Context, name string) error {
				img, err := c.build(ctx, store, name, o, quiet)
				err = cancelled(ctx, err)
				report = append(report, pulledImage{name, img, cli.DescribeError(err)})
				if err == nil && !c.JSON {
					c.announce(img)
				}
				return err
			}, func() any { return report })
		},
	}
	cmd.Flags().Var(&tags, "tag", "a further `name` it is to have; repeatable")
	cmd.Flags().StringVar(&o.Suite, "suite", "", "`name` of a release of Debian's, like bookworm (default this machine's)")
	cmd.Flags().StringVar(&o.Mirror, "mirror", "", "`address` to take Debian's packages from (default this machine's)")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show what the packages say while they are installed")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no word on progress")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what became of each as one JSON document")
	return cmd
}

// build makes one image, and says what is being done: on a terminal in a line of its own, elsewhere whenever it is something else.
func (c *commands) build(ctx context.Context, store *image.Store, name string, o build.Options, quiet bool) (*image.Image, error) {
	show := c.newBars(quiet || o.Log != nil) // with --verbose there is no progress line
	defer show.end()
	one := show.add(name, 0)
	before := ""
	o.Progress = func(what string) {
		one.say(what)
		if kind, _, _ := strings.Cut(what, " "); kind != before && show.size == nil && show.lines {
			fmt.Fprintf(c.Std.Err, "%s: %s\n", cli.EscapeLine(name), cli.EscapeLine(what))
			before = kind
		}
	}
	img, err := build.Build(ctx, store, name, o)
	one.drop(outcome(ctx, err))
	return img, err
}

// recipe is an image that can be made, as JSON.
type recipe struct {
	Name  string `json:"name"`
	Image string `json:"image"` // what it is called when it is made
	About string `json:"about"`
}

// listRecipes returns the images that can be made.
func listRecipes() (all []recipe) {
	for _, name := range build.Names() {
		if d, err := build.Lookup(name); err == nil { // it is listed, so it is there
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

// checkRecipes refuses a name that is no recipe's, before anything is made.
func checkRecipes(names []string) error {
	recipes := listRecipes()
	var known []string
	for _, r := range recipes {
		known = append(known, r.Name)
	}
	for _, name := range names {
		full, _ := image.Normalize(name) // what is none is no recipe's either
		if slices.ContainsFunc(recipes, func(r recipe) bool { return name == r.Name || full == r.Image }) {
			continue
		}
		hint := "sandbox-run image build" // it lists them
		if like := nearest.Word(name, known); like != "" {
			hint = "sandbox-run image build " + like
		}
		return &sandbox.Error{Op: "image " + name, Kind: sandbox.ErrInvalid, Err: errors.New("there is no recipe of that name"), Hint: hint}
	}
	return nil
}

// dockerfileBases are what Dockerfiles can begin with; the first is the usual one.
var dockerfileBases = []string{string(build.BaseSlim), string(build.BaseDebian), string(build.BaseAlpine)}

func (c *commands) newImageDockerfile() *cobra.Command {
	base := dockerfileBases[0]
	cmd := &cobra.Command{
		Use:   "dockerfile [flags] NAME",
		Short: "Print the Dockerfile of one of our images",
		Long:  "Prints a Dockerfile that makes the same image as image build, for those who build with\nDocker.",
		Example: "  sandbox-run image dockerfile python | docker build -t sandbox-run/python -\n  sandbox-run image dockerfile --base " +
			"alpine node",
		Args: takeNames("image", 1, 1),
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
	cli.AddParsed(cmd.Flags(), &base, "base", base, "`image` to begin with: "+strings.Join(dockerfileBases, ", "),
		cli.ReadOneOf(dockerfileBases...))
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print it in a JSON document")
	return cmd
}

// explainRegistry gives a registry's error the form that all of ours have, with the hint apart.
func explainRegistry(err error) error {
	var e *remote.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &sandbox.Error{Op: fmt.Sprintf("%s: registry %s: %s", e.Reference, e.Registry, e.Op), Err: e.Err, Hint: e.Hint}
	if errors.Is(err, remote.ErrNotFound) {
		out.Kind = sandbox.ErrNotFound
	}
	return out
}
