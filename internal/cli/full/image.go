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
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("image", (*commands).newImage) }

const imageLong = `Images are whole root file systems with a toolchain in them, for --image. They are kept
unpacked in /var/lib/sandbox-run/images (root's) or $XDG_DATA_HOME/sandbox-run/images
(~/.local/share/…), or in the directory that SANDBOX_RUN_IMAGES names, and shared by all
sandboxes, which can not change them. Nothing is fetched unless you say so.

An image is called NAME[:TAG], NAME@sha256:…, or by the beginning of its id. python is
docker.io/library/python:latest.

Exit codes:
  0    done                             125  sandbox-run itself failed, or the registry
  2    usage; no such image             126  refused: no image, a false one, or too large
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
		Short:   "List the images there are",
		Long:    "Lists the images there are, with a line for each of their names, and what they take\nup on the disk.",
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
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print them as one JSON document")
	return cmd
}

// noName stands for the name of an image that has none.
const noName = "-"

func (c *commands) printImages(images []*image.Image) error {
	t := c.NewTable(c.Std.Out, "NAME", "ID", "PLATFORM", ">SIZE", "CREATED")
	for _, i := range images {
		names := i.Names
		if len(names) == 0 {
			names = []string{noName}
		}
		for _, name := range names {
			if err := t.Add(image.Familiar(name), shortID(i.ID), i.Platform, sandbox.Size(i.Size).String(), age(i.Created)); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}

// shortID is as much of an id, or of any digest, as people need.
func shortID(id string) string {
	_, hex, found := strings.Cut(id, ":")
	if !found {
		hex = id
	}
	return hex[:min(len(hex), 12)]
}

// age is when an image says that it was made. Reproducible ones say that it was in 1970 or 1980.
func age(t time.Time) string {
	if t.IsZero() || t.Year() <= 1980 {
		return "unknown"
	}
	return t.Local().Format(time.DateTime)
}

func (c *commands) newImageInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [flags] IMAGE",
		Short: "Say what is known of an image",
		Long: "Says what is known of an image: its names, what it is made of, and what it says about\nrunning it. The user inside is " +
			"always the sandbox's own, whatever the image says.",
		Example: "  sandbox-run image inspect python\n  sandbox-run image inspect --json 3f9a | jq .config.env",
		Args:    takeNames("image", 1, 1),
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
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print it as one JSON document")
	return cmd
}

// findImage looks up an image by the name that the user gave, without making a store where there is none.
func findImage(ref string) (*image.Image, error) {
	store, err := app.OpenExistingImages()
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, unlisted(ref, image.ErrNotFound)
	}
	img, err := store.Lookup(ref)
	return img, unlisted(ref, err)
}

// unlisted says what to do about an image that is not there.
func unlisted(ref string, err error) error {
	if !errors.Is(err, image.ErrNotFound) {
		return err
	}
	return &sandbox.Error{Op: "image " + ref, Kind: sandbox.ErrNotFound, Err: image.ErrNotFound, Hint: "sandbox-run image list, or sandbox-run image pull " + ref}
}

func (c *commands) describeImage(i *image.Image) error {
	lines := [][2]string{
		{"id", i.ID},
		{"digest", i.Digest},
		{"platform", i.Platform},
		{"size", sandbox.Size(i.Size).String()},
		{"created", age(i.Created)},
		{"added", moment(i.Added)},
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
			return takeNames("image", 2, -1)(cmd, args)
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

// removedImage is what became of one reference, as JSON.
type removedImage struct {
	Ref     string             `json:"ref"`
	ID      string             `json:"id,omitempty"`
	Removed bool               `json:"removed"` // the image itself, and not just a name of it
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *commands) newImageRemove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] IMAGE…",
		Short: "Remove images",
		Long: `Removes names of images, and images with their last name. Given an id, the image with
all its names; --force is needed if there are several. One that sandboxes use is
refused. All that can be removed is, whatever becomes of the others.`,
		Example: "  sandbox-run image rm python:3.12\n  sandbox-run image rm --force 3f9a",
		Args:    takeNames("image", 1, -1),
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
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what became of each as one JSON document")
	return cmd
}

func removeImage(ref string, force bool) (*image.Image, bool, error) {
	store, err := app.OpenExistingImages()
	if err != nil {
		return nil, false, err
	}
	if store == nil {
		return nil, false, unlisted(ref, image.ErrNotFound)
	}
	img, removed, err := store.Remove(ref, force)
	return img, removed, unlisted(ref, err)
}

// forEach does something for each argument, whatever becomes of the others, and reports: as text, the failures; as JSON, everything.
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
		Long: `Removes images that have no name any more, as an update leaves them, and whatever
belongs to no image. What sandboxes use is never removed.`,
		Example: "  sandbox-run image prune\n  sandbox-run image prune --all --older 720h --dry-run",
		RunE: func(*cobra.Command, []string) error {
			report := &image.Report{}
			store, err := app.OpenExistingImages()
			if err == nil && store != nil {
				report, err = interruptible(func(ctx context.Context) (*image.Report, error) { return store.Prune(ctx, o) })
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
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "images with names, too, unless sandboxes use them")
	cli.AddParsed(cmd.Flags(), &o.Older, "older", "", "only what was added longer ago than this `time`", cli.ReadDuration)
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be removed")
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

// takeNames is for commands that take names of one kind of thing, such as images: at least so many, and at most; most -1 is any number.
func takeNames(kind string, least, most int) cobra.PositionalArgs {
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

// interruptible does something that Ctrl-C ends: what was begun is undone, or kept for the next time.
func interruptible[T any](do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := cli.CancelOnSignals(func() {})
	defer cancel(nil)
	v, err := do(ctx)
	return v, cancelled(ctx, err)
}

// cancelled says of whatever went wrong after a signal that it was the signal: nothing else can be told apart from it.
func cancelled(ctx context.Context, err error) error {
	var signal cli.SignalCause
	if err != nil && errors.As(context.Cause(ctx), &signal) {
		return signal
	}
	return err
}
