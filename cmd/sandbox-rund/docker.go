package main

import (
	"context"
	"errors"
	"io"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker"
)

// openDocker opens the docker backend. Images that the daemon does not have come from our own store, if it has them.
func openDocker(o app.Options) (sandbox.Backend, error) {
	b, err := docker.New(docker.Options{Host: o.DockerHost, Runtime: o.Runtime, Image: o.Image, Load: fromStore})
	if err != nil {
		return nil, err // an untyped nil: a nil *docker.Backend in an interface is not nil
	}
	return b, nil
}

// fromStore exports an image of our own store in the format of `docker load`.
func fromStore(ctx context.Context, ref string) (io.ReadCloser, error) {
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

// setUpDocker is docker.Setup for this machine.
func setUpDocker(ctx context.Context, yes bool, in io.Reader, out io.Writer) error {
	return docker.Setup(ctx, docker.ThisMachine(), yes, in, out)
}
