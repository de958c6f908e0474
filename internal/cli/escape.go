package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// escaper makes foreign text safe to show on a terminal (A6): what would move the cursor, change
// colours, ring, answer back or reorder text is written out visibly; newlines and tabs, and a
// carriage return before a newline, stay. A character or a carriage return that is cut off by the
// End of a write waits for the next one.
type escaper struct {
	to      io.Writer
	pending []byte // the start of a character, or a carriage return: at most 3 bytes
}

func newEscaper(to io.Writer) *escaper { return &escaper{to: to} }

func (e *escaper) Write(p []byte) (int, error) {
	text := p
	if len(e.pending) > 0 {
		text = append(e.pending, p...)
	}
	var out bytes.Buffer
	out.Grow(len(text))
	used := escape(&out, text)
	e.pending = append([]byte(nil), text[used:]...)
	_, err := e.to.Write(out.Bytes())
	return len(p), err
}

// Flush writes what still waits: there is no more to come.
func (e *escaper) Flush() error {
	var out bytes.Buffer
	for _, b := range e.pending {
		escapeByte(&out, b)
	}
	e.pending = nil
	if out.Len() == 0 {
		return nil
	}
	_, err := e.to.Write(out.Bytes())
	return err
}

// EscapeText is a whole text made safe.
func EscapeText(s string) string {
	var out strings.Builder
	e := newEscaper(&out)
	_, _ = e.Write([]byte(s)) // a Builder takes everything
	_ = e.Flush()
	return out.String()
}

// indentText is a whole text made safe, of which no line but the first begins where ours do: names in it may be a stranger's.
func indentText(s string) string { return strings.ReplaceAll(EscapeText(s), "\n", "\n    ") }

// escape writes text to out and returns how much of it could be decided on.
func escape(out *bytes.Buffer, text []byte) (used int) {
	for used < len(text) {
		rest := text[used:]
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == '\r' && len(rest) == 1, r == utf8.RuneError && !utf8.FullRune(rest):
			return used
		case r == '\r' && rest[1] == '\n', r == '\n', r == '\t':
			out.Write(rest[:size])
		case r < 0x20, r == utf8.RuneError && size == 1:
			escapeByte(out, rest[0])
		case r == 0x7f, r >= 0x80 && r < 0xa0, reorders(r):
			// As JSON writes it, so that a document stays the same document.
			fmt.Fprintf(out, `\u%04x`, r)
		default:
			out.Write(rest[:size])
		}
		used += size
	}
	return used
}

func escapeByte(out *bytes.Buffer, b byte) {
	if b == '\r' {
		out.WriteString(`\r`)
		return
	}
	fmt.Fprintf(out, `\x%02x`, b)
}

// reorders reports characters that make text read otherwise than it is written (CVE-2021-42574),
// and the two separators some terminals take for newlines.
func reorders(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
