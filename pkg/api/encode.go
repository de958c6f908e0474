package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// appendEvent appends an event as a line with its newline, byte for byte what `--format ndjson` prints. Output events are encoded by hand,
// because there are many, and reflection would cost more than passing them on.
func appendEvent(b []byte, ev *sandbox.Event) []byte {
	if ev.Kind != sandbox.EventStdout && ev.Kind != sandbox.EventStderr {
		return wire.AppendJSON(b, ev.Document())
	}
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, ev.Seq, 10)
	b = append(b, `,"time":"`...)
	b = ev.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","kind":"`...)
	b = append(b, ev.Kind...)
	b = append(b, '"')
	if ev.Offset != 0 {
		b = append(b, `,"offset":`...)
		b = strconv.AppendUint(b, ev.Offset, 10)
	}
	if ev.Dropped != 0 {
		b = append(b, `,"dropped":`...)
		b = strconv.AppendUint(b, ev.Dropped, 10)
	}
	if ev.Phase != "" {
		b = append(b, `,"phase":`...)
		b = appendString(b, []byte(ev.Phase))
	}
	b = append(b, `,"data":`...)
	if utf8.Valid(ev.Data) {
		b = appendString(b, ev.Data)
	} else {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, ev.Data)
		b = append(b, `","encoding":"base64"`...)
	}
	return append(b, '}', '\n')
}

// appendString appends valid UTF-8 as a JSON string, with the escapes of encoding/json but those for HTML.
func appendString(b, s []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf:
			i++
			continue
		case c >= utf8.RuneSelf:
			// U+2028 and U+2029 end lines in JavaScript, so encoding/json escapes them.
			if c != 0xE2 || i+2 >= len(s) || s[i+1] != 0x80 || s[i+2]&^1 != 0xA8 {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			b = append(b, `\u202`...)
			b = append(b, hex[s[i+2]&0xF])
			i += 3
			start = i
			continue
		}
		b = append(b, s[start:i]...)
		if short := strings.IndexByte("\"\\\b\f\n\r\t", c); short >= 0 {
			b = append(b, '\\', `"\bfnrt`[short])
		} else {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// The text around the result in the last line of a stream.
const (
	resultField = `,"kind":"result","result":`
	resultEnd   = "}\n"
)

// resultLine is the last line of a stream, with its newline. The result may be large, and is encoded while it is written.
type resultLine struct {
	before   []byte
	document *sandbox.JSON
}

func newResultLine(seq uint64, at time.Time, document *sandbox.JSON) *resultLine {
	return &resultLine{fmt.Appendf(nil, `{"seq":%d,"time":"%s"%s`, seq, at.Format(time.RFC3339Nano), resultField), document}
}

func (l *resultLine) size() int64 { return int64(len(l.before)+len(resultEnd)) + l.document.Size() }

// WriteTo writes the line to w.
func (l *resultLine) WriteTo(w io.Writer) (n int64, err error) {
	for _, part := range []io.WriterTo{bytes.NewReader(l.before), l.document, strings.NewReader(resultEnd)} {
		length, err := part.WriteTo(w)
		if n += length; err != nil {
			return n, err
		}
	}
	return n, nil
}

// send passes the line to a function in portions; a short line is one portion.
func (l *resultLine) send(seq uint64, to func(portion) error) error {
	left := l.size()
	if left <= chunk {
		var b bytes.Buffer
		if _, err := l.WriteTo(&b); err != nil {
			return err
		}
		return to(portion{first: seq, data: b.Bytes()})
	}
	p := portion{first: seq}
	_, err := l.WriteTo(writerFunc(func(b []byte) (int, error) {
		left -= int64(len(b))
		p.data, p.open = b, left > 0
		err := to(p)
		p.continued = true
		return len(b), err
	}))
	return err
}

// resultAt returns the offset of the document in the last line of a stream, given the start of the line; -1 if the line is no result.
func resultAt(line []byte) int {
	if kindOf(line) != string(executor.EventResult) {
		return -1
	}
	before, _, found := bytes.Cut(line[:min(len(line), 256)], []byte(resultField))
	if !found {
		return -1
	}
	return len(before) + len(resultField)
}

// kindOf returns the kind of an event from its line. Only number and time precede it.
func kindOf(line []byte) string {
	_, rest, _ := bytes.Cut(line[:min(len(line), 128)], []byte(`"kind":"`))
	kind, _, found := bytes.Cut(rest, []byte(`"`))
	if !found {
		return ""
	}
	return string(kind)
}
