package full

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("image", (*commands).newImage) }

const imageLong = `Images are root file systems with a toolchain, for --image. They are stored unpacked in
/var/lib/sandbox-run/images (root) or $XDG_DATA_HOME/sandbox-run/images (other users,
~/.local/share/…), or in the directory of SANDBOX_RUN_IMAGES. All sandboxes share them
read-only. Images are downloaded only on request.

IMAGE is NAME[:TAG], NAME@sha256:…, or the beginning of an id. python means
docker.io/library/python:latest.

Exit codes:
  0    done                             125  sandbox-run itself failed, or the registry
  2    usage; no such image             126  refused: missing, invalid or too large
  130, 143  cancelled: Ctrl-C, SIGTERM`

func (c *commands) newImage() *cobra.Command {
	cmd := c.NewGroup("image", imageLong,
		`  sandbox-run image pull python:3.13-slim
  sandbox-run image import rootfs.tar.gz --name mine
  sandbox-run image build python
  sandbox-run image list`)
	cmd.AddCommand(
		c.newImagePull(), c.newImageUpdate(), c.newImageBuild(), c.newImageDockerfile(), c.newImageImport(), c.newImageExport(),
		c.newImageList(), c.newImageInspect(), c.newImageTag(), c.newImageRemove(), c.newImagePrune(),
	)
	return cmd
}

func (c *commands) newImageList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Short:   "List the images",
		Long:    "Lists the images with a line for each of their names, and their size on the disk.",
		Example: "  sandbox-run image list\n  sandbox-run image list --json",
		Aliases: []string{"ls"},
		RunE: func(*cobra.Command, []string) error {
			images, err := cli.ListImages()
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(append([]*image.Image{}, images...))
			}
			if len(images) == 0 {
				_, err := io.WriteString(c.Std.Out, "there are no images; try: sandbox-run image pull, image import or image build\n")
				return err
			}
			return c.printImages(images)
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the images as one JSON document")
	return cmd
}

// noName stands in place of the name of an image without one.
const noName = "-"

func (c *commands) printImages(images []*image.Image) error {
	t := c.NewTable(c.Std.Out, "NAME", "ID", "PLATFORM", ">SIZE", "CREATED")
	for _, i := range images {
		names := i.Names
		if len(names) == 0 {
			names = []string{noName}
		}
		for _, name := range names {
			if err := t.Add(image.Familiar(name), shortID(i.ID), i.Platform, sandbox.Size(i.Size).String(), formatCreated(i.Created)); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}

// shortID returns the first 12 digits of an id or a digest.
func shortID(id string) string {
	_, hex, found := strings.Cut(id, ":")
	if !found {
		hex = id
	}
	return hex[:min(len(hex), 12)]
}

// formatCreated formats the creation time of an image. Reproducible images have one of 1970 or 1980, which is unknown.
func formatCreated(t time.Time) string {
	if t.IsZero() || t.Year() <= 1980 {
		return "unknown"
	}
	return t.Local().Format(time.DateTime)
}

func (c *commands) newImageInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [flags] IMAGE",
		Short: "Describe an image",
		Long: "Describes an image: its names, its layers, and its configuration for running it. The\nuser inside is always the " +
			"sandbox's own, not the image's.",
		Example: "  sandbox-run image inspect python\n  sandbox-run image inspect --json 3f9a | jq .config.env",
		Args:    requireNames("image", 1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			img, err := findImage(args[0])
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(img)
			}
			return c.describeImage(img)
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the image as one JSON document")
	return cmd
}

// findImage looks up an image by reference. It does not create a missing store.
func findImage(ref string) (*image.Image, error) {
	store, err := app.OpenExistingImages()
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, explainMissing(ref, image.ErrNotFound)
	}
	img, err := store.Lookup(ref)
	return img, explainMissing(ref, err)
}

// explainMissing adds a hint to the error of a missing image. It returns other errors unchanged.
func explainMissing(ref string, err error) error {
	if !errors.Is(err, image.ErrNotFound) {
		return err
	}
	return &sandbox.Error{
		Op: "image " + ref, Kind: sandbox.ErrNotFound, Err: image.ErrNotFound,
		Hint: "sandbox-run image list, or sandbox-run image pull " + ref,
	}
}

