package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// escaper makes untrusted text safe to print on a terminal (A6). It escapes characters that move the cursor, change colours, ring the
// bell, make the terminal answer, or reorder text. Newlines, tabs, and a carriage return before a newline stay. An incomplete
// character, or a carriage return, at the end of a write is held until the next write.
type escaper struct {
	to      io.Writer
	pending []byte // an incomplete character, or a carriage return: at most 3 bytes
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

// Flush writes the pending bytes. Call it after the last Write.
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

// EscapeText returns the text with control characters escaped. Newlines and tabs stay.
func EscapeText(s string) string {
	var out strings.Builder
	e := newEscaper(&out)
	_, _ = e.Write([]byte(s)) // a Builder returns no errors
	_ = e.Flush()
	return out.String()
}

// indentText escapes the text and indents all lines but the first: an untrusted name in it can not forge a line of sandbox-run.
func indentText(s string) string { return strings.ReplaceAll(EscapeText(s), "\n", "\n    ") }

// escape writes the escaped text to out and returns the number of bytes it has used. The rest of the text is incomplete.
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
			// The escape of JSON: an escaped document has the same meaning.
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

// reorders reports whether a character changes the direction of text (CVE-2021-42574), or is one of the two separators that some
// terminals treat as newlines.
func reorders(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
