package initproto

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// MaxFrame bounds a frame: arguments and environment of a program, and room to spare.
const MaxFrame = 4 << 20

// HeaderSize is what stands before a frame: its length, and how many descriptors are its own. The
// kernel may hand over several frames at once, with the descriptors of the last.
const HeaderSize = 5

// Version is raised with every change to the messages, so that an init and a supervisor of
// different builds find out before they misunderstand each other.
const Version = 7

// MaxDescriptors is how many descriptors travel with one frame at the most (the kernel's
// SCM_MAX_FD is 253).
const MaxDescriptors = 200

// ErrMalformed is the one error of a decoder.
var ErrMalformed = errors.New("malformed init message")

// versionError is a message of another version: the two ends are of different builds.
type versionError uint64

func (e versionError) Error() string {
	return "sandbox-init speaks version " + strconv.Itoa(Version) + " of its protocol, and sandbox-run version " + strconv.FormatUint(uint64(e), 10) +
		": they are of different builds; put the sandbox-init of the same release beside sandbox-run"
}

func (versionError) Is(target error) bool { return target == ErrMalformed }

// This encoding is written by hand because the init decodes one message in its whole life: the
// reflection of a general codec would cost it more time than building the root does.

// writer appends values to a frame.
type writer struct{ b []byte }

func (w *writer) uint(v uint64)   { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) int(v int64)     { w.b = binary.AppendVarint(w.b, v) }
func (w *writer) string(s string) { w.uint(uint64(len(s))); w.b = append(w.b, s...) }
func (w *writer) bytes(s []byte)  { w.uint(uint64(len(s))); w.b = append(w.b, s...) }

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) strings(list []string) {
	w.uint(uint64(len(list)))
	for _, s := range list {
		w.string(s)
	}
}

// reader takes values off a frame. After the first malformed one it yields zeros and keeps the error.
type reader struct {
	b       []byte
	bad     bool
	version error // it is another one's; nothing else of it was read
}

func (r *reader) fail() { r.bad, r.b = true, nil }

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// fd reads an index into the descriptors of a frame, or -1.
func (r *reader) fd() int {
	v := r.int()
	if v < -1 || v >= MaxDescriptors {
		r.fail()
		return -1
	}
	return int(v)
}

func (r *reader) uint32() uint32 {
	v := r.uint()
	if v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return uint32(v)
}

func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) bool() bool {
	if len(r.b) == 0 || r.b[0] > 1 {
		r.fail()
		return false
	}
	v := r.b[0] == 1
	r.b = r.b[1:]
	return v
}

// count reads the length of a list whose elements take at least one byte each, so that no length
// can make the decoder allocate more than the frame itself.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

// list reads a list, element by element, and gives up at the first malformed one.
func (r *reader) list(element func()) {
	for n := r.count(); n > 0 && !r.bad; n-- {
		element()
	}
}

func (r *reader) strings() []string {
	var list []string
	r.list(func() { list = append(list, r.string()) })
	return list
}