func (c *commands) describeImage(i *image.Image) error {
	lines := [][2]string{
		{"id", i.ID},
		{"digest", i.Digest},
		{"platform", i.Platform},
		{"size", sandbox.Size(i.Size).String()},
		{"created", formatCreated(i.Created)},
		{"added", formatTime(i.Added)},
	}
	add := func(label string, values ...string) {
		for _, v := range values {
			lines = append(lines, [2]string{label, v})
			label = ""
		}
	}
	names := []string{}
	for _, name := range i.Names {
		names = append(names, image.Familiar(name))
	}
	add("names", names...)
	add("layers", i.Layers...)
	add("env", i.Config.Env...)
	for _, word := range [][2]string{{"workdir", i.Config.Workdir}, {"user", i.Config.User}} {
		if word[1] != "" {
			add(word[0], word[1])
		}
	}
	for _, words := range []struct {
		label string
		argv  []string
	}{{"entrypoint", i.Config.Entrypoint}, {"command", i.Config.Cmd}} {
		if len(words.argv) > 0 {
			add(words.label, cli.QuoteArguments(words.argv))
		}
	}
	labels := []string{}
	for name, value := range i.Config.Labels {
		labels = append(labels, name+"="+value)
	}
	slices.Sort(labels)
	add("labels", labels...)
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%-11s%s\n", l[0], cli.EscapeLine(l[1]))
	}
	_, err := io.WriteString(c.Std.Out, b.String())
	return err
}

func (c *commands) newImageTag() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tag [flags] IMAGE NAME…",
		Short:   "Give an image further names",
		Long:    "Gives an image further names. A name that another image has moves to this one.",
		Example: "  sandbox-run image tag python:3.13-slim python:mine",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return usageError(cmd, errors.New("which name is it to have?"))
			}
			return requireNames("image", 2, -1)(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			img, err := findImage(args[0])
			if err != nil {
				return err
			}
			store, err := app.OpenImages()
			if err != nil {
				return err
			}
			for _, name := range args[1:] {
				if img, err = store.Tag(img.ID, name); err != nil {
					return err
				}
				if !c.JSON {
					fmt.Fprintf(c.Std.Out, "%s is %s\n", cli.EscapeLine(name), shortID(img.ID))
				}
			}
			if c.JSON {
				return c.WriteJSON(img)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the image as one JSON document")
	return cmd
}

// removedImage is the result of image rm for one reference, as JSON.
type removedImage struct {
	Ref     string             `json:"ref"`
	ID      string             `json:"id,omitempty"`
	Removed bool               `json:"removed"` // the image, not only one of its names
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newImageRemove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] IMAGE…",
		Short: "Remove images",
		Long: `Removes names of images. An image is removed with its last name. An id removes the image
with all its names; several names need --force. An image that sandboxes use is not
removed. A failure does not stop the removal of the others.`,
		Example: "  sandbox-run image rm python:3.12\n  sandbox-run image rm --force 3f9a",
		Args:    requireNames("image", 1, -1),
		RunE: func(_ *cobra.Command, refs []string) error {
			report := []removedImage{}
			return c.forEach(refs, func(ref string) error {
				img, removed, err := removeImage(ref, force)
				one := removedImage{Ref: ref, Removed: removed, Error: cli.DescribeError(err)}
				if img != nil {
					one.ID = img.ID
				}
				report = append(report, one)
				if err == nil && !c.JSON {
					what := "removed the name"
					if removed {
						what = "removed"
					}
					fmt.Fprintf(c.Std.Out, "%s %s\n", what, cli.EscapeLine(ref))
				}
				return err
			}, func() any { return report })
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "given an id, remove the image even if it has several names")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the results as one JSON document")
	return cmd
}

