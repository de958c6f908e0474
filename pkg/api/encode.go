package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// appendEvent appends an event as a line with its newline, byte for byte what `--format ndjson` prints. Output, of which there is much, is
// written by hand: reflection would cost more than passing it on does.
func appendEvent(b []byte, ev *sandbox.Event) []byte {
	if ev.Kind != sandbox.EventStdout && ev.Kind != sandbox.EventStderr {
		return appendJSON(b, ev.Document())
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

// appendString appends valid UTF-8 as a JSON text, escaped as encoding/json does it without its care for HTML.
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
			// The line separators of Unicode end lines in JavaScript.
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
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendJSON appends a document with its newline, as the command line writes it.
func appendJSON(b []byte, doc any) []byte {
	out := bytes.NewBuffer(b)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		// Nothing of ours can not be encoded: floats are finite, and maps have texts for keys.
		panic("api: encode " + err.Error())
	}
	return out.Bytes()
}

// Before and after the result in the last line of a stream.
const (
	resultField = `,"kind":"result","result":`
	resultEnd   = "}\n"
)

// appendResult appends the last line of a stream: document is the result, with or without its newline.
func appendResult(b []byte, seq uint64, at time.Time, document []byte) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, `,"time":"`...)
	b = at.AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	b = append(b, resultField...)
	b = append(b, bytes.TrimSuffix(document, []byte("\n"))...)
	return append(b, resultEnd...)
}

// resultOf is the document in the last line of a stream; nil if that is no result.
func resultOf(line []byte) json.RawMessage {
	if kindOf(line) != string(executor.EventResult) {
		return nil
	}
	at := bytes.Index(line, []byte(resultField))
	if at < 0 || !bytes.HasSuffix(line, []byte(resultEnd)) {
		return nil
	}
	return json.RawMessage(line[at+len(resultField) : len(line)-len(resultEnd)])
}

// kindOf is the kind of an event by its line. Only its number and its time stand before it.
func kindOf(line []byte) string {
	field := []byte(`"kind":"`)
	head := line[:min(len(line), 128)]
	at := bytes.Index(head, field)
	if at < 0 {
		return ""
	}
	rest := head[at+len(field):]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return ""
	}
	return string(rest[:end])
}

// documentOf is a result as `--json` prints it.
func documentOf(r *executor.Result) []byte { return appendJSON(nil, r) }
