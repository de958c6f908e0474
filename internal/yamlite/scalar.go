package yamlite

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// plain reads a scalar without quotes and its continuation lines.
func (r *reader) plain(at, parent int) (any, error) {
	i := r.next
	text, comment := cutComment(r.src[at:r.lines[i].end])
	if err := r.plainStart(i, text); err != nil {
		return nil, err
	}
	if text == "-" || keyEnd(text) >= 0 {
		return nil, r.errorf(i, "%q needs quotes, or a line of its own", short(text))
	}
	var b strings.Builder
	b.WriteString(text)
	r.next++
	empty, several := 0, false
	for ; !comment && r.next < len(r.lines); r.next++ {
		more := strings.TrimSpace(r.text(r.next))
		if more == "" {
			empty++
			continue
		}
		if r.lines[r.next].indent <= parent || more[0] == '#' {
			break
		}
		if more, comment = cutComment(more); keyEnd(more) >= 0 {
			return nil, r.errorf(r.next, "a key within a text that began above; check its indentation")
		}
		fold(&b, empty)
		b.WriteString(more)
		empty, several = 0, true
	}
	if several {
		return b.String(), nil
	}
	return r.resolve(text, i)
}

// fold joins two lines: a single line break becomes a space, n empty lines become n line breaks.
func fold(b *strings.Builder, empty int) {
	if empty == 0 {
		b.WriteByte(' ')
		return
	}
	b.WriteString(strings.Repeat("\n", empty))
}

func cutComment(text string) (string, bool) {
	for i := 1; i < len(text); i++ {
		if text[i] == '#' && (text[i-1] == ' ' || text[i-1] == '\t') {
			return strings.TrimRight(text[:i], " \t\r"), true
		}
	}
	return strings.TrimRight(text, " \t\r"), false
}

// resolve returns a plain scalar with its type in YAML 1.2's core schema.
func (r *reader) resolve(text string, i int) (any, error) {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return nil, nil
	case "true", "True", "TRUE":
		return true, nil
	case "false", "False", "FALSE":
		return false, nil
	case "---", "...":
		return nil, r.errorf(i, "a file holds one document; %q would begin or end another", text)
	}
	unsigned := strings.TrimLeft(text, "+-")
	if len(text)-len(unsigned) > 1 || unsigned == "" {
		return text, nil
	}
	switch strings.ToLower(unsigned) {
	case ".nan", ".inf":
		return nil, r.errorf(i, "JSON has no number %s; as a text it needs quotes", text)
	}
	if strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0o") {
		if n, err := strconv.ParseUint(text, 0, 64); err == nil && !strings.Contains(text, "_") {
			return Number(strconv.FormatUint(n, 10)), nil
		}
		return text, nil
	}
	return r.decimal(text, unsigned, i)
}

// decimal reads 12, -1.5, .5, 1. and 1e3, and returns everything else as text.
func (r *reader) decimal(text, unsigned string, i int) (any, error) {
	whole, rest := digits(unsigned)
	fraction, exponent := "", ""
	dot := strings.HasPrefix(rest, ".")
	if dot {
		fraction, rest = digits(rest[1:])
	}
	if whole == "" && fraction == "" {
		return text, nil
	}
	if strings.HasPrefix(rest, "e") || strings.HasPrefix(rest, "E") {
		sign := rest[1:]
		if strings.HasPrefix(sign, "+") || strings.HasPrefix(sign, "-") {
			sign = sign[1:]
		}
		power, end := digits(sign)
		if power == "" || end != "" {
			return text, nil
		}
		exponent, rest = rest, ""
	}
	if rest != "" {
		return text, nil
	}
	if len(whole) > 1 && whole[0] == '0' {
		return nil, r.errorf(i, "%s has a leading zero: write 0o%s for an octal number, or quotes for a text", text, whole[1:])
	}
	var b strings.Builder
	if text[0] == '-' {
		b.WriteByte('-')
	}
	if whole == "" {
		whole = "0"
	}
	b.WriteString(whole)
	if dot {
		b.WriteByte('.')
		if fraction == "" {
			fraction = "0"
		}
		b.WriteString(fraction)
	}
	b.WriteString(exponent)
	return Number(b.String()), nil
}

func digits(s string) (number, rest string) {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return s[:n], s[n:]
}

// blockScalar reads | and > with their indicators for the end of the text and for the indent.
func (r *reader) blockScalar(at, parent int) (any, error) {
	i := r.next
	header, _ := cutComment(r.src[at:r.lines[i].end])
	folded, keep, indent := header[0] == '>', byte(0), 0
	for _, c := range []byte(header[1:]) {
		switch {
		case (c == '-' || c == '+') && keep == 0:
			keep = c
		case c >= '1' && c <= '9' && indent == 0:
			indent = max(parent, 0) + int(c-'0')
		default:
			return nil, r.errorf(i, "%q: at most one digit and one of - and + may follow | or >", header)
		}
	}
	r.next++
	var content []string
	for ; r.next < len(r.lines); r.next++ {
		l := r.lines[r.next]
		if l.start == l.end {
			content = append(content, strings.Repeat(" ", max(0, l.indent-indent)*min(indent, 1)))
			continue
		}
		if indent == 0 {
			if indent = l.indent; indent <= parent {
				break
			}
		}
		if l.indent < indent {
			if l.indent > parent && !blank(r.text(r.next)) {
				return nil, r.errorf(r.next, "indented less than the first line of its text")
			}
			break
		}
		content = append(content, r.src[l.start-(l.indent-indent):l.end])
	}
	return finish(content, folded, keep), nil
}

