package yamlite

import (
	"bytes"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

const (
	// MaxSize is the largest accepted document, in bytes.
	MaxSize  = 4 << 20
	maxDepth = 100
)

// Error is a problem in one line of a document.
type Error struct {
	Line int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Decode reads one document. An empty document is nil. Problems of one line are an *Error.
func Decode(data []byte) (any, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("document: %d bytes; at most %d are read", len(data), MaxSize)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at := invalidAt(data); at >= 0 {
		return nil, &Error{1 + bytes.Count(data[:at], []byte("\n")),
			fmt.Sprintf("byte %#02x is a control character or not UTF-8; write it as an escape in quotes", data[at])}
	}
	return newReader(string(data)).document()
}

// invalidAt returns the offset of the first control character, or byte that is not UTF-8; -1 when there is none.
func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		c := data[i]
		if c < 0x20 && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			return i
		}
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// line is one line of the source. Reading "- a: 1" moves the indent to where "a" stands.
type line struct {
	indent int
	start  int // offset of the first byte behind the indent
	end    int // offset of the line's end
}

type reader struct {
	src   string
	lines []line
	next  int // the line to read next
	depth int
}

func newReader(src string) *reader {
	r := &reader{src: strings.ReplaceAll(src, "\r\n", "\n")}
	for at := 0; at < len(r.src); {
		end := len(r.src)
		if i := strings.IndexByte(r.src[at:], '\n'); i >= 0 {
			end = at + i
		}
		start := at
		for start < end && r.src[start] == ' ' {
			start++
		}
		r.lines = append(r.lines, line{start - at, start, end})
		at = end + 1
	}
	return r
}

func (r *reader) text(i int) string { return r.src[r.lines[i].start:r.lines[i].end] }

// errorf reports line i, from 0.
func (r *reader) errorf(i int, format string, args ...any) error {
	return &Error{i + 1, fmt.Sprintf(format, args...)}
}

func blank(text string) bool {
	text = strings.TrimLeft(text, " \t\r")
	return text == "" || text[0] == '#'
}

// peek skips blank lines and comments; it returns false at the end.
func (r *reader) peek() bool {
	for r.next < len(r.lines) && blank(r.text(r.next)) {
		r.next++
	}
	return r.next < len(r.lines)
}

func (r *reader) document() (any, error) {
	if r.peek() && r.lines[r.next].indent == 0 && strings.TrimRight(r.text(r.next), " \t") == "---" {
		r.next++
	}
	if !r.peek() {
		return nil, nil
	}
	v, err := r.block(-1)
	if err != nil {
		return nil, err
	}
	if r.peek() {
		return nil, r.errorf(r.next, "%q does not fit here; indent it like its neighbours", short(r.text(r.next)))
	}
	return v, nil
}

func short(text string) string {
	const most = 30
	text = strings.TrimSpace(text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// block reads a value that begins on a line of its own, indented more than parent.
func (r *reader) block(parent int) (any, error) {
	if r.depth++; r.depth > maxDepth {
		return nil, r.errorf(r.next, "nested more than %d deep", maxDepth)
	}
	defer func() { r.depth-- }()
	l, text := r.lines[r.next], r.text(r.next)
	if isItem(text) {
		return r.sequence(l.indent)
	}
	_, _, isMap, err := r.key(r.next)
	switch {
	case err != nil:
		return nil, err
	case isMap:
		return r.mapping(l.indent)
	}
	return r.inline(l.start, parent)
}

func isItem(text string) bool {
	return text == "-" || strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "-\t")
}

func (r *reader) sequence(indent int) (any, error) {
	list := []any{}
	for r.peek() && r.lines[r.next].indent == indent && isItem(r.text(r.next)) {
		l := &r.lines[r.next]
		rest := strings.TrimLeft(r.text(r.next)[1:], " \t")
		var v any
		var err error
		if blank(rest) {
			r.next++
			v, err = r.nested(indent, false)
		} else {
			moved := l.end - len(rest)
			l.indent, l.start = indent+moved-l.start, moved
			v, err = r.block(indent)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, r.stray(indent)
}

// stray reports a line that is indented more than the collection before it.
func (r *reader) stray(indent int) error {
	if r.peek() && r.lines[r.next].indent > indent {
		return r.errorf(r.next, "%q is indented, but belongs to no key or list above", short(r.text(r.next)))
	}
	return nil
}

// nested reads the value below "key:" or "-"; a missing value is null.
func (r *reader) nested(indent int, underKey bool) (any, error) {
	if !r.peek() {
		return nil, nil
	}
	l := r.lines[r.next]
	if l.indent > indent || underKey && l.indent == indent && isItem(r.text(r.next)) {
		if l.indent == indent {
			return r.sequence(indent)
		}
		return r.block(indent)
	}
	return nil, nil
}

func (r *reader) mapping(indent int) (any, error) {
	object, seen := Map{}, map[string]bool{}
	for r.peek() && r.lines[r.next].indent == indent {
		at := r.next
		if isItem(r.text(at)) {
			return nil, r.errorf(at, "a list item among the keys of a mapping")
		}
		name, value, isMap, err := r.key(at)
		switch {
		case err != nil:
			return nil, err
		case !isMap:
			return nil, r.errorf(at, "%q is no key; add a colon and a space", short(r.text(at)))
		case name == "<<":
			return nil, r.errorf(at, "merge keys (<<) are not supported")
		case seen[name]:
			return nil, r.errorf(at, "key %q is given twice", name)
		}
		seen[name] = true
		var v any
		if blank(r.src[value:r.lines[at].end]) {
			r.next++
			v, err = r.nested(indent, true)
		} else {
			v, err = r.inline(value, indent)
		}
		if err != nil {
			return nil, err
		}
		object = append(object, Pair{name, v, at + 1})
	}
	return object, r.stray(indent)
}

// key splits line i at its colon. It returns the key and the offset of the value.
func (r *reader) key(i int) (name string, value int, found bool, err error) {
	l, text := r.lines[i], r.text(i)
	switch text[0] {
	case '\t':
		return "", 0, false, r.errorf(i, "a tab can not indent; use spaces")
	case '"', '\'':
		s, end, err := r.quoted(l.start)
		if err != nil || end > l.end {
			return "", 0, false, err
		}
		rest := strings.TrimLeft(r.src[end:l.end], " \t")
		if rest == ":" || strings.HasPrefix(rest, ": ") || strings.HasPrefix(rest, ":\t") {
			return s, l.end - len(strings.TrimLeft(rest[1:], " \t")), true, nil
		}
		return "", 0, false, nil
	case '[', '{', '|', '>':
		return "", 0, false, nil
	case '?':
		if text == "?" || text[1] == ' ' {
			return "", 0, false, r.errorf(i, `keys marked by "?" are not supported`)
		}
	}
	if colon := keyEnd(text); colon >= 0 {
		if err := r.plainStart(i, text); err != nil {
			return "", 0, false, err
		}
		rest := strings.TrimLeft(text[colon+1:], " \t")
		return strings.TrimRight(text[:colon], " \t"), l.end - len(rest), true, nil
	}
	return "", 0, false, nil
}

// keyEnd finds the colon that ends a plain key: one before a space or the line's end, and not in a comment.
func keyEnd(text string) int {
	for i := range len(text) {
		switch text[i] {
		case ':':
			if i > 0 && (i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\t') {
				return i
			}
		case '#':
			if i > 0 && (text[i-1] == ' ' || text[i-1] == '\t') {
				return -1
			}
		}
	}
	return -1
}

// plainStart refuses the characters that have another meaning at the start of a plain scalar.
func (r *reader) plainStart(i int, text string) error {
	switch c := text[0]; c {
	case '&', '*':
		return r.errorf(i, "anchors and aliases (%c) are not supported; a text that begins so needs quotes", c)
	case '!':
		return r.errorf(i, "tags (!) are not supported; a text that begins so needs quotes")
	case '%':
		if r.lines[i].indent == 0 && text != "%" {
			return r.errorf(i, "directives (%%) are not supported; a text that begins so needs quotes")
		}
		return r.errorf(i, "a text that begins with %% needs quotes")
	case '@', '`', ']', '}', ',':
		return r.errorf(i, "a text that begins with %c needs quotes", c)
	}
	return nil
}

// inline reads the value at offset at, of an entry indented by parent, and moves to the next line.
func (r *reader) inline(at, parent int) (any, error) {
	switch r.src[at] {
	case '|', '>':
		return r.blockScalar(at, parent)
	case '"', '\'', '[', '{':
		v, end, err := r.flow(at, 0)
		if err != nil {
			return nil, err
		}
		i := r.lineOf(end)
		if rest := r.src[end:r.lines[i].end]; !blank(rest) || rest != "" && rest[0] == '#' {
			return nil, r.errorf(i, "%q follows the end of a value", short(rest))
		}
		r.next = i + 1
		return v, nil
	}
	return r.plain(at, parent)
}

// lineOf returns the line of an offset.
func (r *reader) lineOf(at int) int {
	return min(len(r.lines)-1, sort.Search(len(r.lines), func(i int) bool { return r.lines[i].end >= at }))
}
