package initproto

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// MaxFrame bounds a frame: arguments and environment of a program, and room to spare.
const MaxFrame = 4 << 20

// HeaderSize is the size of the header of a frame: its length, and the number of its descriptors. The kernel may return
// several frames at once, with the descriptors of the last.
const HeaderSize = 5

// Version is raised with every change of the messages, so that an init and a supervisor of different builds detect the
// difference.
const Version = 11

// MaxDescriptors is how many descriptors travel with one frame at the most (the kernel's
// SCM_MAX_FD is 253).
const MaxDescriptors = 200

// ErrMalformed is the only error of a decoder.
var ErrMalformed = errors.New("malformed init message")

// versionError is a message of another version: the two ends are of different builds.
type versionError uint64

func (e versionError) Error() string {
	return "sandbox-init speaks version " + strconv.Itoa(Version) + " of its protocol, and sandbox-run version " +
		strconv.FormatUint(uint64(e), 10) +
		": they are of different builds; put the sandbox-init of the same release beside sandbox-run"
}

func (versionError) Is(target error) bool { return target == ErrMalformed }

// This encoding is written by hand because the init decodes one message in its whole life: the reflection of a general
// codec would cost it more time than building the root does.

// codec visits the fields of a message in their one order: it appends them to a frame, or reads them from one. After the
// first malformed value it yields zeros and keeps the error.
type codec struct {
	b        []byte
	decoding bool
	bad      bool
	version  error // the other end has another version; nothing else was read
}

func (c *codec) fail() { c.bad, c.b = true, nil }

// advance reads n bytes of the frame; too few are malformed.
func (c *codec) advance(n int) {
	if n <= 0 {
		c.fail()
		return
	}
	c.b = c.b[n:]
}

func (c *codec) uint(v *uint64) {
	if !c.decoding {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	var n int
	*v, n = binary.Uvarint(c.b)
	if n <= 0 {
		*v = 0
	}
	c.advance(n)
}

func (c *codec) uint32(v *uint32) {
	n := uint64(*v)
	if c.uint(&n); n > math.MaxUint32 {
		c.fail()
		n = 0
	}
	*v = uint32(n)
}

func (c *codec) uint16(v *uint16) {
	n := uint32(*v)
	c.uint32(&n)
	*v = uint16(n)
}

// fd is an index into the descriptors of a frame, or -1.
func (c *codec) fd(v *int) {
	if !c.decoding {
		c.b = binary.AppendVarint(c.b, int64(*v))
		return
	}
	got, n := binary.Varint(c.b)
	if c.advance(n); c.bad || got < -1 || got >= MaxDescriptors {
		c.fail()
		got = -1
	}
	*v = int(got)
}

// bytes shares memory with the frame when it decodes.
func (c *codec) bytes(v *[]byte) {
	n := uint64(len(*v))
	c.uint(&n)
	if !c.decoding {
		c.b = append(c.b, *v...)
		return
	}
	if *v = nil; n > uint64(len(c.b)) {
		c.fail()
		return
	}
	*v, c.b = c.b[:n:n], c.b[n:]
}

func (c *codec) string(v *string) {
	if !c.decoding {
		n := uint64(len(*v))
		c.uint(&n)
		c.b = append(c.b, *v...)
		return
	}
	var b []byte
	c.bytes(&b)
	*v = string(b)
}

func (c *codec) bool(v *bool) {
	switch {
	case !c.decoding && *v:
		c.b = append(c.b, 1)
	case !c.decoding:
		c.b = append(c.b, 0)
	case len(c.b) == 0 || c.b[0] > 1:
		c.fail()
		*v = false
	default:
		*v = c.b[0] == 1
		c.b = c.b[1:]
	}
}

// list visits a list whose elements take at least one byte each, so that no length can make the decoder allocate more
// than the frame itself. It ends at the first malformed element.
func list[T any](c *codec, v *[]T, element func(*T)) {
	n := uint64(len(*v))
	if c.uint(&n); !c.decoding {
		for i := range *v {
			element(&(*v)[i])
		}
		return
	}
	if *v = nil; n > uint64(len(c.b)) {
		c.fail()
		return
	}
	for ; n > 0 && !c.bad; n-- {
		var e T
		element(&e)
		*v = append(*v, e)
	}
}

func (c *codec) strings(v *[]string) { list(c, v, c.string) }