func finish(content []string, folded bool, keep byte) string {
	last := len(content)
	for last > 0 && content[last-1] == "" {
		last--
	}
	var b strings.Builder
	for i := 0; i < last; i++ {
		b.WriteString(content[i])
		switch {
		case i == last-1:
		case !folded || loose(content[i]) || loose(content[i+1]):
			b.WriteByte('\n')
		default:
			// A break between two ordinary lines becomes a space; n empty lines between them become n breaks.
			empty := 0
			for content[i+1] == "" {
				empty, i = empty+1, i+1
			}
			if loose(content[i+1]) {
				empty++
			}
			fold(&b, empty)
		}
	}
	if last > 0 && keep != '-' {
		b.WriteByte('\n')
	}
	if keep == '+' {
		b.WriteString(strings.Repeat("\n", len(content)-last))
	}
	return b.String()
}

// loose reports whether a line of a folded text keeps its line breaks, because it is indented more than the others.
func loose(text string) bool { return text != "" && (text[0] == ' ' || text[0] == '\t') }

// quoted reads the quoted text at an offset, and returns the offset after it.
func (r *reader) quoted(at int) (string, int, error) {
	quote := r.src[at]
	var b []byte
	for i := at + 1; i < len(r.src); {
		switch c := r.src[i]; {
		case c == quote && c == '\'' && strings.HasPrefix(r.src[i+1:], "'"):
			b, i = append(b, c), i+2
		case c == quote:
			return string(b), i + 1, nil
		case c == '\n':
			b, i = r.foldQuoted(b, i)
		case c == '\\' && quote == '"':
			n, err := r.escape(&b, i)
			if err != nil {
				return "", 0, err
			}
			i += n
		default:
			b, i = append(b, c), i+1
		}
	}
	first, _, _ := strings.Cut(r.src[at:], "\n")
	return "", 0, r.errorf(r.lineOf(at), "the quoted text has no end: %q", short(first))
}

// foldQuoted joins the lines of a quoted text from the line break at i on, and returns the offset after the break.
func (r *reader) foldQuoted(b []byte, i int) ([]byte, int) {
	b = bytes.TrimRight(b, " \t")
	breaks := 0
	for ; i < len(r.src) && strings.IndexByte(" \t\n", r.src[i]) >= 0; i++ {
		if r.src[i] == '\n' {
			breaks++
		}
	}
	if breaks == 1 {
		return append(b, ' '), i
	}
	return append(b, bytes.Repeat([]byte("\n"), breaks-1)...), i
}

// escape appends the character of the escape at offset at, and returns the escape's length.
func (r *reader) escape(b *[]byte, at int) (int, error) {
	if at+1 >= len(r.src) {
		return 1, nil // quoted reports the missing quote
	}
	c := r.src[at+1]
	if i := strings.IndexByte("0abtnvfre\"/\\ \t", c); i >= 0 {
		*b = append(*b, "\x00\a\b\t\n\v\f\r\x1b\"/\\ \t"[i])
		return 2, nil
	}
	switch c {
	case 'N':
		*b = utf8.AppendRune(*b, '\u0085')
		return 2, nil
	case '_':
		*b = utf8.AppendRune(*b, '\u00a0')
		return 2, nil
	case 'L', 'P':
		*b = utf8.AppendRune(*b, '\u2028'+rune(c-'L')/4)
		return 2, nil
	case '\n':
		n := 2
		for at+n < len(r.src) && (r.src[at+n] == ' ' || r.src[at+n] == '\t') {
			n++
		}
		return n, nil
	case 'x', 'u', 'U':
		return r.hexEscape(b, at, map[byte]int{'x': 2, 'u': 4, 'U': 8}[c])
	}
	return 0, r.errorf(r.lineOf(at), "\\%c is no escape", c)
}

func (r *reader) hexEscape(b *[]byte, at, width int) (int, error) {
	read := func(at int) (rune, bool) {
		if at+2+width > len(r.src) {
			return 0, false
		}
		n, err := strconv.ParseUint(r.src[at+2:at+2+width], 16, 32)
		return rune(n), err == nil && n <= 0x10ffff
	}
	c, ok := read(at)
	n := 2 + width
	if ok && utf16.IsSurrogate(c) {
		// JSON writes characters beyond 16 bits as a pair of surrogates.
		low := rune(0)
		if width == 4 && strings.HasPrefix(r.src[at+n:], `\u`) {
			low, _ = read(at + n)
		}
		c = utf16.DecodeRune(c, low)
		ok = c != '\ufffd'
		n *= 2
	}
	if !ok {
		return 0, r.errorf(r.lineOf(at), "%s: the escape names no character", short(r.src[at:min(len(r.src), at+2+width)]))
	}
	*b = utf8.AppendRune(*b, c)
	return n, nil
}
