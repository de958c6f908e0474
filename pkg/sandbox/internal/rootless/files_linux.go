package rootless

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
)

// delivery is a scratch whose files the steward opens: it is root where their owner's id means something. The descriptors
// come back, and what is in the files never goes through the steward.
type delivery struct {
	steward *Steward
	scratch *scratch.Scratch
	owner   int
}

// Opener opens the files of a scratch. It holds as long as that does.
func (s *Steward) Opener(disk *scratch.Scratch, owner int) files.Opener {
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

// WaitClosed: the steward closes what it has opened when it has handed that over, and before it takes the next order.
func (d delivery) WaitClosed() error {
	_, _, err := d.steward.ask(order{What: orderSettle}, nil, 0)
	clone.Settle()
	return err
}

func one(fds []int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}
