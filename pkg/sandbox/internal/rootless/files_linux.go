package rootless

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
)

// remoteFiles is a scratch whose files the mount helper opens: the helper is root in the user namespace of their owner.
// It returns descriptors; the content of the files never goes through the helper.
type remoteFiles struct {
	helper  *HelperProcess
	scratch *scratch.Scratch
	owner   int
}

// Opener opens the files of a scratch. It is valid as long as the scratch.
func (s *HelperProcess) Opener(disk *scratch.Scratch, owner int) files.Opener {
	return remoteFiles{s, disk, owner}
}

func (d remoteFiles) ask(o order, want int) (fds []int, err error) {
	o.Owner = d.owner
	err = d.scratch.Use(func(fd int) (err error) {
		_, fds, err = d.helper.ask(o, []int{fd}, want)
		return err
	})
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // the caller adds the operation
	}
	return fds, err
}

func (d remoteFiles) Create(p string, mode uint32) (int, error) {
	return one(d.ask(order{What: orderCreate, Path: []byte(p), Perm: mode}, 1))
}

func (d remoteFiles) Link(p, target string) error {
	_, err := d.ask(order{What: orderLink, Path: []byte(p), Target: []byte(target)}, 0)
	return err
}

func (d remoteFiles) Open(p string) (int, error) {
	return one(d.ask(order{What: orderOpen, Path: []byte(p)}, 1))
}

func (d remoteFiles) Remove(p string) error {
	_, err := d.ask(order{What: orderRemove, Path: []byte(p)}, 0)
	return err
}

// WaitClosed: the helper closes the files that it has opened after it has sent them, before the next order.
func (d remoteFiles) WaitClosed() error {
	_, _, err := d.helper.ask(order{What: orderSettle}, nil, 0)
	clone.Settle()
	return err
}

func one(fds []int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}
