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
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/image/remote"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fetchOptions are the flags of image pull and image update.
type fetchOptions struct {
	platform string
	insecure bool
	quiet    bool
}

const insecureUsage = "allow plain HTTP to a registry on this machine"

func (o *fetchOptions) addTo(fs *pflag.FlagSet) {
	addPlatformFlag(fs, &o.platform)
	fs.BoolVar(&o.insecure, "insecure", false, insecureUsage)
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "do not show progress")
}

func addPlatformFlag(fs *pflag.FlagSet, into *string) {
	cli.AddParsed(fs, into, "platform", "", "platform to choose, such as `linux/arm64` (default this machine's)",
		func(s string) (string, error) {
			parts := strings.Split(s, "/")
			if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
				return "", errors.New("it is written like linux/arm64 or linux/arm/v7")
			}
			return s, nil
		})
}

// pulledImage is the result for one reference or recipe, as JSON.
type pulledImage struct {
	Ref   string             `json:"ref"`
	Image *image.Image       `json:"image,omitempty"`
	Error *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newImagePull() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "pull [flags] IMAGE…",
		Short: "Download images from a registry",
		Long: `Downloads images from a registry and unpacks them. Layers that are stored already are not
downloaded again, and an interrupted download is resumed. Every digest is checked.
Credentials are those of docker login and podman login.`,
		Example: `  sandbox-run image pull python:3.13-slim
  sandbox-run image pull ghcr.io/owner/name@sha256:…
  sandbox-run image pull --platform linux/arm64 alpine
  sandbox-run image pull --insecure localhost:5000/mine`,
		Args: requireNames("image", 1, -1),
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
				err = explainSignal(ctx, explainRegistry(err))
				report = append(report, pulledImage{ref, img, cli.DescribeError(err)})
				if err == nil && !c.JSON {
					c.printImage(img)
				}
				return err
			}, func() any { return report })
		},
	}
	o.addTo(cmd.Flags())
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

// forEachInterruptible is forEach with a context that signals cancel. After a signal, do is not called any more.
func (c *commands) forEachInterruptible(args []string, do func(context.Context, string) error, document func() any) error {
	ctx, cancel := cli.CancelOnSignals(func() {})
	defer cancel(nil)
	return c.forEach(args, func(a string) error {
		if ctx.Err() != nil {
			return nil // the interrupted call has returned the error
		}
		return do(ctx, a)
	}, document)
}

// withLayers calls fetch and shows a progress bar for every layer.
func withLayers[T any](ctx context.Context, c *commands, o fetchOptions, fetch func(remote.Options) (T, error)) (T, error) {
	show := c.newBars(o.quiet)
	defer show.end()
	l := layers{bars: show, all: map[layer]*bar{}}
	v, err := fetch(remote.Options{Platform: o.platform, Insecure: o.insecure, Progress: l.showProgress})
	l.finishBars(describeOutcome(ctx, err))
	return v, err
}

func describeOutcome(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "cancelled"
	case err != nil:
		return string(remote.Failed)
	}
	return string(remote.Done)
}

// layers are the progress bars of images: one for the image, and one for each of its layers.
type layers struct {
	bars *bars
	all  map[layer]*bar
}

type layer struct{ image, digest string } // without a digest: the image itself

func (l *layers) showProgress(p remote.Progress) {
	one := l.all[layer{p.Reference, p.Layer}]
	if one == nil {
		name, total := image.Familiar(p.Reference), int64(0) // an image has no size; its layers do
		if p.Layer != "" {
			name, total = shortID(p.Layer), p.Total
		}
		one = l.bars.add(name, total)
		l.all[layer{p.Reference, p.Layer}] = one
	}
	switch {
	case p.Layer == "" && p.State == remote.Done:
		one.abandon(string(remote.Done))
	case p.Layer == "", p.State == remote.Waiting, p.State == remote.Failed:
		one.setText(string(p.State)) // finishBars tells a failure from a cancellation
	case p.State == remote.Present:
		one.finish("already here")
	case p.State == remote.Retrying:
		one.setText("trying again: " + p.Reason)
	case p.State == remote.Downloaded:
		one.finish(string(remote.Done))
	default:
		one.setProgress(p.Done, p.Total)
	}
}

// finishBars ends all bars that have not ended. If the operation as a whole succeeded, single images may still have failed.
func (l *layers) finishBars(verdict string) {
	for _, one := range l.all {
		if verdict == string(remote.Done) && one.hasText(string(remote.Failed)) {
			one.abandon(string(remote.Failed))
		}
		one.abandon(verdict)
	}
}

// updatedImage is the result of image update for one name, as JSON.
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
		Short: "Download newer images of the same names",
		Long: `Asks registries for the current images of names, downloads those that have changed, and
lists the changes. Without names it updates all images that were pulled. The old images
stay without a name until image prune. An image whose name is gone from its registry
stays as it is.`,
		Example: "  sandbox-run image update\n  sandbox-run image update python:3.13-slim",
		Args:    requireNames("image", 0, -1),
		RunE:    func(_ *cobra.Command, names []string) error { return c.updateImages(names, o) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.insecure, "insecure", false, insecureUsage)
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "do not show progress")
	fs.BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

func (c *commands) updateImages(names []string, o fetchOptions) error {
	for _, name := range names {
		if _, err := findImage(name); err != nil {
			return err
		}
	}
	var changes []remote.Change
	store, err := app.OpenExistingImages()
	if err == nil && store != nil {
		changes, err = runInterruptible(func(ctx context.Context) ([]remote.Change, error) {
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

// explainRegistry converts an error of a registry to a sandbox.Error. It returns other errors unchanged.
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