func removeImage(ref string, force bool) (*image.Image, bool, error) {
	store, err := app.OpenExistingImages()
	if err != nil {
		return nil, false, err
	}
	if store == nil {
		return nil, false, explainMissing(ref, image.ErrNotFound)
	}
	img, removed, err := store.Remove(ref, force)
	return img, removed, explainMissing(ref, err)
}

// forEach calls do for every argument, also after a failure. It returns the joined errors or, with --json, prints the document and sets
// c.Code.
func (c *commands) forEach(args []string, do func(string) error, document func() any) error {
	var failed []error
	for _, a := range args {
		failed = append(failed, do(a))
	}
	err := errors.Join(failed...)
	if !c.JSON {
		return err
	}
	if err != nil {
		c.Code = cli.FailureCode(err)
	}
	return c.WriteJSON(document())
}

func (c *commands) newImagePrune() *cobra.Command {
	var o image.PruneOptions
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove images that have no name",
		Long: `Removes images without a name, such as those that an update replaced, and files that
belong to no image. Images that sandboxes use are not removed.`,
		Example: "  sandbox-run image prune\n  sandbox-run image prune --all --older 720h --dry-run",
		RunE: func(*cobra.Command, []string) error {
			report := &image.Report{}
			store, err := app.OpenExistingImages()
			if err == nil && store != nil {
				o.Only = func(img *image.Image) bool { return !deps.IsLayer(img) }
				report, err = runInterruptible(func(ctx context.Context) (*image.Report, error) { return store.Prune(ctx, o) })
			}
			if err != nil {
				return err
			}
			if report.Images == nil {
				report.Images = []*image.Image{}
			}
			if c.JSON {
				return c.WriteJSON(report)
			}
			return c.printPruned(report, o.DryRun)
		},
	}
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "also remove images with names, unless sandboxes use them")
	cli.AddParsed(cmd.Flags(), &o.Older, "older", "", "only images that were added longer ago than this `time`", cli.ReadDuration)
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only print what would be removed")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what was removed as one JSON document")
	return cmd
}

func (c *commands) printPruned(r *image.Report, dryRun bool) error {
	var b strings.Builder
	state, freed := "removed", "given back"
	if dryRun {
		state, freed = "found", "would be given back"
	}
	for _, i := range r.Images {
		names := []string{}
		for _, name := range i.Names {
			names = append(names, image.Familiar(name))
		}
		if len(names) == 0 {
			names = []string{noName}
		}
		fmt.Fprintf(&b, "%-8s %s  %s\n", state, shortID(i.ID), cli.EscapeLine(strings.Join(names, ", ")))
	}
	if len(r.Images) == 0 && r.Bytes == 0 {
		b.WriteString("there is nothing to remove\n")
	} else {
		fmt.Fprintf(&b, "%s %s\n", sandbox.Size(r.Bytes), freed)
	}
	_, err := io.WriteString(c.Std.Out, b.String())
	return err
}

// requireNames checks the number of arguments, which are names of the kind, such as image. most -1 is any number.
func requireNames(kind string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError(cmd, errors.New("no "+kind+" is named"))
		case most > 0 && len(args) > most:
			return usageError(cmd, fmt.Errorf("unexpected argument %q", args[most]))
		case slices.Contains(args, ""):
			return usageError(cmd, errors.New("a name is empty"))
		}
		return nil
	}
}

func usageError(cmd *cobra.Command, err error) error {
	return &sandbox.Error{Op: cli.CommandWords(cmd), Kind: sandbox.ErrInvalid, Hint: cli.HelpHint(cmd), Err: err}
}

// runInterruptible calls do with a context that signals cancel, and returns the signal as the error.
func runInterruptible[T any](do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := cli.CancelOnSignals(func() {})
	defer cancel(nil)
	v, err := do(ctx)
	return v, explainSignal(ctx, err)
}

// explainSignal replaces an error after a signal by the signal: errors that the cancelled context has caused can not be told apart.
func explainSignal(ctx context.Context, err error) error {
	var signal cli.SignalCause
	if err != nil && errors.As(context.Cause(ctx), &signal) {
		return signal
	}
	return err
}
