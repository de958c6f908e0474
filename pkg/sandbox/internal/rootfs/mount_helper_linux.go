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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// maxTemplates bounds how many roots of unusual specs are kept.
const maxTemplates = 64

// Options of a MountHelper.
type Options struct {
	Backend string // for errors
	// Dir is a directory that may be covered in the helper's own mount namespace; default one that every Linux has and the helper does not
	// need: /proc.
	Dir string
	// Open lets users other than root pass through Dir, to the mounts in it.
	Open bool
	// Confined: root of a user namespace only. Such a root can neither make devices nor show the files of one
	// user as those of another.
	Confined bool
}

// MountHelper makes the mounts of sandboxes, in a thread. It keeps the roots it has assembled. All mounts that it
// returns are detached: visible nowhere on the host, and gone with their last descriptor, which the caller owns.
type MountHelper struct {
	backend  string
	thread   *mountThread
	confined bool

	mu        sync.Mutex
	templates map[string]string // key of a root → its path in the thread's namespace
}

// NewMountHelper starts the thread. The caller closes the helper.
func NewMountHelper(o Options) (*MountHelper, error) {
	if o.Dir == "" {
		o.Dir = "/proc"
	}
	mode := "0700"
	if o.Open {
		mode = "0711"
	}
	k, err := startMountThread(o.Backend, o.Dir, mode)
	if err != nil {
		return nil, faults.Wrap(o.Backend, "start mount thread", "rootfs", err)
	}
	return &MountHelper{backend: o.Backend, thread: k, confined: o.Confined, templates: map[string]string{}}, nil
}

func (b *MountHelper) failure(op, stage string, err error) error {
	return faults.Wrap(b.backend, op, stage, err)
}

// Close drops all kept roots, and the thread's mount namespace. It is called once.
func (b *MountHelper) Close() { b.thread.close() }

// Root is a copy of the read-only root for a spec.
func (b *MountHelper) Root(spec *sandbox.Spec) (fd int, err error) {
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
		if templateKey(spec) != key {
			return -1, b.failure("assemble root", "rootfs", errors.New("files of the host were replaced meanwhile"))
		}
		err = b.thread.do(func() (err error) {
			if len(b.templates) >= maxTemplates {
				for key, at := range b.templates {
					b.thread.drop(at)
					delete(b.templates, key)
					break
				}
			}
			at, err = b.thread.assemble(l)
			return err
		})
		if err != nil {
			return -1, b.failure("assemble root", "rootfs", err)
		}
		b.templates[key] = at
	}
	err = b.thread.do(func() (err error) { fd, err = copyTree(at); return err })
	return fd, b.failure("copy root", "rootfs", err)
}

// WritableRoot is a root whose changes go to the scratch with that mount. It consumes the mount: rest takes its place.
func (b *MountHelper) WritableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	l, err := lay(b.backend, spec, owner, b.confined)
	if err != nil {
		return -1, -1, err
	}
	defer l.close()
	err = b.thread.do(func() (err error) {
		root, rest, err = b.thread.assembleWritable(l, disk, owner)
		return err
	})
	if err != nil {
		return -1, -1, b.failure("assemble writable root", "rootfs", err)
	}
	return root, rest, nil
}

// CloneMount makes two of one mount, which it consumes; with an error, other may still be valid.
func (b *MountHelper) CloneMount(mount int) (one, other int, err error) {
	one, other = -1, -1
	err = b.thread.do(func() error {
		// After the attach there is no way back: the mount would be gone. So the descriptor for that step is opened
		// before.
		spare, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		at, err := b.thread.attachAnywhere(mount)
		_ = unix.Close(spare)
		if err != nil {
			return err
		}
		defer b.thread.drop(at)
		if other, err = copyTree(at); err == nil {
			one, err = copyTree(at)
		}
		return err
	})
	return one, other, b.failure("copy mount", "rootfs", err)
}

// Scratch is a writable disk with its directories in it.
func (b *MountHelper) Scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (s *scratch.Scratch, err error) {
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

// Volume opens a directory or file of the host for the sandbox. The sandbox's user has the rights of the owner of the
// source. A file system that can not map ids is refused for writing; for reading its permissions hold unchanged. A
// confined helper maps nothing: there the sandbox's user is the supervisor's own, and has its rights. A maker, if not 0,
// may make files and give them to the owner.
func (b *MountHelper) Volume(v sandbox.Volume, owner, maker int) (*os.File, bool, error) {
	o := idmap.Options{Writable: v.Writable}
	if !b.confined {
		o.Owner = &idmap.Owner{UID: uint32(owner), GID: uint32(owner), Keep: uint32(maker)}
	}
	f, isFile, err := idmap.Open(v.Source, o)
	if errors.Is(err, idmap.ErrUnsupported) && !v.Writable {
		o.Owner = nil
		f, isFile, err = idmap.Open(v.Source, o)
	}
	// a limit of this process, not a fault of the volume
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
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

// Opener opens the files of a scratch by the scratch's own descriptor, which is valid as long as the scratch, with any
// init and after the last of them.
func (b *MountHelper) Opener(s *scratch.Scratch, owner int) files.Opener {
	return files.SharedDir{Use: s.Use, Owner: owner}
}

// Do runs f on the mount thread, in its mount namespace.
func (b *MountHelper) Do(f func() error) error { return b.thread.do(f) }

// Attach attaches a detached mount to an existing path in the thread's namespace. The caller still owns the mount's
// descriptor.
func (b *MountHelper) Attach(mount int, at string) error {
	return b.thread.do(func() error {
		return named(at, unix.MoveMount(mount, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	})
}
