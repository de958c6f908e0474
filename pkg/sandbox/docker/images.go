package docker

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var _ sandbox.ImageKeeper = (*Backend)(nil)

// LookUp returns the daemon's image of that reference. An image that the daemon does not have and that Options.Load has is loaded;
// nothing is downloaded.
func (b *Backend) LookUp(ctx context.Context, ref string) (sandbox.ImageInfo, error) {
	d, err := b.connect(ctx)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	name, err := b.substitute(ref)
	if err != nil {
		return sandbox.ImageInfo{}, err
	}
	found, err := d.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) && b.opts.Load != nil {
		if err = b.loadImage(ctx, d, name); err == nil {
			found, err = d.ImageInspect(ctx, name)
		}
	}
	if errdefs.IsNotFound(err) {
		return sandbox.ImageInfo{}, &sandbox.Error{Backend: Name, Op: "image " + ref, Stage: "image", Kind: sandbox.ErrNotFound, Err: err,
			Hint: "docker pull " + ref}
	}
	if err != nil {
		return sandbox.ImageInfo{}, failure("inspect image "+ref, "image", err)
	}
	info := sandbox.ImageInfo{ImageRef: sandbox.ImageRef{Reference: ref, ID: found.ID}}
	if len(found.RepoDigests) > 0 {
		_, info.Digest, _ = strings.Cut(found.RepoDigests[0], "@")
	}
	if c := found.Config; c != nil {
		info.Env, info.Workdir, info.Entrypoint, info.Cmd = c.Env, c.WorkingDir, c.Entrypoint, c.Cmd
	}
	return info, nil
}

// substitute returns the daemon's name of an image.
func (b *Backend) substitute(ref string) (string, error) {
	for _, sub := range b.opts.Substitutors {
		name, err := sub.Substitute(ref)
		if err != nil {
			return "", failure("substitute image "+ref+" by "+sub.Description(), "image", err)
		}
		ref = name
	}
	return ref, nil
}
