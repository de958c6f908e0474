package full

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func (c *commands) newImageImport() *cobra.Command {
	var names cli.List
	var o image.ImportOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|DIR|-",
		Short: "Import images from a file",
		Long: `Imports images from a file, a directory, or standard input (-): an archive of docker save
or podman save, an OCI layout, or a plain archive of a root file system, which needs a
name. Archives may be compressed with gzip or zstd. Every digest is checked.`,
		Example: `  docker save python:3.13-slim | sandbox-run image import -
  sandbox-run image import layout/ --name mine:1
  sandbox-run image import rootfs.tar.gz --name mine`,
		Args: requireNames("file", 1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			o.Names = names.Values
			images, err := c.importImages(args[0], o, quiet)
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(images)
			}
			for _, i := range images {
				c.printImage(i)
			}
			return nil
		},
	}
	cmd.Flags().Var(&names, "name", "`name` of the image, instead of those in the archive; repeatable")
	addPlatformFlag(cmd.Flags(), &o.Platform)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the images as one JSON document")
	return cmd
}

// printImage prints names, id and size of an image that was added.
func (c *commands) printImage(i *image.Image) {
	names := make([]string, 0, len(i.Names))
	for _, name := range i.Names {
		names = append(names, image.Familiar(name))
	}
	if len(names) == 0 {
		names = []string{noName}
	}
	fmt.Fprintf(c.Std.Out, "%s  %s  %s\n", cli.EscapeLine(strings.Join(names, ", ")), shortID(i.ID), sandbox.Size(i.Size))
}

func (c *commands) importImages(path string, o image.ImportOptions, quiet bool) ([]*image.Image, error) {
	if path == cli.StdinName {
		if cli.IsTerminal(c.Std.In) {
			return nil, sandbox.Invalid("import",
				"standard input is a terminal, and no archive; try: docker save IMAGE | sandbox-run image import -")
		}
	} else if _, err := os.Stat(path); err != nil {
		return nil, &sandbox.Error{Op: "import", Kind: sandbox.ErrInvalid, Err: err}
	}
	store, err := app.OpenImages()
	if err != nil {
		return nil, err
	}
	var wait *cli.Progress
	if cli.CanRedraw(c.Std.Err) && !quiet {
		wait = &cli.Progress{To: c.Std.Err}
	}
	wait.Start("importing")
	defer wait.End()
	return runInterruptible(func(ctx context.Context) ([]*image.Image, error) {
		if path == cli.StdinName {
			return store.Import(ctx, c.Std.In, o)
		}
		return store.ImportPath(ctx, path, o)
	})
}

// exported is the result of image export, as JSON.
type exported struct {
	Images []string     `json:"images"`
	Format image.Format `json:"format"`
	Path   string       `json:"path"`
	Bytes  int64        `json:"bytes,omitempty"` // of an archive
}

func (c *commands) newImageExport() *cobra.Command {
	var output string
	format := image.FormatOCI
	cmd := &cobra.Command{
		Use:   "export [flags] IMAGE…",
		Short: "Write images to a file",
		Long: `Writes images to a file or to standard output, as an archive of an OCI layout or as an
archive for docker load. An output that ends in / is a new directory, which gets the OCI
layout without an archive.`,
		Example: `  sandbox-run image export mine -o mine.tar
  sandbox-run image export --format docker mine | docker load
  sandbox-run image export mine -o layout/`,
		Args: requireNames("image", 1, -1),
		RunE: func(cmd *cobra.Command, refs []string) error {
			if err := cli.CheckNotEmpty(cmd.Flags(), "output"); err != nil {
				return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
			}
			report, err := c.exportImages(refs, output, format)
			switch {
			case errors.Is(err, syscall.EPIPE) && report == nil:
				c.Code = cli.CodeBrokenPipe // the reader is gone
				return nil
			case err != nil:
				return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
			case c.JSON:
				return c.WriteJSON(report)
			case report.Path != cli.StdinName:
				what := ""
				if report.Bytes > 0 {
					what = ", " + sandbox.Size(report.Bytes).String()
				}
				fmt.Fprintf(c.Std.Out, "wrote %s%s\n", cli.EscapeLine(report.Path), what)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`file` to write, or a directory/ (default standard output)")
	cli.AddParsed(cmd.Flags(), &format, "format", string(image.FormatOCI), "`format` of the archive: oci, docker",
		func(s string) (image.Format, error) {
			word, err := cli.ReadOneOf(string(image.FormatOCI), string(image.FormatDocker))(s)
			return image.Format(word), err
		})
	cli.Annotate(cmd.Flags().Lookup("format"), cli.NoVariable, "that of runs is for text and JSON")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print what was written as one JSON document; needs --output")
	return cmd
}

func (c *commands) exportImages(refs []string, output string, format image.Format) (*exported, error) {
	report := &exported{Images: refs, Format: format, Path: output}
	if output == "" || output == cli.StdinName {
		report.Path = cli.StdinName
		switch {
		case c.JSON:
			return nil, sandbox.Invalid("json", "standard output is for the archive; name a file with --output")
		case cli.IsTerminal(c.Std.Out):
			return nil, sandbox.Invalid("output", "an archive is nothing for a terminal; name a file with --output, or pipe it")
		}
	}
	for _, ref := range refs { // before the file is created
		if _, err := findImage(ref); err != nil {
			return nil, err
		}
	}
	store, err := app.OpenImages()
	if err != nil {
		return nil, err
	}
	return runInterruptible(func(ctx context.Context) (*exported, error) {
		if report.Path == cli.StdinName {
			if err := store.Export(ctx, refs, c.Std.Out, format); err != nil {
				return nil, err
			}
			return report, nil
		}
		if dir, ok := asDirectory(output); ok {
			if format != image.FormatOCI {
				return nil, sandbox.Invalid("format", "a directory holds an OCI layout; name a file for %s", format)
			}
			return report, store.ExportDir(ctx, refs, dir)
		}
		report.Bytes, err = writeFileAtomically(output, func(w io.Writer) error { return store.Export(ctx, refs, w, format) })
		return report, err
	})
}

// asDirectory reports whether a path ends in / or is a directory, and returns it without the /.
func asDirectory(path string) (string, bool) {
	slashed := filepath.ToSlash(path)
	if trimmed := strings.TrimRight(slashed, "/"); trimmed != slashed && trimmed != "" {
		return filepath.FromSlash(trimmed), true
	}
	st, err := os.Stat(path)
	return path, err == nil && st.IsDir()
}

// writeFileAtomically writes a file and renames it to path, so that path never has a part of the content. After a failure, path is
// unchanged.
func writeFileAtomically(path string, write func(io.Writer) error) (size int64, err error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() { // a device or a pipe can not be replaced
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		return 0, errors.Join(write(f), f.Close())
	}
	// Not os.CreateTemp: the mode has to follow the umask.
	unfinished := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d", filepath.Base(path), os.Getpid()))
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return 0, &sandbox.Error{Op: "output", Kind: sandbox.ErrInvalid, Err: err}
	}
	defer func() {
		if err != nil {
			_ = os.Remove(unfinished) // the first error is reported
		}
	}()
	if err = write(f); err != nil {
		return 0, errors.Join(err, f.Close())
	}
	st, err := f.Stat()
	if err != nil {
		return 0, errors.Join(err, f.Close())
	}
	if err = f.Close(); err != nil {
		return 0, err
	}
	return st.Size(), os.Rename(unfinished, path)
}
