// Package full is the part of the command line that only sandbox-rund has: every subcommand but run, exec, gc, doctor and version.
//
// What. Sessions and the REPL, images, API keys, the server, the audit log, receipts, workspaces, templates, languages, completion and the
// manual page. For commands of package cli it has the features whose libraries are slow to start: the Docker backend, HTTPS to a server, the attack suite.
//
// Place in the flow. cmd/sandbox-rund calls Main; no other package imports this one. It uses internal/cli, which has the list of all
// subcommands, the flags and the output. Each subcommand is one file that registers itself with implement.
//
// Lifecycle. Main ends the process. A command stops what it has started before it returns.
//
// Concurrency. Only progress bars and the server use goroutines.
//
// Limits. Packages that are linked here slow every start of sandbox-rund (about 15 ms before main), and no start of sandbox-run.
package full

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/client/web"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/image/build"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker"

	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // zstd, and a faster gzip
)

// commands are the subcommands of one invocation.
type commands struct{ *cli.Invocation }

// implement registers a subcommand that the list in internal/cli/commands.go names.
func implement(name string, make func(*commands) *cobra.Command) {
	cli.Implement(name, func(c *cli.Invocation) *cobra.Command { return make(&commands{c}) })
}

// Main runs the full executable. It ends the process.
func Main() {
	app.Register(app.Docker, openDocker)
	cli.MainFull(fullParts())
}

// fullParts are what the full executable has beyond the thin one.
func fullParts() cli.Full {
	return cli.Full{
		Web: dialWeb,
		CollectBuilds: func(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
			return build.Collect(ctx, "", dryRun)
		},
		Attack:   attackBackend,
		Interact: interact,
		Complete: addCompletions,
	}
}

// dialWeb makes the transport to a server at an http or https address.
func dialWeb(address, key, caFile string) (client.Transport, error) {
	t, err := web.New(address, web.Options{Key: key, CAFile: caFile})
	if err != nil {
		return nil, err // an untyped nil: a nil *Transport in an interface is not nil
	}
	return t, nil
}

// openDocker opens the Docker backend. Images that the daemon does not have are loaded from the image store.
func openDocker(o app.Options) (sandbox.Backend, error) {
	b, err := docker.New(docker.Options{Host: o.DockerHost, Runtime: o.Runtime, Image: o.Image, Load: exportStored})
	if err != nil {
		return nil, err // an untyped nil: a nil *docker.Backend in an interface is not nil
	}
	return b, nil
}

// exportStored returns an image of the image store in the format of `docker load`. The caller closes it.
func exportStored(ctx context.Context, ref string) (io.ReadCloser, error) {
	store, err := app.OpenExistingImages()
	if err != nil || store == nil {
		return nil, errors.Join(err, docker.ErrNoImage)
	}
	if _, err := store.Lookup(ref); err != nil {
		if errors.Is(err, image.ErrNotFound) {
			err = docker.ErrNoImage
		}
		return nil, err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(store.Export(ctx, []string{ref}, w, image.FormatDocker)) }()
	return r, nil
}
