package rust

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// A snippet is Rust without a main function, as people paste it. Functions, types and imports may stand in a function, so the whole
// snippet becomes the body of main. Only attributes of the crate stay in front:
//
//	use std::env;                          fn main() { use std::env;
//	fn twice(x: i32) -> i32 { 2 * x }  ►   fn twice(x: i32) -> i32 { 2 * x }
//	println!("{}", twice(21));             println!("{}", twice(21));
//	                                       }
//
// Lines keep their numbers.

// completeSnippet wraps the entry file if it is the only file and a snippet.
func completeSnippet(j *language.Job, entry string) error {
	if len(j.Files) != 1 {
		return nil
	}
	f := &j.Files[0]
	text, err := f.Content()
	if err != nil || f.Path != strings.TrimPrefix(entry, "./") {
		return err
	}
	if wrapped, ok := wrapSnippet(string(text)); ok {
		f.Open, f.Data = nil, []byte(wrapped)
	}
	return nil
}

// itemWords begin an item: a piece that may stand outside of a function.
var itemWords = []string{
	"fn", "struct", "enum", "impl", "trait", "mod", "use", "const", "static", "type", "pub", "extern", "union", "async", "macro_rules", "auto",
}

const byteOrderMark = "\ufeff"

// wrapSnippet puts a snippet into a main function. ok is false for a text that has a main function, has no statement outside of items, or
// has brackets that do not match: then the compiler reports what is missing.
func wrapSnippet(src string) (wrapped string, ok bool) {
	var (
		words     = tokens{rest: strings.TrimPrefix(src, byteOrderMark)}
		begin     = true // of a piece
		depth     int
		item      bool // the current piece is one
		statement bool // there is a piece that is none
		attribute int  // depth of brackets at which an attribute ends; 0 outside
		previous  string
		head      int // length of the attributes of the crate
	)
	for w := words.next(); w != ""; w = words.next() {
		switch {
		case w == "(" || w == "[" || w == "{":
			depth++
		case w == ")" || w == "]" || w == "}":
			if depth--; depth < 0 {
				return "", false
			}
		case previous == "fn" && w == "main" && depth == 0:
			return "", false
		}
		switch {
		case attribute > 0:
			if depth < attribute {
				attribute = 0
				if !statement && !item && strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(src[head:], byteOrderMark)), "#!") {
					head = len(src) - len(words.rest)
				}
			}
		case begin && w == "#":
			attribute = 1
			for w = words.next(); w == "!"; w = words.next() {
			}
			if w != "[" {
				return "", false
			}
			depth++
		case begin:
			// An unsafe block is a statement, an unsafe function an item.
			item = slices.Contains(itemWords, w) || w == "unsafe" && words.peek() != "{"
			item = item && !(w == "async" && (words.peek() == "{" || words.peek() == "move"))
			item = item && !((w == "union" || w == "auto") && !isWord(words.peek()))
			statement = statement || !item && w != ";"
			begin = w == ";"
		case depth == 0 && (w == ";" || w == "}"):
			begin = true
		}
		previous = w
	}
	if depth != 0 || !statement {
		return "", false
	}
	// The compiler skips a byte order mark at the beginning of the file only.
	head = max(head, len(src)-len(strings.TrimPrefix(src, byteOrderMark)))
	return src[:head] + "fn main() { " + src[head:] + "\n}\n", true
}

// isWord reports whether a token is an identifier or a keyword.
func isWord(w string) bool {
	r, _ := utf8.DecodeRuneInString(w)
	return isLetter(r)
}

func isLetter(r rune) bool { return r == '_' || unicode.IsLetter(r) }

// tokens splits a source into identifiers, numbers and single characters. It leaves out comments, and a literal is one character.
type tokens struct {
	rest string
	left int  // length of the rest where the last token begins
	open bool // a literal or a comment has no end
}

func (t *tokens) peek() string {
	ahead := *t
	return ahead.next()
}

// next returns the next token, or "" at the end.
func (t *tokens) next() string {
	for {
		t.rest = strings.TrimLeftFunc(t.rest, unicode.IsSpace)
		s := t.rest
		t.left = len(s)
		switch {
		case s == "":
			return ""
		case strings.HasPrefix(s, "//"):
			end := strings.IndexByte(s, '\n')
			if end < 0 {
				end = len(s)
			}
			t.rest = s[end:]
		case strings.HasPrefix(s, "/*"):
			t.skipComment()
		case s[0] == '"':
			t.skipString(1)
			return `"`
		case s[0] == '\'':
			return t.quote()
		}
		if len(t.rest) < len(s) {
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		if !isLetter(r) && !unicode.IsDigit(r) {
			t.rest = s[n:]
			return s[:n]
		}
		end := strings.IndexFunc(s, func(r rune) bool { return !isLetter(r) && !unicode.IsDigit(r) })
		if end < 0 {
			end = len(s)
		}
		word := s[:end]
		t.rest = s[end:]
		switch word {
		case "b", "c", "r", "br", "cr":
			if marks := len(t.rest) - len(strings.TrimLeft(t.rest, "#")); strings.HasPrefix(t.rest[marks:], `"`) {
				if strings.HasSuffix(word, "r") {
					t.skipRaw(marks)
				} else {
					t.skipString(1)
				}
				return `"`
			} else if word == "r" && marks == 1 && isWord(t.rest[1:]) {
				t.rest = t.rest[1:]
				name := t.next()
				t.left = len(s)
				return "r#" + name
			}
		}
		return word
	}
}

// skipComment moves past a block comment, which may contain others.
func (t *tokens) skipComment() {
	depth, i := 0, 0
	for i < len(t.rest) {
		switch {
		case strings.HasPrefix(t.rest[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(t.rest[i:], "*/"):
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			break
		}
	}
	t.open = t.open || depth > 0
	t.rest = t.rest[i:]
}

// skipString moves past a string with escapes that begins before from.
func (t *tokens) skipString(from int) {
	for i := from; i < len(t.rest); i++ {
		switch t.rest[i] {
		case '\\':
			i++
		case '"':
			t.rest = t.rest[i+1:]
			return
		}
	}
	t.rest, t.open = "", true
}

// skipRaw moves past a raw string with that many marks.
func (t *tokens) skipRaw(marks int) {
	_, after, ok := strings.Cut(t.rest[marks+1:], `"`+strings.Repeat("#", marks))
	t.rest, t.open = after, t.open || !ok
}

// quote reads a character, or the mark of a lifetime.
func (t *tokens) quote() string {
	s := t.rest[1:]
	if strings.HasPrefix(s, `\`) && len(s) > 2 {
		if end := strings.IndexByte(s[2:], '\''); end >= 0 {
			t.rest = s[2+end+1:]
			return `"`
		}
	}
	if _, n := utf8.DecodeRuneInString(s); n > 0 && strings.HasPrefix(s[n:], "'") {
		t.rest = s[n+1:]
		return `"`
	}
	t.rest = s
	return "'"
}
