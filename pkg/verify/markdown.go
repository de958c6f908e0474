package verify

import (
	"fmt"
	"strings"
)

// Fence is a fenced block of a Markdown file.
type Fence struct {
	Line int    // of the opening fence, from 1
	Info string // what follows the opening fence
	Text string // the content, without indentation and with LF line ends

	start, end  int // byte offsets of the opening fence, and of the line end of its closing fence
	indent      string
	mark        byte // ` or ~
	length      int
	newline     string
	listContent int // column at which the content of the list item begins that the fence is in
}

// ScanError is a Markdown file whose blocks can not be told.
type ScanError struct {
	Line int
	Why  string
}

func (e *ScanError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

// Scan returns the fenced blocks of a Markdown file in their order, by the rules of CommonMark with one exception: a fence that is not
// closed is an error, because the rest of the file would be code. Fences in HTML comments and in block quotes are no blocks.
func Scan(text string) ([]Fence, error) {
	s := &scanner{}
	offset := 0
	for line := range strings.Lines(text) {
		s.number++
		if err := s.line(line, offset); err != nil {
			return nil, err
		}
		offset += len(line)
	}
	if s.open != nil {
		return nil, &ScanError{s.open.Line, "the fence is not closed"}
	}
	return s.fences, nil
}

type scanner struct {
	fences  []Fence
	number  int
	open    *Fence
	body    strings.Builder
	items   []int // the columns at which the contents of the open list items begin
	comment bool
}

func (s *scanner) line(line string, offset int) error {
	plain := strings.TrimRight(line, "\r\n")
	if s.open != nil {
		return s.inside(plain, offset+len(plain))
	}
	if s.comment {
		s.comment = !strings.Contains(plain, "-->")
		return nil
	}
	column, rest := indentation(plain, 0)
	if rest == "" {
		return nil
	}
	for len(s.items) > 0 && column < s.items[len(s.items)-1] {
		s.items = s.items[:len(s.items)-1]
	}
	base := s.base()
	for width := listMarker(rest); width > 0 && column-base < 4; width = listMarker(rest) {
		text, left := indentation(rest[width:], column+width)
		if left == "" || text-column-width > 4 { // nothing, or an indented code block
			text = column + width + 1
		}
		base = text
		s.items = append(s.items, base)
		if left == "" {
			return nil
		}
		column, rest = base, left
	}
	if column-base > 3 {
		return nil // an indented code block, or the continuation of a paragraph
	}
	if strings.HasPrefix(rest, "<!--") {
		s.comment = !strings.Contains(rest[len("<!--"):], "-->")
		return nil
	}
	mark, length, info := openingFence(rest)
	if length == 0 {
		return nil
	}
	s.open = &Fence{
		Line: s.number, Info: info, start: offset + len(plain) - len(rest), mark: mark, length: length, listContent: base,
		indent: strings.Repeat(" ", column), newline: line[len(plain):],
	}
	return nil
}

func (s *scanner) base() int {
	if len(s.items) == 0 {
		return 0
	}
	return s.items[len(s.items)-1]
}

// inside reads a line of the block that is open. end is the offset of its line end.
func (s *scanner) inside(plain string, end int) error {
	f := s.open
	column, rest := indentation(plain, 0)
	if rest != "" && column < f.listContent {
		return &ScanError{f.Line, fmt.Sprintf("the fence is not closed in its list item, which ends at line %d", s.number)}
	}
	if column-f.listContent < 4 && closes(rest, f.mark, f.length) {
		f.Text, f.end = s.body.String(), end
		s.fences = append(s.fences, *f)
		s.open = nil
		s.body.Reset()
		return nil
	}
	s.body.WriteString(unindent(plain, len(f.indent)) + "\n")
	return nil
}

// indentation returns the column of the first character that is no space, with tabs of four, and the text from there. The text begins at
// the column from.
func indentation(line string, from int) (column int, rest string) {
	column = from
	for i := range len(line) {
		switch line[i] {
		case ' ':
			column++
		case '\t':
			column += 4 - column%4
		default:
			return column, line[i:]
		}
	}
	return column, ""
}

// unindent removes at most that many columns of indentation.
func unindent(line string, most int) string {
	for column := 0; column < most && line != ""; {
		switch line[0] {
		case ' ':
			column++
		case '\t':
			next := column + 4 - column%4
			if next > most {
				return strings.Repeat(" ", next-most) + line[1:]
			}
			column = next
		default:
			return line
		}
		line = line[1:]
	}
	return line
}

// listMarker returns the length of the marker of a list item with which a text begins; 0 without one.
func listMarker(text string) int {
	n := 0
	switch {
	case text == "":
		return 0
	case strings.ContainsRune("-*+", rune(text[0])):
		n = 1
	default:
		for n < len(text) && n < 9 && text[n] >= '0' && text[n] <= '9' {
			n++
		}
		if n == 0 || n == len(text) || text[n] != '.' && text[n] != ')' {
			return 0
		}
		n++
	}
	if n < len(text) && text[n] != ' ' && text[n] != '\t' {
		return 0
	}
	return n
}

// openingFence returns the mark of a fence, its length, and its info; length 0: it is none.
func openingFence(rest string) (mark byte, length int, info string) {
	mark = rest[0]
	if mark != '`' && mark != '~' {
		return 0, 0, ""
	}
	info = strings.TrimLeft(rest, rest[:1])
	if length = len(rest) - len(info); length < 3 || mark == '`' && strings.Contains(info, "`") {
		return 0, 0, ""
	}
	return mark, length, strings.TrimSpace(info)
}

// closes reports whether a line closes a fence.
func closes(rest string, mark byte, length int) bool {
	rest = strings.TrimRight(rest, " \t")
	return len(rest) >= length && strings.Trim(rest, string(mark)) == ""
}

// render returns the fence with another content, as it stands in the file from its opening mark on. Its marks are lengthened if the
// content has a line that would close it.
func (f *Fence) render(text string) string {
	length := f.length
	for line := range strings.Lines(text) {
		_, rest := indentation(strings.TrimRight(line, "\n"), 0)
		if rest != "" && closes(rest, f.mark, length) {
			length = len(strings.TrimRight(rest, " \t")) + 1
		}
	}
	marks := strings.Repeat(string(f.mark), length)
	var b strings.Builder
	b.WriteString(marks + f.Info + f.newline)
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			b.WriteString(f.indent)
		}
		b.WriteString(line + f.newline)
	}
	b.WriteString(f.indent + marks)
	return b.String()
}
