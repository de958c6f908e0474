package rootless

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// A helper is this executable in another process, in namespaces of its own. It takes orders from its supervisor, one at
// a time, over a SOCK_SEQPACKET socket pair:
//
//	supervisor → order (JSON) [descriptors];  helper → Answer (JSON) [descriptors]
//
// The helper ends when its socket is closed.

// Answer comes with the requested descriptors, or with an error.
type Answer struct {
	IsFile bool         `json:"is_file,omitempty"` // of a volume: it is a file, not a directory
	Error  *packedError `json:"error,omitempty"`
}

// Bounds of a message: a spec has at most 64 volumes of two paths each; an answer has the text of an error.
const (
	maxOrder  = 1 << 20
	maxAnswer = 64 << 10
)

// exchange sends an order and returns the encoded answer. An error says that the helper is gone.
func exchange(socket int, order []byte, send []int) (answer []byte, fds []int, err error) {
	if err := sendMessage(socket, order, send); err != nil {
		return nil, nil, err
	}
	return receiveMessage(socket, make([]byte, maxAnswer))
}

// parseAnswer reads an answer of a helper of that backend, which must have that many descriptors. The caller owns them.
func parseAnswer(backend string, text []byte, fds []int, want int) (a Answer, _ []int, err error) {
	if err = json.Unmarshal(text, &a); err == nil && a.Error != nil {
		err = a.Error.unpack(backend)
	} else {
		if err == nil && len(fds) != want {
			err = fmt.Errorf("%d descriptors came, not %d", len(fds), want)
		}
		err = faults.Wrap(backend, "ask helper", "rootfs", err)
	}
	if err != nil {
		CloseFDs(fds)
		return Answer{}, nil, err
	}
	return a, fds, nil
}

// Ask sends an order to a helper of that backend and waits for the answer, which must have that many descriptors. The
// caller owns them.
func Ask(socket int, backend string, order any, send []int, want int) ([]int, error) {
	text, err := json.Marshal(order)
	var answer []byte
	var fds []int
	if err == nil {
		answer, fds, err = exchange(socket, text, send)
	}
	if err != nil {
		return nil, faults.Wrap(backend, "ask helper", "rootfs", err)
	}
	_, fds, err = parseAnswer(backend, answer, fds, want)
	return fds, err
}

// Serve is the main loop of a helper: it answers orders until its socket is closed, and then exits. handle closes no
// descriptor of the order. Serve closes the descriptors that handle returns after it has sent them, and then calls then,
// unless it is nil.
func Serve(socket int, exit func(code int), handle func(order []byte, fds []int) (a Answer, out []int, then func(), err error)) {
	buf := make([]byte, maxOrder)
	for {
		order, fds, err := receiveMessage(socket, buf)
		if err != nil {
			exit(0) // the supervisor is gone
		}
		a, out, then, err := handle(order, fds)
		if err != nil {
			a.Error = packError(err)
		}
		CloseFDs(fds)
		text, _ := json.Marshal(a) // strings and numbers
		err = sendMessage(socket, text, out)
		CloseFDs(out)
		if err != nil {
			exit(0)
		}
		if then != nil {
			then()
		}
	}
}

// packedError is an error on its way between processes. It keeps the values by which callers distinguish errors.
type packedError struct {
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

func packError(err error) *packedError {
	s := &packedError{Text: err.Error()}
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

// remoteError is the cause that another process has reported.
type remoteError struct {
	text  string
	errno unix.Errno
}

func (r *remoteError) Error() string { return r.text }

func (r *remoteError) Unwrap() error {
	if r.errno == 0 {
		return nil
	}
	return r.errno
}

// unpack returns the error, of a backend.
func (s *packedError) unpack(backend string) error {
	return &sandbox.Error{
		Backend: backend, Op: s.Op, Stage: s.Stage, Hint: s.Hint, Kind: errorKinds[s.Kind], Err: &remoteError{s.Text, unix.Errno(s.Errno)},
	}
}

// maxDescriptors is the kernel's maximum for one message.
const maxDescriptors = 253

// sendMessage sends one message with descriptors, which the caller still owns.
func sendMessage(socket int, text []byte, fds []int) error {
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

// receiveMessage reads one message into buf, of which text is a part. The caller owns the descriptors.
func receiveMessage(socket int, buf []byte) (text []byte, fds []int, err error) {
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

// CloseFDs closes the valid descriptors of a list.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
