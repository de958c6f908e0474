package native

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
)

// opener: the scratch's own descriptor serves as long as the scratch does, whichever init has its mount, and after the last
// of them.
func (b *bench) opener(s *scratch.Scratch, owner int) files.Opener {
	return files.Held{Use: s.Use, Owner: owner}
}

// delivery is a scratch whose files the steward opens: it is root where their owner's id means something. The descriptors
// come back, and what is in the files never goes through the steward.
type delivery struct {
	steward *steward
	scratch *scratch.Scratch
	owner   int
}

func (s *steward) opener(disk *scratch.Scratch, owner int) files.Opener {
	return delivery{s, disk, owner}
}

func (d delivery) ask(o order, want int) (fds []int, err error) {
	o.Owner = d.owner
	err = d.scratch.Use(func(fd int) (err error) {
		_, fds, err = d.steward.ask(o, []int{fd}, want)
		return err
	})
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // the rest is told by who asked
	}
	return fds, err
}

func (d delivery) Create(p string, mode uint32) (int, error) {
	return one(d.ask(order{What: orderCreate, Path: []byte(p), Perm: mode}, 1))
}

func (d delivery) Open(p string) (int, error) {
	return one(d.ask(order{What: orderOpen, Path: []byte(p)}, 1))
}

func (d delivery) Remove(p string) error {
	_, err := d.ask(order{What: orderRemove, Path: []byte(p)}, 0)
	return err
}

func one(fds []int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// Put makes files in the scratch, in any state but destroyed.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.shelves().Put(ctx, list)
}

// Take hands out files of the scratch, in any state but destroyed.
func (i *instance) Take(ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	return i.shelves().Take(ctx, s, each)
}

func (i *instance) shelves() *files.Scratch {
	return &files.Scratch{
		Place: files.Tree{Opener: i.shop.opener(i.scratch, i.id.owner)}, Backend: Name, Failure: failure,
		Lives: i.lives, Full: "a larger --disk than " + i.spec.Limits.Disk.String() + ", or more --inodes",
	}
}
