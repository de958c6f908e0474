package main

import (
	"context"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/hostimage"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// images compares sandboxes with an image as root and sandboxes that show paths of the host: the same program, made of the same files.
func (s *environment) images(ctx context.Context) ([]bench.Row, error) {
	const name, command, bar = "bench/true", "/usr/bin/true", 1.3
	dir := filepath.Join(s.cache, "images")
	store, err := image.Open(dir)
	if err != nil {
		return nil, err
	}
	if _, err := hostimage.Add(ctx, store, name, hostimage.Contents{Programs: []string{command}}); err != nil {
		return nil, err
	}
	stored := executor.StoredImages(func() (*image.Store, error) { return store, nil })
	on := func(ctx context.Context, number int) (bench.Sample, error) {
		return timed(func() error {
			img, err := executor.LookUpImage(ctx, s.manager, stored, name)
			if err != nil {
				return err
			}
			defer img.Release()
			spec := sandbox.Spec{Scratch: sandbox.ScratchMemory}
			img.Apply(&spec)
			_, err = s.once(ctx, number, spec, command)
			return err
		}, s.gone.verify)
	}
	ours, ref, err := bench.Pairs(ctx, s.warmup, s.pairs, on, s.fresh(sandbox.Spec{Scratch: sandbox.ScratchMemory}, command))
	if err != nil {
		return nil, err
	}
	library := bench.Compare("fresh sandbox on an image + true + gone, library", "host paths", ours, ref, bar)
	library.Note = "the image is looked up, leased and let go each time"

	onImage, onHost := s.program(s.cli, "exec", "--image", name, "--", command), s.program(s.cli, "exec", "--", command)
	for _, p := range []*program{onImage, onHost} {
		p.env = []string{"SANDBOX_RUN_IMAGES=" + dir}
	}
	ours, ref, err = bench.Pairs(ctx, s.warmup, s.pairs, always(onImage), always(onHost))
	if err != nil {
		return nil, err
	}
	return []bench.Row{library, bench.Compare("sandbox-run exec --image, the whole command", "host paths", ours, ref, bar)}, nil
}
