package verify

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// normal is a text as it is compared: without carriage returns and spaces at the ends of lines, and without empty lines at its end.
func normal(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \t\r\n") + "\n")
	}
	text = strings.TrimRight(b.String(), "\n")
	if text == "" {
		return ""
	}
	return text + "\n"
}

// maxDifference bounds a difference in a report.
const maxDifference = 16 << 10

// difference is the difference of two outputs in the form of diff -u.
func difference(want, got string) string {
	text := string(diff.Diff("document", []byte(want), "program", []byte(got)))
	_, text, _ = strings.Cut(text, "\n") // "diff document program"
	if len(text) > maxDifference {
		text = text[:maxDifference] + "\n…"
	}
	return strings.ToValidUTF8(strings.TrimRight(text, "\n"), "\uFFFD")
}

// unprintable explains why an output can not be a part of a document; "" if it can.
func unprintable(text string) string {
	if len(text) >= maxCompared {
		return "it is too large"
	}
	if !utf8.ValidString(text) {
		return "it is not UTF-8"
	}
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' || unicode.Is(unicode.Bidi_Control, r) {
			return "it has control characters"
		}
	}
	return ""
}
