package native

import (
	"os"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// workshop makes the mounts that sandboxes consist of. All of them are detached: visible nowhere on the host, and gone
// with their last descriptor, which is the caller's. Who may mount has a bench for it; whoever may not has a steward,
// who stands at a bench in a user namespace.
//
// Owners are ids as the workshop numbers them: see identity.
type workshop interface {
	// root is a copy of the read-only root for a spec.
	root(spec *sandbox.Spec) (int, error)
	// writableRoot is a root whose changes go to the scratch with that mount, which is used up: rest takes its place.
	writableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error)
	// again makes two of one, which is used up; with an error, other may still be there.
	again(mount int) (one, other int, err error)
	// scratch is a writable disk with its directories in it.
	scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (*scratch.Scratch, error)
	// volume is a directory or a file of the host.
	volume(v sandbox.Volume, owner int) (mount *os.File, isFile bool, err error)
	// opener opens the files of a scratch. It holds as long as that does.
	opener(s *scratch.Scratch, owner int) files.Opener
	// close lets go of everything that was kept. Twice is fine.
	close()
}

// bench is the workshop of whoever may mount.
type bench struct{ shop *rootfs.Bench }

func newBench(confined bool) (*bench, error) {
	b, err := rootfs.NewBench(rootfs.Options{Backend: Name, Confined: confined})
	if err != nil {
		return nil, err
	}
	return &bench{b}, nil
}

func (b *bench) close()                               { b.shop.Close() }
func (b *bench) root(spec *sandbox.Spec) (int, error) { return b.shop.Root(spec) }

func (b *bench) writableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	return b.shop.WritableRoot(spec, owner, disk)
}

func (b *bench) again(mount int) (one, other int, err error) { return b.shop.Again(mount) }

func (b *bench) scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (*scratch.Scratch, error) {
	return b.shop.Scratch(mode, o, owner)
}

func (b *bench) volume(v sandbox.Volume, owner int) (*os.File, bool, error) {
	return b.shop.Volume(v, owner)
}
