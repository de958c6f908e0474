package template

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// quote writes s as a string literal of a language, exactly: the program gets s. A lone surrogate is three bytes, as in WTF-8. Text that
// the language can not express is refused.
func quote(language, s string) (string, error) {
	l := findLanguage(language)
	if l.quote == nil {
		return "", fmt.Errorf("no rule for string literals of %s", language)
	}
	text, err := l.quote(s)
	if err != nil {
		return "", fmt.Errorf("a string literal of %s can not hold %w", language, err)
	}
	return text, nil
}

func quoteGo(s string) (string, error) { return strconv.Quote(s), nil }

func quoteJavaScript(s string) (string, error) {
	return escaper{unit: `\x%02x`, wide: `\u%04x`, astral: `\u{%x}`, surrogates: true}.quote(s)
}

// escaper is a family of languages with double quotes and backslashes. Characters that can not be printed are written by their number, so
// that no editor, terminal or compiler sees them otherwise.
type escaper struct {
	unit, wide, astral string // formats of an escape up to U+00FF, U+FFFF and beyond
	surrogates         bool   // a lone surrogate can be written
}

func (e escaper) quote(s string) (string, error) {
	return quoted(s, func(b *strings.Builder, r rune, at int) error {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case isSurrogate(r) && !e.surrogates:
			return fmt.Errorf("the lone surrogate U+%04X at %d", r, at)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(b, e.unit, r)
		case r <= 0xffff:
			fmt.Fprintf(b, e.wide, r)
		default:
			fmt.Fprintf(b, e.astral, r)
		}
		return nil
	})
}

// quoted puts a text between double quotes. Quotes and backslashes get a backslash; write is called for every other character.
func quoted(s string, write func(b *strings.Builder, r rune, at int) error) (string, error) {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); {
		r, n := decodeWTF8(s[i:])
		switch {
		case n == 0:
			return "", fmt.Errorf("byte %#02x at %d, which is not UTF-8", s[i], i)
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			if err := write(&b, r, i); err != nil {
				return "", err
			}
		}
		i += n
	}
	b.WriteByte('"')
	return b.String(), nil
}

// decodeWTF8 reads one character, a lone surrogate included; n is 0 for a byte that is part of none.
func decodeWTF8(s string) (r rune, n int) {
	r, n = utf8.DecodeRuneInString(s)
	if r != utf8.RuneError || n > 1 {
		return r, n
	}
	if len(s) >= 3 && s[0] == 0xed && s[1] >= 0xa0 && s[1] <= 0xbf && s[2] >= 0x80 && s[2] <= 0xbf {
		return 0xd000 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	}
	return 0, 0
}

func isSurrogate(r rune) bool { return r >= 0xd800 && r <= 0xdfff }

// maxJavaConstant is the size of the largest constant of a class file, in modified UTF-8.
const maxJavaConstant = 65535

// quoteJava keeps to ASCII, because older compilers read files in the encoding of the locale. \u is replaced before the compiler sees
// lines and quotes, so controls are written in octal.
func quoteJava(s string) (string, error) {
	size := len(s) // in UTF-8, from which this differs for two kinds of characters
	text, err := quoted(s, func(b *strings.Builder, r rune, _ int) error {
		switch {
		case r >= ' ' && r < 0x7f:
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(b, `\%03o`, r)
			if r == 0 {
				size++
			}
		case r <= 0xffff:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			size += 2
		}
		return nil
	})
	if err == nil && size > maxJavaConstant {
		err = fmt.Errorf("%d bytes; a class file has room for %d in one constant (chunks splits a text)", size, maxJavaConstant)
	}
	return text, err
}

// quoteShell uses single quotes, within which every POSIX shell leaves everything as it is.
func quoteShell(s string) (string, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return "", errors.New("the character NUL")
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

// quoteSQL writes standard SQL, and SQLite's for texts that standard SQL has no literal for. One with a carriage return is among them: a
// program that reads scripts line by line loses it.
func quoteSQL(s string) (string, error) {
	if utf8.ValidString(s) && !strings.ContainsAny(s, "\x00\r") {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'", nil
	}
	return fmt.Sprintf("CAST(X'%X' AS TEXT)", s), nil
}
