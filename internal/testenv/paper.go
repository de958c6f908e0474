package testenv

import (
	"regexp"
	"strconv"
	"testing"
)

// Paper is a terminal as far as progress bars need one: what is written below its last row scrolls, and what is too wide when it is made
// narrower breaks into rows, as it does in most of them.
type Paper struct {
	Rows, Cols int
	Lines      []string // everything ever shown, what has scrolled away first
	at         int      // the row of the cursor, in lines
}

var controls = regexp.MustCompile("^\x1b\\[([0-9]*)([AJK])")

// Write shows text and obeys its control sequences; one that it does not know fails the test.
func (p *Paper) Write(t testing.TB, text string) {
	t.Helper()
	column := 0
	for len(text) > 0 {
		for p.at >= len(p.Lines) {
			p.Lines = append(p.Lines, "")
		}
		if m := controls.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				p.at = max(p.at-n, len(p.Lines)-p.Rows, 0)
			case "K":
				p.Lines[p.at] = string([]rune(p.Lines[p.at])[:column])
			case "J":
				p.Lines = p.Lines[:p.at]
			}
			text = text[len(m[0]):]
			continue
		}
		switch r := []rune(text)[0]; r {
		case '\r':
			column = 0
		case '\n':
			p.at++
		case '\x1b':
			t.Fatalf("an escape sequence that this terminal does not know: %q", text)
		default:
			line := []rune(p.Lines[p.at])
			if column >= p.Cols {
				t.Fatalf("a line is wider than %d columns: %q", p.Cols, p.Lines[p.at])
			}
			if column < len(line) {
				line[column] = r
			} else {
				line = append(line, r)
			}
			p.Lines[p.at] = string(line)
			column++
		}
		_, size := decode(text)
		text = text[size:]
	}
}

func decode(s string) (rune, int) {
	for i, r := range s {
		if i > 0 {
			return r, i
		}
	}
	return 0, len(s)
}

// Narrow breaks lines that have become too long.
func (p *Paper) Narrow(cols int) {
	var broken []string
	at := 0
	for i, l := range p.Lines {
		if i == p.at {
			at = len(broken)
		}
		for r := []rune(l); ; r = r[cols:] {
			if len(r) <= cols {
				broken = append(broken, string(r))
				break
			}
			broken = append(broken, string(r[:cols]))
		}
	}
	if p.at >= len(p.Lines) {
		at = len(broken)
	}
	p.Lines, p.at, p.Cols = broken, at, cols
}
