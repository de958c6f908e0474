package native

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/idmap"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/files"
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

// maxTemplates bounds what unusual specs make a bench keep.
const maxTemplates = 64

// bench is the workshop of whoever may mount. It keeps the roots it has put together.
type bench struct {
	keeper *keeper
	// confined: root of a user namespace only. Such a root can neither make devices nor show anybody's files as
	// somebody else's.
	confined bool

	mu        sync.Mutex
	templates map[string]string // root by key → where it stands in the keeper's namespace
}

func newBench(confined bool) (*bench, error) {
	k, err := newKeeper()
	if err != nil {
		return nil, failure("start keeper", "rootfs", err)
	}
	return &bench{keeper: k, confined: confined, templates: map[string]string{}}, nil
}

func (b *bench) close() { b.keeper.close() }

func (b *bench) root(spec *sandbox.Spec) (fd int, err error) {
	key := templateKey(spec)
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.templates[key]
	if !ok {
		l, err := lay(spec, -1, b.confined)
		if err != nil {
			return -1, err
		}
		defer l.close()
		err = b.keeper.do(func() (err error) {
			if len(b.templates) >= maxTemplates {
				for key, at := range b.templates {
					b.keeper.drop(at)
					delete(b.templates, key)
					break
				}
			}
			at, err = b.keeper.assemble(l)
			return err
		})
		if err != nil {
			return -1, failure("assemble root", "rootfs", err)
		}
		b.templates[key] = at
	}
	err = b.keeper.do(func() (err error) { fd, err = copyTree(at); return err })
	return fd, failure("copy root", "rootfs", err)
}

func (b *bench) writableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	l, err := lay(spec, owner, b.confined)
	if err != nil {
		return -1, -1, err
	}
	defer l.close()
	err = b.keeper.do(func() (err error) {
		root, rest, err = b.keeper.assembleWritable(l, disk, owner)
		return err
	})
	if err != nil {
		return -1, -1, failure("assemble writable root", "rootfs", err)
	}
	return root, rest, nil
}

func (b *bench) again(mount int) (one, other int, err error) {
	one, other = -1, -1
	err = b.keeper.do(func() error {
		// Halfway there is no way back: the mount would be gone. So the descriptor that is needed there is taken before.
		spare, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		at, err := b.keeper.hold(mount)
		_ = unix.Close(spare)
		if err != nil {
			return err
		}
		defer b.keeper.drop(at)
		if other, err = copyTree(at); err == nil {
			one, err = copyTree(at)
		}
		return err
	})
	return one, other, failure("copy mount", "rootfs", err)
}

func (b *bench) scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (s *scratch.Scratch, err error) {
	if mode == sandbox.ScratchMemory {
		s, err = scratch.Memory(o)
	} else {
		s, err = scratch.Disk(o)
	}
	if err != nil {
		return nil, failure("make scratch", "scratch", err)
	}
	for _, d := range files.Parts {
		if err := s.Mkdir(d.Name, d.Mode, owner, owner); err != nil {
			return nil, errors.Join(failure("make scratch", "scratch", err), s.Close())
		}
	}
	return s, nil
}

// volume opens a directory or file of the host for the sandbox. The sandbox's user acts as the owner of the source. A
// file system that can not map ids is refused for writing; for reading its permissions simply hold as they are. A
// confined bench maps nothing: there the sandbox's user is whoever asks, and has the rights that they have.
func (b *bench) volume(v sandbox.Volume, owner int) (*os.File, bool, error) {
	o := idmap.Options{Writable: v.Writable}
	if !b.confined {
		o.Owner = &idmap.Owner{UID: uint32(owner), GID: uint32(owner)}
	}
	f, isFile, err := idmap.Open(v.Source, o)
	if errors.Is(err, idmap.ErrUnsupported) && !v.Writable {
		o.Owner = nil
		f, isFile, err = idmap.Open(v.Source, o)
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) { // ours, not the volume's
		return nil, false, failure("volume "+v.Source, "volumes", err)
	}
	if err != nil {
		out := &sandbox.Error{Backend: Name, Op: "volume " + v.Source, Kind: sandbox.ErrRefused, Err: err, Stage: "volumes"}
		if errors.Is(err, unix.ENOENT) {
			out.Kind = sandbox.ErrInvalid
		}
		return nil, false, out
	}
	return f, isFile, nil
}
