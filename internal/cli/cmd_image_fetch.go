package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What is here is described everywhere and run by the full executable only (see handover.go): there, c.full is never nil.

// byTheFull marks a command as one that the thin executable hands over.
func byTheFull() map[string]string { return map[string]string{runBy: onlyTheFull} }

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
	addParsed(fs, into, "platform", "", "which one to take of several, like `linux/arm64` (default this machine's)", func(s string) (string, error) {
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

func (c *cli) newImagePull() *cobra.Command {
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
		DisableFlagsInUseLine: true,
		Annotations:           byTheFull(),
		Args:                  someImages(1, -1),
		RunE: func(_ *cobra.Command, refs []string) error {
			store, err := app.OpenImages()
			if err != nil {
				return err
			}
			report := []pulledImage{}
			return c.forEachInterruptible(refs, func(ctx context.Context, ref string) error {
				img, err := withLayers(ctx, c, o, func(f Fetch) (*image.Image, error) {
					return c.full.Registries.Pull(ctx, store, ref, f)
				})
				err = cancelled(ctx, err)
				report = append(report, pulledImage{ref, img, describe(err)})
				if err == nil && !c.json {
					c.announce(img)
				}
				return err
			}, func() any { return report })
		},
	}
	o.addTo(cmd.Flags())
	cmd.Flags().BoolVar(&c.json, "json", false, "print what became of each as one JSON document")
	return cmd
}

// forEachInterruptible is forEach of something that Ctrl-C ends; then nothing more is begun.
func (c *cli) forEachInterruptible(args []string, do func(context.Context, string) error, document func() any) error {
	ctx, cancel := onSignals(func() {})
	defer cancel(nil)
	return c.forEach(args, func(a string) error {
		if ctx.Err() != nil {
			return nil // the one that was interrupted has said so
		}
		return do(ctx, a)
	}, document)
}

// withLayers fetches something with a bar for every layer.
func withLayers[T any](ctx context.Context, c *cli, o fetchOptions, fetch func(Fetch) (T, error)) (T, error) {
	show := c.newBars(o.quiet)
	defer show.end()
	l := layers{bars: show, all: map[layer]*bar{}}
	v, err := fetch(Fetch{Platform: o.platform, Insecure: o.insecure, Progress: l.move})
	l.conclude(outcome(ctx, err))
	return v, err
}

func outcome(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "cancelled"
	case err != nil:
		return MotionFailed
	}
	return MotionDone
}

// layers are the bars of images: a line for the image, and one for each of its layers, by digest.
type layers struct {
	bars *bars
	all  map[layer]*bar
}

type layer struct{ image, digest string } // no digest is the image itself

func (l *layers) move(m Motion) {
	one := l.all[layer{m.Image, m.Layer}]
	if one == nil {
		name, total := image.Familiar(m.Image), int64(0) // an image has no figures: its layers have them
		if m.Layer != "" {
			name, total = shortID(m.Layer), m.Total
		}
		one = l.bars.add(name, total)
		l.all[layer{m.Image, m.Layer}] = one
	}
	switch {
	case m.Layer == "" && m.State == MotionDone:
		one.drop(MotionDone)
	case m.Layer == "", m.State == MotionWaiting, m.State == MotionFailed:
		one.say(m.State) // what failed may have been cancelled: see conclude
	case m.State == MotionPresent:
		one.end("already here")
	case m.State == MotionRetrying:
		one.say("trying again: " + m.Reason)
	case m.State == MotionDownloaded:
		one.end(MotionDone)
	default:
		one.at(m.Done, m.Total)
	}
}

// conclude says of what is still under way that it no longer is. Of several images some may have failed all by themselves.
func (l *layers) conclude(verdict string) {
	for _, one := range l.all {
		if verdict == MotionDone && one.says(MotionFailed) {
			one.drop(MotionFailed)
		}
		one.drop(verdict)
	}
}

// updatedImage is what became of one name, as JSON.
type updatedImage struct {
	Name    string             `json:"name"`
	Outcome string             `json:"outcome"`
	Old     string             `json:"old,omitempty"` // digests of manifests
	New     string             `json:"new,omitempty"`
	Error   *sandbox.ErrorInfo `json:"error,omitempty"`
}

func (c *cli) newImageUpdate() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "update [flags] [NAME…]",
		Short: "Fetch what has changed under the names of images",
		Long: `Asks registries what the names of images stand for now, fetches what has changed, and
says what did. Without names: all that were pulled. The old images stay, without a name,
until image prune; so does the image of a name that is gone from its registry.`,
		Example:               "  sandbox-run image update\n  sandbox-run image update python:3.13-slim",
		DisableFlagsInUseLine: true,
		Annotations:           byTheFull(),
		Args:                  someImages(0, -1),
		RunE:                  func(_ *cobra.Command, names []string) error { return c.update(names, o) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.insecure, "insecure", false, insecureUsage)
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no word on progress")
	fs.BoolVar(&c.json, "json", false, "print what became of each as one JSON document")
	return cmd
}

