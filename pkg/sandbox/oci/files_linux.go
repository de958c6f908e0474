package oci

import (
	"context"
	"errors"
	"io"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
)

// Put makes files in the scratch, in any state but destroyed.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	ctx, done, err := i.transfer(ctx)
	if err != nil {
		return err
	}
	defer done()
	return i.shelves().Put(ctx, list)
}

// Take hands out files of the scratch, in any state but destroyed.
func (i *instance) Take(ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	ctx, done, err := i.transfer(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return i.shelves().Take(ctx, s, each)
}

// shelves opens files by the scratch's own descriptor, which serves as long as the scratch does, whichever containers have it
// mounted.
func (i *instance) shelves() *files.Scratch {
	return &files.Scratch{
		Place: files.Tree{Opener: files.Held{Use: i.scratch.Use, Owner: i.ids.user}}, Backend: Name, Failure: failure,
		Full: "a larger --disk than " + i.spec.Limits.Disk.String() + ", or more --inodes",
	}
}

// transfer is a context that ends with the sandbox, too: files that are open would keep its scratch from going.
func (i *instance) transfer(ctx context.Context) (context.Context, func(), error) {
	gone := &sandbox.Error{Backend: Name, Op: "files", Kind: sandbox.ErrState, Err: errors.New("the sandbox is deleted")}
	if i.lives.Err() != nil {
		return nil, nil, gone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(i.lives, func() { cancel(gone) })
	return ctx, func() {
		stop()
		cancel(nil)
	}, nil
}
