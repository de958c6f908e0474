package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Build makes an image and adds it to a store as sandbox-run/NAME:latest. On success, failure and cancellation it leaves nothing of the
// build but the packages.
func Build(ctx context.Context, store *image.Store, name string, o Options) (*image.Image, error) {
	d, err := Lookup(name)
	if err != nil {
		return nil, err
	}
	return d.build(ctx, store.Add, o)
}

// build builds a definition. add stores the image.
func (d *Definition) build(ctx context.Context, add func(context.Context, image.Source) (*image.Image, error),
	o Options) (img *image.Image, err error) {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if o.Epoch.IsZero() {
		if o.Epoch, err = wantedEpoch(); err != nil {
			return nil, err
		}
	}
	said := &tail{} // output of the programs, for the error
	defer func() {
		if err != nil {
			img, err = nil, d.explain(ctx, err, said, o)
		}
	}()

	t, err := findTools()
	if err != nil {
		return nil, err
	}
	o.progress("looking for package sources")
	src, err := findSources(ctx, t, o)
	if err != nil {
		return nil, err
	}
	w, err := newWork(ctx, t, o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := w.remove(); err == nil && failed != nil {
			err = failed
		}
	}()
	if err := w.linkPackages(ctx, d.Name); err != nil {
		return nil, err
	}

	root, err := os.OpenFile(w.path("root.tar"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// File times come from the kernel's coarse clock, which lags behind time.Now, and archives store whole seconds.
	started := time.Now().Add(-time.Second).Truncate(time.Second)
	if err := w.bootstrap(ctx, d, src, root, said, o); err != nil {
		return nil, err
	}

	o.progress("packing the layer")
	packed, err := os.OpenFile(w.path("layer.tar.gz"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	l, err := writeLayer(ctx, root, packed, started, o.Epoch)
	if err != nil {
		return nil, err
	}
	if err := w.keepPackages(ctx, d.Name, l.packages); err != nil {
		return nil, err
	}
	_ = root.Truncate(0) // frees disk space for the store
	config, err := d.configuration(l, src.suite)
	if err != nil {
		return nil, err
	}
	o.progress("storing the image")
	return add(ctx, image.Source{
		Names:  append([]string{d.Reference()}, o.Tags...),
		Config: config,
		Layers: []image.Layer{{
			Digest:    l.digest,
			MediaType: "application/vnd.oci.image.layer.v1.tar+gzip",
			Size:      l.size,
			Open: func(_ context.Context, offset int64) (io.ReadCloser, error) {
				return io.NopCloser(io.NewSectionReader(packed, offset, l.size-offset)), nil
			},
		}},
	})
}

// tail keeps at least the last maxTail bytes of an output.
type tail struct{ text []byte }

const maxTail = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if len(t.text) > 2*maxTail {
		t.text = bytes.Clone(t.text[len(t.text)-maxTail:])
	}
	return len(p), nil
}

// Collect finds the leftovers of killed builds in a directory (empty: the default one) and, unless dryRun, removes them. Build removes
// them as well.
func Collect(ctx context.Context, dir string, dryRun bool) (found []sandbox.Residue, err error) {
	dir, err = directory(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	held, err := lockDirectory(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	works, err := abandoned(dir)
	if err != nil || len(works) == 0 {
		return nil, err
	}
	t, err := findTools()
	if err != nil {
		return nil, err
	}
	for _, own := range works {
		r := sandbox.Residue{Kind: "build", Name: own}
		if !dryRun {
			if err := removeTree(ctx, t, own); err != nil {
				r.Problem = err.Error()
			}
			r.Removed = r.Problem == ""
		}
		found = append(found, r)
	}
	return found, nil
}

// directory returns dir as an absolute path; empty is the default directory of builds.
func directory(dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/sandbox-run/build", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory to build in: %w", err)
	}
	return filepath.Join(cache, "sandbox-run", "build"), nil
}
