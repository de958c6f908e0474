package rootless

import (
	"os"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// MountHelper makes the mounts of sandboxes. All of them are detached: visible nowhere on the host, and gone with their
// last descriptor, which the caller owns. Root has a thread for it, an ordinary user a process that is root of a user
// namespace.
//
// Owners are ids as the mount helper numbers them: see Identity.
type MountHelper interface {
	// Root is a copy of the read-only root for a spec.
	Root(spec *sandbox.Spec) (int, error)
	// WritableRoot is a root whose changes go to the scratch with that mount. It consumes the mount: rest takes its
	// place.
	WritableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error)
	// CloneMount makes two of one mount, which it consumes; with an error, other may still be valid.
	CloneMount(mount int) (one, other int, err error)
	// Scratch is a writable disk with its directories in it.
	Scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (*scratch.Scratch, error)
	// Volume is a directory or a file of the host. A maker, if not 0, may make files and give them to the owner, where ids are mapped.
	Volume(v sandbox.Volume, owner, maker int) (mount *os.File, isFile bool, err error)
	// Opener opens the files of a scratch. It is valid as long as the scratch.
	Opener(s *scratch.Scratch, owner int) files.Opener
	// Close drops everything that the helper keeps. It may be called twice.
	Close()
}

var (
	_ MountHelper = (*rootfs.MountHelper)(nil)
	_ MountHelper = (*HelperProcess)(nil)
)

// NewMountHelper starts the mount helper of this process's user: a thread, or a process. The caller closes it.
func NewMountHelper(self Self, o rootfs.Options) (MountHelper, error) {
	// An untyped nil beside an error: a nil pointer in an interface is not nil.
	if self.Privileged {
		b, err := rootfs.NewMountHelper(o)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	s, err := StartHelperProcess(o.Backend, self)
	if err != nil {
		return nil, err
	}
	return s, nil
}
