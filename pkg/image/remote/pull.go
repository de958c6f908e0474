package remote

import (
	"cmp"
	"context"
	"errors"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // for layers with gzip and zstd
)

// Pull fetches an image from its registry into a store, and returns the stored image. It does not fetch what the store has, and
// continues an interrupted download, also one of a killed process.
func Pull(ctx context.Context, store *image.Store, ref string, opts Options) (*image.Image, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	name, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	found, err := find(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	defer found.close()
	return found.pull(ctx, store)
}

// remoteImage is an image of a registry: its manifest, and the client that fetches the rest.
type remoteImage struct {
	*client
	found
	report   *reporter
	platform v1.Platform
}

// find resolves a reference. The caller closes the result.
func find(ctx context.Context, name reference, opts Options) (*remoteImage, error) {
	want, err := parsePlatform(opts.Platform)
	if err != nil {
		return nil, err
	}
	report := newReporter(name.String(), opts.Progress)
	report.image(Resolving, "")
	c, err := newClient(ctx, name, opts)
	if err != nil {
		report.image(Failed, err.Error())
		return nil, err
	}
	what, err := c.resolve(ctx, cmp.Or(name.Digest, name.Tag), want)
	if err != nil {
		c.close()
		report.image(Failed, err.Error())
		return nil, err
	}
	return &remoteImage{client: c, found: what, report: report, platform: want}, nil
}

func (r *remoteImage) pull(ctx context.Context, store *image.Store) (*image.Image, error) {
	img, err := r.add(ctx, store)
	if err == nil {
		err = remember(store, pulled{r.ref.String(), img.ID, r.digest, r.platform.String(), time.Now().UTC()})
	}
	if err != nil {
		r.report.image(Failed, err.Error())
		return nil, err
	}
	r.report.image(Done, "")
	return img, nil
}

func (r *remoteImage) add(ctx context.Context, store *image.Store) (*image.Image, error) {
	config, err := r.fetchConfig(ctx, r.manifest.Config)
	if err != nil {
		return nil, err
	}
	if err := checkPlatform(config, r.platform); err != nil {
		return nil, r.fail("read configuration "+r.manifest.Config.Digest.String(), err)
	}
	img, err := store.Add(ctx, image.Source{
		Names:    []string{r.ref.String()},
		Indexes:  r.indexes,
		Manifest: r.bytes,
		Config:   config,
		Layers:   r.layers(store),
		Parallel: r.opts.Parallel,
	})
	var ours *Error
	switch {
	case err == nil:
		return img, nil
	case ctx.Err() != nil:
		return nil, r.fail("pull", context.Cause(ctx))
	case errors.As(err, &ours):
		return nil, ours // without the store's prefix: the error names its operation
	}
	return nil, r.fail("add to the store", err)
}

// layers announces the layers and returns them with their Open functions. The store decides which layers it opens, and in how many
// goroutines.
func (r *remoteImage) layers(store *image.Store) []image.Layer {
	reports := make([]layerReport, len(r.manifest.Layers))
	layers := make([]image.Layer, len(r.manifest.Layers))
	first := map[string]int{} // the store fetches a layer that occurs twice only once
	for i, l := range r.manifest.Layers {
		digest := l.Digest.String()
		reports[i].Progress = Progress{Layer: digest, State: Waiting, Total: l.Size}
		if _, again := first[digest]; again || store.Has(digest) {
			reports[i].State, reports[i].Done = Present, l.Size
		} else {
			first[digest] = i
		}
		from := &layer{image: r, index: i, desc: l}
		layers[i] = image.Layer{Digest: digest, MediaType: string(l.MediaType), Size: l.Size, Open: from.open, Retry: from.retry}
	}
	r.report.announce(r.digest, reports)
	return layers
}
