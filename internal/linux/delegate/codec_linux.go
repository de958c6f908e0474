package delegate

import (
	"encoding/binary"
	"errors"
)

// The part of D-Bus that one method call needs: https://dbus.freedesktop.org/doc/dbus-specification.html

// Message types.
const (
	typeCall   = 1
	typeReturn = 2
	typeError  = 3
	typeSignal = 4
)

// Header fields.
const (
	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldErrorName   = 4
	fieldReplySerial = 5
	fieldDestination = 6
	fieldSignature   = 8
)

const (
	fixedHeader = 16       // up to and with the length of the array of fields
	maxMessage  = 64 << 10 // longer than any expected answer
)

// encoder writes values in little-endian order, each aligned as D-Bus requires.
type encoder []byte

func (e *encoder) align(n int) {
	for len(*e)%n != 0 {
		*e = append(*e, 0)
	}
}

func (e *encoder) byte(b byte) { *e = append(*e, b) }

func (e *encoder) uint32(v uint32) {
	e.align(4)
	*e = binary.LittleEndian.AppendUint32(*e, v)
}

func (e *encoder) string(s string) {
	e.uint32(uint32(len(s))) //nolint:gosec // a short constant or unit name
	*e = append(append(*e, s...), 0)
}

func (e *encoder) signature(s string) { *e = append(append(append(*e, byte(len(s))), s...), 0) }

// array writes the length of what elements writes, and then that; the length does not count the padding in front of the
// first element, which is aligned to n.
func (e *encoder) array(n int, elements func()) {
	e.uint32(0)
	length := len(*e) - 4
	e.align(n)
	start := len(*e)
	elements()
	binary.LittleEndian.PutUint32((*e)[length:], uint32(len(*e)-start)) //nolint:gosec // a short message
}

// call is a method call with a body that fits the signature.
type call struct {
	destination, path, iface, member string // destination is empty where there is no bus in between
	signature                        string
	body                             encoder
}

func (c call) encode(serial uint32) []byte {
	e := encoder{'l', typeCall, 0, 1}
	e.uint32(uint32(len(c.body))) //nolint:gosec // a short message
	e.uint32(serial)
	e.array(8, func() {
		field := func(code byte, signature, value string) {
			if value == "" {
				return
			}
			e.align(8)
			e.byte(code)
			e.signature(signature)
			if signature == "g" {
				e.signature(value)
			} else {
				e.string(value)
			}
		}
		field(fieldPath, "o", c.path)
		field(fieldInterface, "s", c.iface)
		field(fieldMember, "s", c.member)
		field(fieldDestination, "s", c.destination)
		field(fieldSignature, "g", c.signature)
	})
	e.align(8)
	return append(e, c.body...)
}

// message holds the fields of a received message that this client needs.
type message struct {
	kind        byte
	iface       string
	member      string
	errorName   string
	replySerial uint32
	signature   string
	body        decoder
}

var errMalformed = errors.New("malformed message")

// messageLength returns the length of the message that b begins with; 0 when b is too short to contain it.
func messageLength(b []byte) (int, error) {
	if len(b) < fixedHeader {
		return 0, nil
	}
	order, err := byteOrder(b[0])
	if err != nil || b[3] != 1 {
		return 0, errMalformed
	}
	body, fields := order.Uint32(b[4:]), order.Uint32(b[12:])
	if body > maxMessage || fields > maxMessage {
		return 0, errMalformed
	}
	header := (fixedHeader + int(fields) + 7) &^ 7
	return header + int(body), nil
}

func byteOrder(mark byte) (binary.ByteOrder, error) {
	switch mark {
	case 'l':
		return binary.LittleEndian, nil
	case 'B':
		return binary.BigEndian, nil
	}
	return nil, errMalformed
}

// parseMessage reads a whole message, of the length that messageLength gave.
func parseMessage(b []byte) (m message, err error) {
	n, err := messageLength(b)
	if err != nil || n == 0 || n != len(b) {
		return m, errMalformed
	}
	order, err := byteOrder(b[0])
	if err != nil {
		return m, err
	}
	m.kind = b[1]
	end := fixedHeader + int(order.Uint32(b[12:]))
	d := decoder{b: b[:end], at: fixedHeader, order: order}
	for d.at < end {
		d.align(8)
		code, signature := d.byte(), d.signature()
		var text string
		var number uint32
		switch signature {
		case "s", "o":
			text = d.string()
		case "g":
			text = d.signature()
		case "u":
			number = d.uint32()
		default: // none that D-Bus defines
			return m, errMalformed
		}
		if d.bad {
			return m, errMalformed
		}
		switch code {
		case fieldInterface:
			m.iface = text
		case fieldMember:
			m.member = text
		case fieldErrorName:
			m.errorName = text
		case fieldReplySerial:
			m.replySerial = number
		case fieldSignature:
			m.signature = text
		}
	}
	// The body is aligned to 8 itself, so its own values can be aligned from its start.
	m.body = decoder{b: b[(end+7)&^7:], order: order}
	return m, nil
}

// decoder reads values one after the other. A value that does not fit sets bad, and all later reads return nothing.
type decoder struct {
	b     []byte
	at    int
	order binary.ByteOrder
	bad   bool
}

// take returns the next n bytes.
func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b)-d.at {
		d.bad = true
		return nil
	}
	b := d.b[d.at : d.at+n]
	d.at += n
	return b
}

func (d *decoder) align(n int) { d.take((n - d.at%n) % n) }

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	d.align(4)
	if b := d.take(4); b != nil {
		return d.order.Uint32(b)
	}
	return 0
}

func (d *decoder) string() string { return d.text(d.uint32()) }

func (d *decoder) signature() string { return d.text(uint32(d.byte())) }

// text is n bytes and the zero that follows them.
func (d *decoder) text(n uint32) string {
	if n > maxMessage {
		d.bad = true
		return ""
	}
	b := d.take(int(n) + 1)
	if b == nil || b[n] != 0 {
		d.bad = true
		return ""
	}
	return string(b[:n])
}
