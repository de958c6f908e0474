package oci

import (
	"context"
	"errors"
	"io"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
)

// Put makes files in the scratch, in any state but destroyed.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.shelves().Put(ctx, list)
}

// Take hands out files of the scratch, in any state but destroyed.
func (i *instance) Take(ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	untaken, err := i.shelves().Take(ctx, s, each)
	// After the copy: what was read before the host's disk lost something is right.
	return untaken, errors.Join(err, launch.DiskFailure(Name, i.b.opts.CacheDir, i.scratch.CheckBacking()))
}

func (i *instance) shelves() *files.Scratch {
	return &files.Scratch{
		Place: files.Tree{Opener: i.work.shop.Opener(i.scratch, i.owner)}, Backend: Name, Failure: failure,
		Lives: i.lives, Full: "a larger --disk than " + i.spec.Limits.Disk.String() + ", or more --inodes",
	}
}
