package postgres

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"testing/iotest"
)

// send encodes a message.
func send(kind byte, body string) string {
	return string(kind) + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))) + body
}

// TestPass: every byte is passed on, however it arrives, and long messages are not kept.
func TestPass(t *testing.T) {
	text := "\x00\x00\x00\x08\x00\x03\x00\x00" + send('Q', "select 1\x00") + send('d', strings.Repeat("x", maxMessage+1)) + send('X', "")
	var kinds []byte
	for _, isSlow := range []bool{false, true} {
		var out bytes.Buffer
		from := strings.NewReader(text)
		kinds = nil
		see := func(kind byte, body []byte, isWhole bool) bool {
			kinds = append(kinds, kind)
			if isWhole != (kind != 'd') || len(body) > maxMessage {
				t.Errorf("%q has %d bytes, whole: %v", kind, len(body), isWhole)
			}
			return true
		}
		if isSlow {
			_ = pass(&out, iotest.HalfReader(from), false, see)
		} else {
			_ = pass(&out, from, false, see)
		}
		if out.String() != text || string(kinds) != "\x00QdX" {
			t.Errorf("%d bytes of %d, messages %q", out.Len(), len(text), kinds)
		}
	}
}

// FuzzRecorder: no message of a server or of psql does harm, and all bytes of whole messages are passed on.
func FuzzRecorder(f *testing.F) {
	f.Add([]byte(send('T', "\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x17\x00\x04\xff\xff\xff\xff\x00\x00") +
		send('D', "\x00\x01\x00\x00\x00\x011") + send('D', "\x00\x01\xff\xff\xff\xff") + send('D', "\x00\x02\x00") + send('C', "SELECT 1\x00")))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &recorder{}
		for _, see := range []func(byte, []byte, bool) bool{r.request, r.answer} {
			var out bytes.Buffer
			if _ = pass(&out, bytes.NewReader(data), true, see); !bytes.HasPrefix(data, out.Bytes()) {
				t.Error("other bytes were passed on")
			}
		}
		if err := r.tables.WriteFile(t.TempDir() + "/t"); err != nil {
			t.Error(err)
		}
	})
}