func (c *cli) update(names []string, o fetchOptions) error {
	for _, name := range names {
		if _, err := findImage(name); err != nil {
			return err
		}
	}
	var changes []Change
	store, err := app.OpenExistingImages()
	if err == nil && store != nil {
		changes, err = interruptible(func(ctx context.Context) ([]Change, error) {
			return withLayers(ctx, c, o, func(f Fetch) ([]Change, error) { return c.full.Registries.Update(ctx, store, names, f) })
		})
	}
	if err != nil {
		return err
	}
	report := []updatedImage{}
	var failed []error
	for _, u := range changes {
		report = append(report, updatedImage{image.Familiar(u.Name), u.Outcome, u.Old, u.New, describe(u.Err)})
		if u.Outcome == ChangeFailed {
			failed = append(failed, u.Err)
		}
	}
	err = errors.Join(failed...)
	if c.json {
		if err != nil {
			c.code = failureCode(err)
		}
		return c.writeJSON(report)
	}
	if len(report) == 0 {
		_, err := io.WriteString(c.std.out, "there are no images that were pulled from a registry\n")
		return err
	}
	for _, u := range report {
		text := map[string]string{
			ChangeUpdated:   fmt.Sprintf("was %s and is %s", shortID(u.Old), shortID(u.New)),
			ChangeUnchanged: fmt.Sprintf("is %s, as before", shortID(u.Old)),
			ChangeGone:      fmt.Sprintf("is gone from its registry; %s stays here", shortID(u.Old)),
			ChangeFailed:    fmt.Sprintf("was not updated and is %s, as before", shortID(u.Old)),
		}[u.Outcome]
		fmt.Fprintln(c.std.out, cell(u.Name), text)
	}
	return err
}

