package rootless

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// helperName is the argv[0] of an ordinary user's mount helper: a process that is root of a user namespace of its own,
// and makes mounts there. It is the supervisor's child, never sees a sandboxed program, and ends with its socket, so
// also with the supervisor, however that ends.
const helperName = "sandbox-mount-helper"

// order asks for one mount, or one file; What names it.
type order struct {
	What     string              `json:"what"`
	Root     sandbox.Root        `json:"root"`
	User     sandbox.User        `json:"user"`
	Hostname string              `json:"hostname"`
	Volumes  []sandbox.Volume    `json:"volumes,omitempty"`
	Owner    int                 `json:"owner"`
	Options  scratch.Options     `json:"options"` // of a scratch
	Mode     sandbox.ScratchMode `json:"mode,omitempty"`
	Path     []byte              `json:"path,omitempty"` // of a file, beneath the scratch that comes along; not every path is text
	Perm     uint32              `json:"perm,omitempty"`
	Target   []byte              `json:"target,omitempty"` // of a link
}

// The orders.
const (
	orderReady    = "ready"
	orderRoot     = "root"
	orderWritable = "writable"
	orderClone    = "clone mount"
	orderScratch  = "scratch"
	orderVolume   = "volume"
	orderCreate   = "create file"
	orderLink     = "make link"
	orderRemove   = "remove file"
	orderOpen     = "open file"
	orderSettle   = "settle"
)

func (o *order) spec() *sandbox.Spec {
	return &sandbox.Spec{Root: o.Root, User: o.User, Hostname: o.Hostname, Volumes: o.Volumes, WritableRoot: o.What == orderWritable}
}

func orderFor(what string, spec *sandbox.Spec, owner int) order {
	return order{What: what, Root: spec.Root, User: spec.User, Hostname: spec.Hostname, Volumes: spec.Volumes, Owner: owner}
}

// HelperProcess is the supervisor's end of an ordinary user's mount helper, a process.
type HelperProcess struct {
	backend string // for errors
	self    Self

	mu      sync.Mutex    // one order at a time
	process *spawn.Helper // nil once closed, and after one that could not be replaced
	closed  bool
}

// StartHelperProcess starts a mount helper and waits until it can mount. It fails where user namespaces are switched
// off, or do not permit mounts.
func StartHelperProcess(backend string, self Self) (*HelperProcess, error) {
	s := &HelperProcess{backend: backend, self: self}
	if _, _, err := s.ask(order{What: orderReady}, nil, 0); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *HelperProcess) failure(op, stage string, err error) error {
	return faults.Wrap(s.backend, op, stage, err)
}

// Kill ends the process, which the next order replaces; for tests.
func (s *HelperProcess) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Kill()
	}
}

// startLocked starts the process. With mu held.
func (s *HelperProcess) startLocked() (err error) {
	o := s.self.helperMaps()
	o.Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	s.process, err = spawn.StartHelper(helperName, o)
	return s.failure("start mount helper", "namespaces", err)
}

func (s *HelperProcess) stopLocked() {
	if s.process != nil {
		s.process.Close()
		s.process = nil
	}
}

// Close ends the helper. It may be called twice.
func (s *HelperProcess) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopLocked()
}

// ask sends an order and returns the answer, which must have that many descriptors. The caller owns them. A killed
// helper is replaced: the request is not the cause.
func (s *HelperProcess) ask(o order, send []int, want int) (Answer, []int, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return Answer{}, nil, s.failure("ask mount helper", "rootfs", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Answer{}, nil, faults.Closed(s.backend)
	}
	for tries := 0; ; tries++ {
		if s.process == nil {
			if err := s.startLocked(); err != nil {
				return Answer{}, nil, err
			}
		}
		reply, fds, err := exchange(s.process.Socket(), text, send)
		if err == nil {
			return parseAnswer(s.backend, reply, fds, want)
		}
		s.stopLocked()
		if tries > 0 {
			return Answer{}, nil, s.failure("ask mount helper", "rootfs", err)
		}
	}
}

