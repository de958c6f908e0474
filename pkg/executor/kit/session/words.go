package session

import (
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// mostMatches bounds the words of a completion.
const mostMatches = 1000

// CompleteWord completes the word before the cursor with names, and with keywords, which take the case of the word.
func CompleteWord(code string, cursor int, names, keywords []string) protocol.Completed {
	start := cursor
	for start > 0 && isWordByte(code[start-1]) {
		start--
	}
	word := code[start:cursor]
	c := protocol.Completed{Matches: []string{}, Start: start, End: cursor}
	for _, name := range names {
		if strings.HasPrefix(strings.ToLower(name), strings.ToLower(word)) {
			c.Matches = append(c.Matches, name)
		}
	}
	isUpper := word != "" && word == strings.ToUpper(word)
	for _, keyword := range keywords {
		if keyword = strings.ToLower(keyword); word == "" || !strings.HasPrefix(keyword, strings.ToLower(word)) {
			continue
		}
		if isUpper {
			keyword = strings.ToUpper(keyword)
		}
		c.Matches = append(c.Matches, keyword)
	}
	slices.Sort(c.Matches)
	c.Matches = slices.Compact(c.Matches)
	c.Matches = c.Matches[:min(len(c.Matches), mostMatches)]
	return c
}

func isWordByte(b byte) bool {
	return b == '_' || b >= 0x80 || '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