func (c *cli) newImageBuild() *cobra.Command {
	var o Building
	var tags list
	var quiet, verbose bool
	cmd := &cobra.Command{
		Use:   "build [flags] NAME…",
		Short: "Make the images of languages from Debian's packages",
		Long: `Makes images of our own from Debian's packages, without Docker and without a registry.
The same packages yield the same image. Without a name: lists what can be made.`,
		Example:               "  sandbox-run image build\n  sandbox-run image build python node",
		DisableFlagsInUseLine: true,
		Annotations:           byTheFull(),
		Args:                  someImages(0, -1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return c.listRecipes()
			}
			if err := c.knownRecipes(names); err != nil {
				return err
			}
			if o.Tags = tags.values; len(o.Tags) > 0 && len(names) > 1 {
				err := sandbox.Invalid("tag", "%d images can not have the same name; build one at a time", len(names))
				return nameSource(cmd.Flags(), err, helpHint(cmd))
			}
			store, err := app.OpenImages()
			if err != nil {
				return err
			}
			if verbose {
				o.Log = newSink(c.std.err, false, "").to
			}
			report := []pulledImage{}
			return c.forEachInterruptible(names, func(ctx context.Context, name string) error {
				img, err := c.build(ctx, store, name, o, quiet)
				err = cancelled(ctx, err)
				report = append(report, pulledImage{name, img, describe(err)})
				if err == nil && !c.json {
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
	cmd.Flags().BoolVar(&c.json, "json", false, "print what became of each as one JSON document")
	return cmd
}

// build makes one image, and says what is being done: on a terminal in a line of its own, elsewhere whenever it is something else.
func (c *cli) build(ctx context.Context, store *image.Store, name string, o Building, quiet bool) (*image.Image, error) {
	show := c.newBars(quiet || o.Log != nil) // whoever hears everything needs no extract
	defer show.end()
	one := show.add(name, 0)
	before := ""
	o.Progress = func(what string) {
		one.say(what)
		if kind, _, _ := strings.Cut(what, " "); kind != before && show.size == nil && show.lines {
			fmt.Fprintf(c.std.err, "%s: %s\n", cell(name), cell(what))
			before = kind
		}
	}
	img, err := c.full.Builder.Build(ctx, store, name, o)
	one.drop(outcome(ctx, err))
	return img, err
}

func (c *cli) listRecipes() error {
	recipes := c.full.Builder.Recipes()
	if c.json {
		return c.writeJSON(recipes)
	}
	t := c.newTable(c.std.out, "NAME", "IMAGE", "WHAT IS IN IT")
	for _, r := range recipes {
		if err := t.add(r.Name, image.Familiar(r.Image), r.About); err != nil {
			return err
		}
	}
	return t.flush()
}

// knownRecipes refuses a name that is no recipe's, before anything is made.
func (c *cli) knownRecipes(names []string) error {
	recipes := c.full.Builder.Recipes()
	var known []string
	for _, r := range recipes {
		known = append(known, r.Name)
	}
	for _, name := range names {
		full, _ := image.Normalize(name) // what is none is no recipe's either
		if slices.ContainsFunc(recipes, func(r Recipe) bool { return name == r.Name || full == r.Image }) {
			continue
		}
		hint := "sandbox-run image build" // it lists them
		if like := nearest.Word(name, known); like != "" {
			hint = like
		}
		return &sandbox.Error{Op: "image " + name, Kind: sandbox.ErrInvalid, Err: errors.New("there is no recipe of that name"), Hint: hint}
	}
	return nil
}

func (c *cli) newImageDockerfile() *cobra.Command {
	base := dockerfileBases[0]
	cmd := &cobra.Command{
		Use:                   "dockerfile [flags] NAME",
		Short:                 "Print the Dockerfile of one of our images",
		Long:                  "Prints a Dockerfile that makes the same image as image build, for those who build with\nDocker.",
		Example:               "  sandbox-run image dockerfile python | docker build -t sandbox-run/python -\n  sandbox-run image dockerfile --base alpine node",
		DisableFlagsInUseLine: true,
		Annotations:           byTheFull(),
		Args:                  someImages(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.knownRecipes(args); err != nil {
				return err
			}
			text, err := c.full.Builder.Dockerfile(args[0], base)
			if err != nil {
				return nameSource(cmd.Flags(), err, helpHint(cmd))
			}
			if c.json {
				return c.writeJSON(map[string]string{"name": args[0], "dockerfile": text})
			}
			_, err = io.WriteString(c.std.out, text)
			return err
		},
	}
	addParsed(cmd.Flags(), &base, "base", base, "`image` to begin with: "+strings.Join(dockerfileBases, ", "), readOneOf(dockerfileBases...))
	cmd.Flags().BoolVar(&c.json, "json", false, "print it in a JSON document")
	return cmd
}

// providing does something that may find out that an image is not here. If its user wants that, the image is got, and it is
// done once more. An image is downloaded only on request: by --pull, or by a user who answers yes.
func (c *cli) providing(ctx context.Context, o *boxOptions, pause func(), do func() error) error {
	err := do()
	var none *executor.NoImage
	if !errors.As(err, &none) || none.Get() == nil {
		return err
	}
	pause()
	if !o.pull && !c.agreed(o, none) {
		return err
	}
	if got := c.get(ctx, none); got != nil {
		return got
	}
	return do()
}

// agreed asks a person. Where there is none the answer is no.
func (c *cli) agreed(o *boxOptions, none *executor.NoImage) bool {
	if c.format != formatText || o.quiet || !isTerminal(c.std.in) || !isTerminal(c.std.err) {
		return false
	}
	if none.Missing != nil {
		first, _, _ := strings.Cut(none.Missing.Error(), "\n")
		fmt.Fprintf(c.std.err, "%s\n", escaped(first))
	}
	fmt.Fprintf(c.std.err, "The image %s is not here. Run this now?\n  %s\n[y/N] ", escaped(none.Reference), escaped(none.How()))
	switch strings.ToLower(strings.TrimSpace(c.answer())) {
	case "y", "yes":
		return true
	}
	return false
}

// answer reads a line, byte by byte: what follows is the program's.
func (c *cli) answer() string {
	var line []byte
	for b := make([]byte, 1); len(line) < 64; {
		n, err := c.std.in.Read(b)
		if n == 0 || err != nil || b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line)
}

// getPatience is how long a command that was told to end may take to put its things away.
const getPatience = 10 * time.Second

// get has the full executable get an image. What it says is not the program's output.
func (c *cli) get(ctx context.Context, none *executor.NoImage) error {
	path, err := findFull()
	if c.full != nil {
		path, err = os.Executable()
	}
	if err != nil {
		return &sandbox.Error{Op: "image " + none.Reference, Kind: sandbox.ErrUnsupported, Err: err, Hint: c.howToGet()}
	}
	cmd := exec.CommandContext(ctx, path, none.Get()...)
	cmd.Stdout, cmd.Stderr = c.std.err, c.std.err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = getPatience
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &sandbox.Error{Op: "image " + none.Reference, Err: fmt.Errorf("%s: %w", none.How(), err)}
	}
	return nil
}