// Root is a copy of the read-only root for a spec.
func (s *HelperProcess) Root(spec *sandbox.Spec) (int, error) {
	_, fds, err := s.ask(orderFor(orderRoot, spec, -1), nil, 1)
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// WritableRoot is a root whose changes go to the scratch with that mount. It consumes the mount: rest takes its place.
func (s *HelperProcess) WritableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	_, fds, err := s.ask(orderFor(orderWritable, spec, owner), []int{disk}, 2)
	if err != nil {
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// CloneMount makes two of one mount, which it consumes; with an error, other may still be valid.
func (s *HelperProcess) CloneMount(mount int) (one, other int, err error) {
	_, fds, err := s.ask(order{What: orderClone}, []int{mount}, 2)
	if err != nil {
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// Scratch is a writable disk with its directories in it, in memory.
func (s *HelperProcess) Scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (*scratch.Scratch, error) {
	if mode == sandbox.ScratchDisk {
		return nil, &sandbox.Error{
			Backend: s.backend, Op: "make scratch", Kind: sandbox.ErrUnsupported, Stage: "scratch",
			Err: errors.New("a scratch disk needs a loop device, which only root can make"), Hint: "run as root, or use --scratch memory",
		}
	}
	_, fds, err := s.ask(order{What: orderScratch, Mode: mode, Options: o, Owner: owner}, nil, 1)
	if err != nil {
		return nil, err
	}
	return scratch.Mounted(fds[0], o)
}

// Volume is a directory or a file of the host.
func (s *HelperProcess) Volume(v sandbox.Volume, owner, _ int) (*os.File, bool, error) {
	a, fds, err := s.ask(order{What: orderVolume, Volumes: []sandbox.Volume{v}, Owner: owner}, nil, 1)
	if err != nil {
		return nil, false, err
	}
	return os.NewFile(uintptr(fds[0]), v.Source), a.IsFile, nil
}

// init makes every program that links this package its own mount helper, without a line in its main.
func init() {
	if len(os.Args) == 1 && os.Args[0] == helperName {
		serveMounts(spawn.HelperSocket, os.Exit) //nolint:forbidigo // a helper has no main to return to
	}
}

// serveMounts is the main function of a mount helper. Run by hand it has no socket, and ends.
func serveMounts(socket int, exit func(code int)) {
	if kind, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		fmt.Fprintf(os.Stderr, "%s: no supervisor at descriptor %d; this program is started by sandbox-run only\n", helperName, socket)
		exit(126)
	}
	b, startErr := rootfs.NewMountHelper(rootfs.Options{Backend: helperName, Confined: true})
	Serve(socket, exit, func(text []byte, fds []int) (a Answer, out []int, _ func(), err error) {
		var o order
		if err = json.Unmarshal(text, &o); err == nil {
			err = startErr
		}
		if err == nil {
			out, a.IsFile, err = carryOut(b, &o, fds)
		}
		return a, out, nil, err
	})
}

// descriptors is the number of descriptors that an order has.
func (o *order) descriptors() int {
	switch o.What {
	case orderWritable, orderClone, orderCreate, orderLink, orderRemove, orderOpen:
		return 1
	}
	return 0
}

// carryOut carries out an order. The caller owns the descriptors.
func carryOut(b *rootfs.MountHelper, o *order, fds []int) (out []int, isFile bool, err error) {
	if want := o.descriptors(); len(fds) != want {
		return nil, false, fmt.Errorf("%s: %d descriptors came, not %d", o.What, len(fds), want)
	}
	out = []int{-1, -1}
	switch o.What {
	case orderReady:
		return nil, false, faults.Wrap(helperName, "mount", "rootfs", rootfs.Mountable())
	case orderSettle: // the answer itself is the result
		return nil, false, nil
	case orderRoot:
		out = out[:1]
		out[0], err = b.Root(o.spec())
	case orderWritable:
		out[0], out[1], err = b.WritableRoot(o.spec(), o.Owner, fds[0])
	case orderClone:
		out[0], out[1], err = b.CloneMount(fds[0])
	case orderScratch:
		out = out[:1]
		var s *scratch.Scratch
		if s, err = b.Scratch(o.Mode, o.Options, o.Owner); err == nil {
			out[0], err = unix.FcntlInt(s.File().Fd(), unix.F_DUPFD_CLOEXEC, 3)
			_ = s.Close()
		}
	case orderVolume:
		out = out[:1]
		if len(o.Volumes) != 1 {
			return nil, false, fmt.Errorf("%d volumes, not one", len(o.Volumes))
		}
		var f *os.File
		if f, isFile, err = b.Volume(o.Volumes[0], o.Owner, 0); err == nil {
			out[0], err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			_ = f.Close()
		}
	case orderCreate:
		out = out[:1]
		out[0], err = files.Dir{FD: fds[0], Owner: o.Owner}.Create(string(o.Path), o.Perm)
	case orderOpen:
		out = out[:1]
		out[0], err = files.Dir{FD: fds[0], Owner: o.Owner}.Open(string(o.Path))
	case orderLink:
		return nil, false, files.Dir{FD: fds[0], Owner: o.Owner}.Link(string(o.Path), string(o.Target))
	case orderRemove:
		return nil, false, files.Dir{FD: fds[0], Owner: o.Owner}.Remove(string(o.Path))
	default:
		return nil, false, fmt.Errorf("unknown order %q", o.What)
	}
	if err != nil {
		CloseFDs(out)
		return nil, false, err
	}
	return out, isFile, nil
}
