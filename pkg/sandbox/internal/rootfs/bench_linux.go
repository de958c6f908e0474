package rootfs

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/idmap"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
)

// maxTemplates bounds what unusual specs make a bench keep.
const maxTemplates = 64

// Options say whose bench it is, and where it stands.
type Options struct {
	Backend string // for errors
	// Workbench is a directory that may be covered in the bench's own mount namespace; default one that every Linux has and
	// nobody at the bench needs: /proc.
	Workbench string
	// Open lets others than root pass through the workbench, to what is mounted there.
	Open bool
	// Confined: root of a user namespace only. Such a root can neither make devices nor show anybody's files as
	// somebody else's.
	Confined bool
}

// Bench makes the mounts that sandboxes consist of, for whoever may mount. It keeps the roots it has put together. All that it
// hands out is detached: visible nowhere on the host, and gone with its last descriptor, which is the caller's.
type Bench struct {
	backend  string
	keeper   *keeper
	confined bool

	mu        sync.Mutex
	templates map[string]string // root by key → where it stands in the keeper's namespace
}

// NewBench starts the bench's own thread. The caller closes it.
func NewBench(o Options) (*Bench, error) {
	if o.Workbench == "" {
		o.Workbench = "/proc"
	}
	mode := "0700"
	if o.Open {
		mode = "0711"
	}
	k, err := newKeeper(o.Backend, o.Workbench, mode)
	if err != nil {
		return nil, launch.Failure(o.Backend, "start keeper", "rootfs", err)
	}
	return &Bench{backend: o.Backend, keeper: k, confined: o.Confined, templates: map[string]string{}}, nil
}

func (b *Bench) failure(op, stage string, err error) error {
	return launch.Failure(b.backend, op, stage, err)
}

// Close lets go of everything that was kept, and of the bench's mount namespace. Once only.
func (b *Bench) Close() { b.keeper.close() }

// Root is a copy of the read-only root for a spec.
func (b *Bench) Root(spec *sandbox.Spec) (fd int, err error) {
	key := templateKey(spec)
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.templates[key]
	if !ok {
		l, err := lay(b.backend, spec, -1, b.confined)
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
			return -1, b.failure("assemble root", "rootfs", err)
		}
		b.templates[key] = at
	}
	err = b.keeper.do(func() (err error) { fd, err = copyTree(at); return err })
	return fd, b.failure("copy root", "rootfs", err)
}

// WritableRoot is a root whose changes go to the scratch with that mount, which is used up: rest takes its place.
func (b *Bench) WritableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	l, err := lay(b.backend, spec, owner, b.confined)
	if err != nil {
		return -1, -1, err
	}
	defer l.close()
	err = b.keeper.do(func() (err error) {
		root, rest, err = b.keeper.assembleWritable(l, disk, owner)
		return err
	})
	if err != nil {
		return -1, -1, b.failure("assemble writable root", "rootfs", err)
	}
	return root, rest, nil
}

// Again makes two of one mount, which is used up; with an error, other may still be there.
func (b *Bench) Again(mount int) (one, other int, err error) {
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
	return one, other, b.failure("copy mount", "rootfs", err)
}

// Scratch is a writable disk with its directories in it.
func (b *Bench) Scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (s *scratch.Scratch, err error) {
	if mode == sandbox.ScratchMemory {
		s, err = scratch.Memory(o)
	} else {
		s, err = scratch.Disk(o)
	}
	if err != nil {
		return nil, b.failure("make scratch", "scratch", err)
	}
	for _, d := range files.Parts {
		if err := s.Mkdir(d.Name, d.Mode, owner, owner); err != nil {
			return nil, errors.Join(b.failure("make scratch", "scratch", err), s.Close())
		}
	}
	return s, nil
}

// Volume opens a directory or file of the host for the sandbox. The sandbox's user acts as the owner of the source. A
// file system that can not map ids is refused for writing; for reading its permissions simply hold as they are. A
// confined bench maps nothing: there the sandbox's user is whoever asks, and has the rights that they have. A maker, if not 0, may make files and
// give them to the owner.
func (b *Bench) Volume(v sandbox.Volume, owner, maker int) (*os.File, bool, error) {
	o := idmap.Options{Writable: v.Writable}
	if !b.confined {
		o.Owner = &idmap.Owner{UID: uint32(owner), GID: uint32(owner), Keep: uint32(maker)}
	}
	f, isFile, err := idmap.Open(v.Source, o)
	if errors.Is(err, idmap.ErrUnsupported) && !v.Writable {
		o.Owner = nil
		f, isFile, err = idmap.Open(v.Source, o)
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) { // ours, not the volume's
		return nil, false, b.failure("volume "+v.Source, "volumes", err)
	}
	if err != nil {
		out := &sandbox.Error{Backend: b.backend, Op: "volume " + v.Source, Kind: sandbox.ErrRefused, Err: err, Stage: "volumes"}
		if errors.Is(err, unix.ENOENT) {
			out.Kind = sandbox.ErrInvalid
		}
		return nil, false, out
	}
	return f, isFile, nil
}

// Opener opens the files of a scratch by its own descriptor, which serves as long as the scratch does, whoever has its mount, and
// after the last of them.
func (b *Bench) Opener(s *scratch.Scratch, owner int) files.Opener {
	return files.SharedDir{Use: s.Use, Owner: owner}
}

// Do runs f on the bench's thread, in its mount namespace.
func (b *Bench) Do(f func() error) error { return b.keeper.do(f) }

// Attach puts a detached mount at an existing place in the bench's namespace. The mount's descriptor stays the caller's.
func (b *Bench) Attach(mount int, at string) error {
	return b.keeper.do(func() error {
		return named(at, unix.MoveMount(mount, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	})
}
