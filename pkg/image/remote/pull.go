package remote

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // registries have layers of every compression
)

// Pull fetches an image from its registry into a store, and returns it as the store has it. What the store has already is not fetched again,
// and a download that was cut, in this process or in one that was killed, goes on where it ended.
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

// remoteImage is an image that was found in a registry: everything but its layers.
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
	what, err := c.resolve(ctx, name.id(), want)
	if err != nil {
		c.close()
		report.image(Failed, err.Error())
		return nil, err
	}
	return &remoteImage{client: c, found: what, report: report, platform: want}, nil
}

func (r *remoteImage) pull(ctx context.Context, store *image.Store) (*image.Image, error) {
	img, err := r.add(ctx, store)
	if err != nil {
		r.report.image(Failed, err.Error())
		return nil, err
	}
	if err := remember(store, pulled{Name: r.ref.String(), ID: img.ID, Digest: r.digest, Platform: r.platform.String(), At: time.Now().UTC()}); err != nil {
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
	})
	var ours *Error
	switch {
	case err == nil:
		return img, nil
	case ctx.Err() != nil:
		return nil, r.fail("pull", context.Cause(ctx))
	case errors.As(err, &ours):
		return nil, ours // the store adds where it stood; the error says that itself
	}
	return nil, r.fail("add to the store", err)
}

// layers announces the layers and says how each is opened. The store decides which it needs, and in how many goroutines.
func (r *remoteImage) layers(store *image.Store) []image.Layer {
	slots := make(chan struct{}, r.opts.Parallel)
	reports := make([]layerReport, len(r.manifest.Layers))
	layers := make([]image.Layer, len(r.manifest.Layers))
	first := map[string]int{} // a layer may occur twice, and is fetched once
	for i, l := range r.manifest.Layers {
		digest := l.Digest.String()
		reports[i].Progress = Progress{Layer: digest, State: Waiting, Total: l.Size}
		if _, again := first[digest]; again || store.Has(digest) {
			reports[i].State, reports[i].Done = Present, l.Size
		} else {
			first[digest] = i
		}
		layers[i] = image.Layer{
			Digest: digest, MediaType: string(l.MediaType), Size: l.Size,
			Open: (&layer{image: r, slots: slots, index: i, desc: l}).open,
		}
	}
	r.report.announce(r.digest, reports)
	return layers
}

// layer is a layer on its way. The store opens it again when it was cut; once it was given up here, that is final.
type layer struct {
	image *remoteImage
	slots chan struct{} // one for each download that may run
	index int
	desc  v1.Descriptor

	mu     sync.Mutex
	failed error
}

// open waits for its turn; closing the reader is the next one's.
func (l *layer) open(ctx context.Context, offset int64) (io.ReadCloser, error) {
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	if failed != nil {
		return nil, failed
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	note := func(state State, done int64, reason string, wait time.Duration) {
		l.image.report.layer(l.index, state, done, reason, wait)
	}
	b, err := l.image.openBlob(ctx, l.desc.Digest.String(), l.desc.Size, offset, note)
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &download{blob: b, layer: l}, nil
}

// download is one reading of a layer. It gives its slot back when it is closed.
type download struct {
	blob  *blob
	layer *layer
	once  sync.Once
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.blob.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		d.layer.mu.Lock()
		d.layer.failed = err
		d.layer.mu.Unlock()
	}
	return n, err
}

// Close may be called twice, and during a Read.
func (d *download) Close() error {
	err := d.blob.Close()
	d.once.Do(func() { <-d.layer.slots })
	return err
}
