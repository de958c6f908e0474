package mcp

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// printable escapes control characters, and characters that change the order of text; bytes that are not UTF-8 become U+FFFD. Newlines and
// tabs stay; a return before a newline is dropped.
func printable(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n")
	if !strings.ContainsFunc(s, isControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !isControl(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func isControl(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

// Excerpt is the head and the tail of a stream.
type Excerpt struct {
	Text    string `json:"text" jsonschema:"head and tail, with control characters escaped"`
	Bytes   uint64 `json:"bytes" jsonschema:"bytes of the whole stream"`
	Omitted uint64 `json:"omitted,omitempty" jsonschema:"bytes between head and tail that are left out here"`
	Next    uint64 `json:"next_offset,omitempty" jsonschema:"offset of the first byte that is left out, for get_output"`
}

// excerptOf shortens a stream to about that many bytes: three quarters of it are the head. handle and stream say how to fetch the rest.
func excerptOf(o *sandbox.Output, most int, handle, stream string) *Excerpt {
	if o.Total == 0 {
		return nil
	}
	if most == 0 {
		return &Excerpt{Bytes: o.Total, Omitted: o.Total}
	}
	all := keptOutput{o}
	if o.Dropped == 0 && o.Total <= uint64(most) {
		return &Excerpt{Text: printable(string(o.Head) + string(o.Tail)), Bytes: o.Total}
	}
	head, next, _ := all.read(0, most*3/4)
	from := max(next, o.Total-min(o.Total, uint64(most/4)))
	tail, _, missing := all.read(from, most/4)
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail, from = tail[1:], from+1
	}
	from += missing
	e := &Excerpt{Bytes: o.Total, Omitted: from - next, Next: next}
	e.Text = fmt.Sprintf("%s\n[… %d bytes left out; get_output run=%s stream=%s offset=%d …]\n%s",
		printable(string(head)), e.Omitted, handle, stream, next, printable(string(tail)))
	return e
}

// keptOutput reads the kept part of a stream by the offset in the whole stream.
type keptOutput struct{ *sandbox.Output }

// read returns at most that many bytes from an offset on, and the offset behind them. It ends before a character that is cut in two. missing
// is the number of bytes behind the offset that are no longer kept; they are skipped.
func (k keptOutput) read(offset uint64, most int) (data []byte, next, missing uint64) {
	head, tail := uint64(len(k.Head)), k.Total-uint64(len(k.Tail))
	switch {
	case offset >= k.Total:
		return nil, k.Total, 0
	case offset < head:
		data = k.Head[offset:]
	case offset < tail:
		missing = tail - offset
		offset, data = tail, k.Tail
	default:
		data = k.Tail[offset-tail:]
	}
	if len(data) > most {
		data = wholeCharacters(data[:most])
	}
	return data, offset + uint64(len(data)), missing
}

// wholeCharacters drops the beginning of a character at the end of data.
func wholeCharacters(data []byte) []byte {
	for i := 1; i < utf8.UTFMax && i < len(data); i++ {
		last := data[len(data)-i:]
		if utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return data[:len(data)-i]
			}
			break
		}
	}
	return data
}
