package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/image/build"
	"github.com/sandbox-run/sandbox-run/pkg/image/remote"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// registries adapts pkg/image/remote to the command line.
type registries struct{}

var _ cli.Registries = registries{}

func (registries) Pull(ctx context.Context, store *image.Store, ref string, f cli.Fetch) (*image.Image, error) {
	img, err := remote.Pull(ctx, store, ref, options(f))
	return img, explained(err)
}

func (registries) Update(ctx context.Context, store *image.Store, names []string, f cli.Fetch) ([]cli.Change, error) {
	found, err := remote.Update(ctx, store, names, options(f))
	changes := make([]cli.Change, len(found))
	for i, c := range found {
		changes[i] = cli.Change{Name: c.Name, Outcome: string(c.Outcome), Old: c.Old, New: c.New, Err: explained(c.Err)}
	}
	return changes, explained(err)
}

func options(f cli.Fetch) remote.Options {
	o := remote.Options{Platform: f.Platform, Insecure: f.Insecure}
	if f.Progress != nil {
		o.Progress = func(p remote.Progress) {
			f.Progress(cli.Motion{Image: p.Reference, Layer: p.Layer, State: string(p.State), Done: p.Done, Total: p.Total, Reason: p.Reason})
		}
	}
	return o
}

// explained turns a registry's error into a sandbox.Error, with the hint apart.
func explained(err error) error {
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

// builder adapts pkg/image/build to the command line.
type builder struct{}

var _ cli.Builder = builder{}

func (builder) Recipes() (all []cli.Recipe) {
	for _, name := range build.Names() {
		if d, err := build.Lookup(name); err == nil { // every listed name exists
			all = append(all, cli.Recipe{Name: name, Image: d.Reference(), About: d.Title + ": " + d.Description})
		}
	}
	return all
}

func (builder) Build(ctx context.Context, store *image.Store, name string, o cli.Building) (*image.Image, error) {
	return build.Build(ctx, store, name, build.Options{Suite: o.Suite, Mirror: o.Mirror, Tags: o.Tags, Log: o.Log, Progress: o.Progress})
}

func (builder) Dockerfile(name, base string) (string, error) {
	d, err := build.Lookup(name)
	if err != nil {
		return "", err
	}
	return d.Dockerfile(build.Base(base))
}

func (builder) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	return build.Collect(ctx, "", dryRun)
}
