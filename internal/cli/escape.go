package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// escaper makes untrusted text safe to print on a terminal (A6). It escapes characters that move the cursor, ring the bell, make the
// terminal answer, or reorder text, and, unless colours is set, those that change colours. Newlines, tabs, and a carriage return before a
// newline stay. An incomplete character, an incomplete colour sequence, or a carriage return, at the end of a write is held until the next
// write.
type escaper struct {
	to      io.Writer
	colours bool   // colour sequences pass
	tint    string // colour of text that has none of its own; empty is none
	styled  bool   // the text so far ends in a colour of its own
	pending []byte // at most maxColour bytes
}

func newEscaper(to io.Writer) *escaper { return &escaper{to: to} }

func (e *escaper) Write(p []byte) (int, error) {
	text := p
	if len(e.pending) > 0 {
		text = append(e.pending, p...)
	}
	var out bytes.Buffer
	out.Grow(len(text))
	own := e.styled
	used := e.escape(&out, text, &own)
	e.pending = append([]byte(nil), text[used:]...)
	return len(p), e.write(out.Bytes(), own)
}

// write writes escaped text. If it has no colours of its own, it gets the tint, which ends with the text.
func (e *escaper) write(text []byte, own bool) error {
	if len(text) == 0 {
		return nil
	}
	if e.tint != "" && !own {
		text = []byte(Palette(true).in(e.tint, string(text)))
	}
	_, err := e.to.Write(text)
	return err
}

// Flush writes the pending bytes. Call it after the last Write.
func (e *escaper) Flush() error {
	var out bytes.Buffer
	rest := e.pending
	if len(rest) > 0 && rest[0] == escapeCode { // the sequence is not completed
		escapeByte(&out, escapeCode)
		rest = rest[1+e.escape(&out, rest[1:], new(bool)):]
	}
	for _, b := range rest {
		escapeByte(&out, b)
	}
	e.pending = nil
	return e.write(out.Bytes(), e.styled)
}

const (
	escapeCode = 0x1b
	// maxColour is the length of the longest colour sequence that passes: one with two colours of three numbers each is shorter.
	maxColour = 64
)

// colourSequence returns the length of the sequence at the beginning of text that only changes colour, weight and the like (SGR): ESC [,
// digits and separators, m. It returns -1 if text may be the beginning of one, and 0 if there is none. Sequences with other characters
// before the m are settings of the keyboard, and queries.
func colourSequence(text []byte) int {
	for i, b := range text {
		switch {
		case i == maxColour:
			return 0
		case i == 0 && b == escapeCode, i == 1 && b == '[', i > 1 && (b >= '0' && b <= ';'):
		case i > 1 && b == 'm':
			return i + 1
		default:
			return 0
		}
	}
	return -1
}

// endsLine reports whether text, without colour sequences at its end, ends a line. known is false if nothing else is in it.
func endsLine(text []byte) (ends, known bool) {
	for {
		at := bytes.LastIndexByte(text, escapeCode)
		if at < 0 || colourSequence(text[at:]) != len(text)-at {
			break
		}
		text = text[:at]
	}
	return bytes.HasSuffix(text, []byte("\n")), len(text) > 0
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

// escape writes the escaped text to out and returns the number of bytes it has used. The rest of the text is incomplete. It sets coloured
// if a colour sequence is in the text.
func (e *escaper) escape(out *bytes.Buffer, text []byte, coloured *bool) (used int) {
	for used < len(text) {
		rest := text[used:]
		r, size := utf8.DecodeRune(rest)
		if r == escapeCode && e.colours {
			n := colourSequence(rest)
			if n < 0 {
				return used
			}
			if n > 0 {
				out.Write(rest[:n])
				*coloured, e.styled = true, len(bytes.Trim(rest[2:n-1], "0;")) > 0
				used += n
				continue
			}
		}
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
