//go:build linux

package delegate

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
)

// The call, byte for byte, in the layout of the specification.
func TestEncodeCall(t *testing.T) {
	c := call{destination: "a.b", path: "/p", iface: "i.f", member: "M", signature: "sau"}
	c.body.string("hey")
	c.body.array(4, func() { c.body.uint32(7) })
	want := "l\x01\x00\x01" + "\x10\x00\x00\x00" + "\x05\x00\x00\x00" + "\x48\x00\x00\x00" +
		"\x01\x01o\x00\x02\x00\x00\x00/p\x00" + "\x00\x00\x00\x00\x00" +
		"\x02\x01s\x00\x03\x00\x00\x00i.f\x00" + "\x00\x00\x00\x00" +
		"\x03\x01s\x00\x01\x00\x00\x00M\x00" + "\x00\x00\x00\x00\x00\x00" +
		"\x06\x01s\x00\x03\x00\x00\x00a.b\x00" + "\x00\x00\x00\x00" +
		"\x08\x01g\x00\x03sau\x00" + "\x00\x00\x00\x00\x00\x00\x00"
	// The last field ends without padding in the array's length, and with it before the body.
	want = want[:12] + string([]byte{byte(len(want) - 16 - 7), 0, 0, 0}) + want[16:]
	want += "\x03\x00\x00\x00hey\x00" + "\x04\x00\x00\x00\x07\x00\x00\x00"
	if got := string(c.encode(5)); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// reply builds a message as a server would.
func reply(order binary.AppendByteOrder, kind byte, serial uint32, name, signature string, body []byte) []byte {
	mark := byte('l')
	if order == binary.AppendByteOrder(binary.BigEndian) {
		mark = 'B'
	}
	var fields []byte
	pad := func() {
		for len(fields)%8 != 0 {
			fields = append(fields, 0)
		}
	}
	if serial != 0 {
		fields = order.AppendUint32(append(fields, fieldReplySerial, 1, 'u', 0), serial)
	}
	text := func(code, kind byte, value string) {
		pad()
		fields = order.AppendUint32(append(fields, code, 1, kind, 0), uint32(len(value)))
		fields = append(append(fields, value...), 0)
	}
	switch kind {
	case typeError:
		text(fieldErrorName, 's', name)
	case typeSignal:
		iface, member := name[:strings.LastIndexByte(name, '.')], name[strings.LastIndexByte(name, '.')+1:]
		text(fieldPath, 'o', managerPath)
		text(fieldInterface, 's', iface)
		text(fieldMember, 's', member)
	}
	if signature != "" {
		pad()
		fields = append(fields, fieldSignature, 1, 'g', 0, byte(len(signature)))
		fields = append(append(fields, signature...), 0)
	}
	m := []byte{mark, kind, 0, 1}
	m = order.AppendUint32(m, uint32(len(body)))
	m = order.AppendUint32(m, 99)
	m = order.AppendUint32(m, uint32(len(fields)))
	m = append(m, fields...)
	for len(m)%8 != 0 {
		m = append(m, 0)
	}
	return append(m, body...)
}

func TestParseMessage(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		text := func(s string) []byte { return append(append(order.AppendUint32(nil, uint32(len(s))), s...), 0) }
		m, err := parseMessage(reply(order, typeError, 3, "a.b.C", "s", text("no")))
		if err != nil || m.kind != typeError || m.replySerial != 3 || m.errorName != "a.b.C" || m.signature != "s" || m.body.string() != "no" ||
			m.body.bad {
			t.Errorf("%v: error: %+v (%v)", order, m, err)
		}
		body := append(order.AppendUint32(nil, 5), text("/job")...)
		body = append(append(body, 0, 0, 0), text("u.scope")...)
		body = append(body, text("done")...)
		m, err = parseMessage(reply(order, typeSignal, 0, managerFace+".JobRemoved", "uoss", body))
		if err != nil || m.iface != managerFace || m.member != "JobRemoved" {
			t.Errorf("%v: signal: %+v (%v)", order, m, err)
		}
		got := []any{m.body.uint32(), m.body.string(), m.body.string(), m.body.string(), m.body.bad}
		if want := []any{uint32(5), "/job", "u.scope", "done", false}; !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v", order, got)
		}
		if m.body.string() != "" || !m.body.bad {
			t.Errorf("%v: something behind the end", order)
		}
	}
	good := reply(binary.LittleEndian, typeError, 3, "a.b.C", "s", []byte("\x02\x00\x00\x00no\x00"))
	for i := range good {
		if m, err := parseMessage(good[:i]); err == nil {
			t.Errorf("cut after %d bytes: %+v", i, m)
		}
	}
	for _, bad := range []string{"", "x", strings.Repeat("\xff", 64), "l\x02\x00\x02" + strings.Repeat("\x00", 12)} {
		if m, err := parseMessage([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, m)
		}
	}
	huge := bytes.Clone(good)
	binary.LittleEndian.PutUint32(huge[4:], maxMessage+1)
	if _, err := messageLength(huge); err == nil {
		t.Error("a message of any length is waited for")
	}
}

// FuzzMessage: whatever a server sends, the parser ends, stays within its input, and never panics.
func FuzzMessage(f *testing.F) {
	f.Add(reply(binary.LittleEndian, typeError, 3, "a.b.C", "s", []byte("\x02\x00\x00\x00no\x00")))
	f.Add(reply(binary.BigEndian, typeReturn, 3, "", "o", []byte("\x00\x00\x00\x02/j\x00")))
	f.Add(reply(binary.LittleEndian, typeSignal, 0, managerFace+".JobRemoved", "uoss", make([]byte, 40)))
	f.Add(startCall("a.scope").encode(1))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := messageLength(b)
		if err != nil || n == 0 {
			return
		}
		if n < fixedHeader || n > 2*maxMessage+fixedHeader+8 {
			t.Fatalf("length %d", n)
		}
		if n > len(b) {
			return
		}
		m, err := parseMessage(b[:n])
		if err != nil {
			return
		}
		total := len(m.iface) + len(m.member) + len(m.errorName) + len(m.signature) + len(m.body.b)
		if total > n {
			t.Errorf("%d bytes out of %d", total, n)
		}
		_, _, _, _ = m.body.uint32(), m.body.string(), m.body.signature(), m.body.string()
		if m.body.at > len(m.body.b) {
			t.Error("read behind the end")
		}
	})
}
