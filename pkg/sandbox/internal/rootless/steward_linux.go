package rootless

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// A steward is this very program in another process, root of a user namespace of its own, who stands at a bench there
// and makes mounts to order:
//
//	supervisor → order{…} [descriptors];  steward → answer{…} [descriptors]
//
// It is the supervisor's child, never sees a sandboxed program, and ends when its socket does: with the supervisor,
// however that ends.
const stewardName = "sandbox-steward"

// order asks for one mount, or one file. What names which.
type order struct {
	What     string              `json:"what"`
	Root     sandbox.Root        `json:"root"`
	User     sandbox.User        `json:"user"`
	Hostname string              `json:"hostname"`
	Volumes  []sandbox.Volume    `json:"volumes,omitempty"`
	Owner    int                 `json:"owner"`
	Bytes    uint64              `json:"bytes,omitempty"`
	Inodes   uint64              `json:"inodes,omitempty"`
	Mode     sandbox.ScratchMode `json:"mode,omitempty"`
	Path     []byte              `json:"path,omitempty"` // of a file, beneath the scratch that comes along; not every path is text
	Perm     uint32              `json:"perm,omitempty"`
}

// The orders there are.
const (
	orderReady    = "ready"
	orderRoot     = "root"
	orderWritable = "writable"
	orderAgain    = "again"
	orderScratch  = "scratch"
	orderVolume   = "volume"
	orderCreate   = "create file"
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

// answer comes with the descriptors that were asked for, or with what went wrong.
type answer struct {
	IsFile bool    `json:"is_file,omitempty"`
	Error  *Packed `json:"error,omitempty"`
}

// Packed is an error on its way between processes. What callers tell errors apart by comes through.
type Packed struct {
	Op    string `json:"op,omitempty"`
	Stage string `json:"stage,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Hint  string `json:"hint,omitempty"`
	Text  string `json:"text"`
	Errno uint   `json:"errno,omitempty"`
}

var errorKinds = map[string]error{
	"invalid": sandbox.ErrInvalid, "refused": sandbox.ErrRefused, "unsupported": sandbox.ErrUnsupported, "state": sandbox.ErrState,
}

// Pack makes one of an error.
func Pack(err error) *Packed {
	s := &Packed{Text: err.Error()}
	var e *sandbox.Error
	if errors.As(err, &e) && e.Err != nil {
		s.Op, s.Stage, s.Hint, s.Text = e.Op, e.Stage, e.Hint, e.Err.Error()
		for name, kind := range errorKinds {
			if e.Kind == kind { //nolint:errorlint // a kind is one of these very values
				s.Kind = name
			}
		}
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		s.Errno = uint(errno)
	}
	return s
}

// remote is an error that another process has told of.
type remote struct {
	text  string
	errno unix.Errno
}

func (r *remote) Error() string { return r.text }

func (r *remote) Unwrap() error {
	if r.errno == 0 {
		return nil
	}
	return r.errno
}

// Unpack makes an error of it again, of a backend.
func (s *Packed) Unpack(backend string) error {
	return &sandbox.Error{
		Backend: backend, Op: s.Op, Stage: s.Stage, Hint: s.Hint, Kind: errorKinds[s.Kind], Err: &remote{s.Text, unix.Errno(s.Errno)},
	}
}

// MaxMessage bounds a message between processes of ours: a spec has at most 64 volumes of two paths each.
const MaxMessage = 1 << 20

// Steward is the supervisor's end.
type Steward struct {
	backend string // for errors
	self    Self

	mu      sync.Mutex    // one order at a time
	process *spawn.Helper // nil once closed, and after one that could not be replaced
	closed  bool
	buf     []byte // for answers
}

// NewSteward starts one and waits until it stands at its bench: where user namespaces are switched off, or of no use,
// this is where it shows.
func NewSteward(backend string, self Self) (*Steward, error) {
	s := &Steward{backend: backend, self: self}
	if _, _, err := s.ask(order{What: orderReady}, nil, 0); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Steward) failure(op, stage string, err error) error {
	return faults.Wrap(s.backend, op, stage, err)
}

// Kill ends the process as a stranger would: for those who want to see it replaced.
func (s *Steward) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Kill()
	}
}

// startLocked starts the process. With mu held.
func (s *Steward) startLocked() (err error) {
	o := s.self.stewardMaps()
	o.Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	s.process, err = spawn.StartHelper(stewardName, o)
	return s.failure("start steward", "namespaces", err)
}

func (s *Steward) stopLocked() {
	if s.process != nil {
		s.process.Close()
		s.process = nil
	}
}

// Close ends it. Twice is fine.
func (s *Steward) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopLocked()
}

// ask sends an order and returns the answer, which must come with that many descriptors. They are the caller's. A steward
// that somebody has killed is replaced: that is nobody's request's fault.
func (s *Steward) ask(o order, send []int, want int) (answer, []int, error) {
	fail := func(err error) (answer, []int, error) { return answer{}, nil, s.failure("ask steward", "rootfs", err) }
	text, err := json.Marshal(o)
	if err != nil {
		return fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return answer{}, nil, &sandbox.Error{Backend: s.backend, Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
	}
	var fds []int
	var reply []byte
	for tries := 0; ; tries++ {
		if s.process == nil {
			if err := s.startLocked(); err != nil {
				return answer{}, nil, err
			}
		}
		if err = SendMessage(s.process.Socket(), text, send); err == nil {
			if s.buf == nil {
				s.buf = make([]byte, MaxMessage)
			}
			reply, fds, err = ReceiveMessage(s.process.Socket(), s.buf)
		}
		if err == nil {
			break
		}
		s.stopLocked()
		if tries > 0 {
			return fail(err)
		}
	}
	var a answer
	err = json.Unmarshal(reply, &a)
	if err == nil && a.Error != nil {
		err = a.Error.Unpack(s.backend)
	} else if err == nil && len(fds) != want {
		err = s.failure("ask steward", "rootfs", fmt.Errorf("%d descriptors came, not %d", len(fds), want))
	}
	if err != nil {
		CloseFDs(fds)
		return answer{}, nil, err
	}
	return a, fds, nil
}

// Root is a copy of the read-only root for a spec.
func (s *Steward) Root(spec *sandbox.Spec) (int, error) {
	_, fds, err := s.ask(orderFor(orderRoot, spec, -1), nil, 1)
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// WritableRoot is a root whose changes go to the scratch with that mount, which is used up: rest takes its place.
func (s *Steward) WritableRoot(spec *sandbox.Spec, owner, disk int) (root, rest int, err error) {
	_, fds, err := s.ask(orderFor(orderWritable, spec, owner), []int{disk}, 2)
	if err != nil {
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// Again makes two of one mount, which is used up; with an error, other may still be there.
func (s *Steward) Again(mount int) (one, other int, err error) {
	_, fds, err := s.ask(order{What: orderAgain}, []int{mount}, 2)
	if err != nil {
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// Scratch is a writable disk with its directories in it, in memory.
func (s *Steward) Scratch(mode sandbox.ScratchMode, o scratch.Options, owner int) (*scratch.Scratch, error) {
	if mode == sandbox.ScratchDisk {
		return nil, &sandbox.Error{
			Backend: s.backend, Op: "make scratch", Kind: sandbox.ErrUnsupported, Stage: "scratch",
			Err: errors.New("a scratch disk needs a loop device, which only root can make"), Hint: "run as root, or use --scratch memory",
		}
	}
	_, fds, err := s.ask(order{What: orderScratch, Mode: mode, Bytes: o.Bytes, Inodes: o.Inodes, Owner: owner}, nil, 1)
	if err != nil {
		return nil, err
	}
	return scratch.Mounted(fds[0], o)
}

// Volume is a directory or a file of the host.
func (s *Steward) Volume(v sandbox.Volume, owner, _ int) (*os.File, bool, error) {
	a, fds, err := s.ask(order{What: orderVolume, Volumes: []sandbox.Volume{v}, Owner: owner}, nil, 1)
	if err != nil {
		return nil, false, err
	}
	return os.NewFile(uintptr(fds[0]), v.Source), a.IsFile, nil
}

// init makes every program that links this package able to be its own steward, with no word in its main.
func init() {
	if len(os.Args) == 1 && os.Args[0] == stewardName {
		serveOrders(spawn.HelperSocket, os.Exit) //nolint:forbidigo // a steward has no main to return to
	}
}

// serveOrders is the whole life of a steward. It does not return: leave is to exit.
func serveOrders(socket int, leave func(code int)) {
	if err := standsApart(); err != nil {
		fmt.Fprintln(os.Stderr, stewardName+": "+err.Error())
		leave(126)
	}
	b, err := rootfs.NewBench(rootfs.Options{Backend: stewardName, Confined: true})
	buf := make([]byte, MaxMessage)
	for {
		text, fds, receiveErr := ReceiveMessage(socket, buf)
		if receiveErr != nil {
			leave(0) // the supervisor is gone: so are we
		}
		var o order
		var a answer
		var out []int
		if e := json.Unmarshal(text, &o); e != nil {
			a.Error = Pack(e)
		} else if err != nil {
			a.Error = Pack(err)
		} else if out, a.IsFile, e = fill(b, &o, fds); e != nil {
			a.Error = Pack(e)
		}
		CloseFDs(fds)
		text, _ = json.Marshal(a) // strings and numbers
		err2 := SendMessage(socket, text, out)
		CloseFDs(out)
		if err2 != nil {
			leave(0)
		}
	}
}

// standsApart refuses to go on in somebody's own namespaces: run by hand, a bench is no harm, but of no use either.
func standsApart() error {
	if kind, err := unix.GetsockoptInt(spawn.HelperSocket, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		return errors.New("descriptor " + strconv.Itoa(spawn.HelperSocket) + " is not a supervisor's socket; this program is started by sandbox-run only")
	}
	return nil
}

// descriptors is how many of them an order comes with.
func (o *order) descriptors() int {
	switch o.What {
	case orderWritable, orderAgain, orderCreate, orderRemove, orderOpen:
		return 1
	}
	return 0
}

// fill makes what an order asks for. The descriptors are the caller's.
func fill(b *rootfs.Bench, o *order, fds []int) (out []int, isFile bool, err error) {
	if want := o.descriptors(); len(fds) != want {
		return nil, false, fmt.Errorf("%s: %d descriptors came, not %d", o.What, len(fds), want)
	}
	out = []int{-1, -1}
	switch o.What {
	case orderReady:
		return nil, false, faults.Wrap(stewardName, "mount", "rootfs", rootfs.Mountable())
	case orderSettle: // to have come to it is all
		return nil, false, nil
	case orderRoot:
		out = out[:1]
		out[0], err = b.Root(o.spec())
	case orderWritable:
		out[0], out[1], err = b.WritableRoot(o.spec(), o.Owner, fds[0])
	case orderAgain:
		out[0], out[1], err = b.Again(fds[0])
	case orderScratch:
		out = out[:1]
		var s *scratch.Scratch
		if s, err = b.Scratch(o.Mode, scratch.Options{Bytes: o.Bytes, Inodes: o.Inodes}, o.Owner); err == nil {
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

// maxDescriptors is as many as the kernel lets a message have.
const maxDescriptors = 253

// SendMessage sends one message with descriptors, which stay the caller's.
func SendMessage(socket int, text []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(socket, text, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ReceiveMessage reads one message into buf, of which text is a part. The descriptors are the caller's.
func ReceiveMessage(socket int, buf []byte) (text []byte, fds []int, err error) {
	rights := make([]byte, unix.CmsgSpace(maxDescriptors*4))
	var n, m, flags int
	for {
		n, m, flags, _, err = unix.Recvmsg(socket, buf, rights, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	for i := range messages {
		got, e := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, got...), errors.Join(err, e)
	}
	switch {
	case err != nil:
	case n == 0:
		err = errors.New("the other end is gone")
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = unix.EMSGSIZE
	}
	if err != nil {
		CloseFDs(fds)
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

// CloseFDs closes those that there are.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
