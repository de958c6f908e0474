package diagnose

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// foreignParts are parts of paths that are not of the user's code.
var foreignParts = [...]string{
	"site-packages/", "dist-packages/", "node_modules/", "node:", "/usr/", "/rustc/", "/opt/", "<frozen ", "/lib/python", "/pkg/mod/",
	"jdk.internal",
}

// resolve returns the path of the user's file that a message means, and whether there is one.
func (c *inquiry) resolve(name string) (string, bool) {
	name = strings.TrimPrefix(name, "file://")
	name = strings.TrimPrefix(name, "./")
	if rest, ok := strings.CutPrefix(name, sandbox.WorkspaceDir+"/"); ok {
		name = rest
	}
	if name == "" || slices.Contains(c.Files, name) {
		return name, name != ""
	}
	// Compilers name files relative to a directory of their own.
	found := ""
	for _, f := range c.Files {
		if strings.HasSuffix(f, "/"+name) || strings.HasSuffix(name, "/"+f) {
			if found != "" {
				return name, false
			}
			found = f
		}
	}
	if found != "" {
		return found, true
	}
	return name, false
}

// resolveFrame marks a frame as the user's, or not.
func (c *inquiry) resolveFrame(f *Frame) {
	full := f.File
	file, ok := c.resolve(f.File)
	f.File, f.User = file, ok
	if !ok && strings.HasPrefix(full, sandbox.WorkspaceDir+"/") {
		f.User = !slices.ContainsFunc(foreignParts[:], func(part string) bool { return strings.Contains(full, part) })
	}
}

// source is the text of a user's file.
func (c *inquiry) source(file string) (string, bool) {
	if c.Source == nil {
		return "", false
	}
	text, ok := c.Source(file)
	if !ok || len(text) > maxSource {
		return "", false
	}
	return strings.ToValidUTF8(text, "\uFFFD"), true
}

// sourceLine is a line of a user's file; "" if there is none.
func (c *inquiry) sourceLine(at Location) string {
	text, ok := c.source(at.File)
	if !ok {
		return ""
	}
	n := 0
	for line := range strings.Lines(text) {
		if n++; n == at.Line {
			return strings.TrimRight(line, "\r\n")
		}
	}
	return ""
}

// orderFrames puts the user's frames first, drops repetitions, and bounds their number.
func orderFrames(frames []Frame) (ordered []Frame) {
	for _, user := range []bool{true, false} {
		for i, f := range frames {
			if f.User == user && len(ordered) < maxFrames && (i == 0 || f != frames[i-1]) {
				f.Function, f.File = cut(f.Function, 200), cut(f.File, 300)
				ordered = append(ordered, f)
			}
		}
	}
	return ordered
}

// cellPrefix begins the file of a session's cell.
const cellPrefix = "<cell "

// maxSearched bounds the user's files that are searched.
const maxSearched = 20

// maxWords bounds the names that are compared with a mistyped one.
const maxWords = 5000

// identifiers returns the names in the user's file of a place, or in all.
func (c *inquiry) identifiers(at Location) []string {
	if c.words != nil {
		return c.words
	}
	files := c.Files
	if at.File != "" && !strings.HasPrefix(at.File, cellPrefix) { // cells share their names
		files = []string{at.File}
	}
	for _, file := range files {
		text, ok := c.source(file)
		if !ok {
			continue
		}
		for len(text) > 0 && len(c.words) < maxWords {
			start := strings.IndexFunc(text, isLetter)
			if start < 0 {
				break
			}
			text = text[start:]
			end := strings.IndexFunc(text, func(r rune) bool { return !isLetter(r) && (r < '0' || r > '9') })
			if end < 0 {
				end = len(text)
			}
			if end <= maxWord {
				c.words = append(c.words, text[:end])
			}
			text = text[end:]
		}
	}
	return c.words
}

func isLetter(r rune) bool { return r == '_' || r|0x20 >= 'a' && r|0x20 <= 'z' || r > 0x7f }

// maxWord is the longest name that is compared: the cost is the product of the lengths.
const maxWord = 60

// near returns the name among some that is closest to one, and is not it; "" if none is close.
func near(name string, candidates []string) string {
	if len(name) < 2 || len(name) > maxWord {
		return ""
	}
	best, least := "", 3
	if len(name) <= 5 {
		least = 2
	}
	for _, candidate := range candidates {
		if candidate == name || len(candidate) > maxWord || len(candidate) < 2 || max(len(name), len(candidate))-min(len(name),
			len(candidate)) >= least {
			continue
		}
		d := nearest.Distance(name, candidate)
		if swapped(name, candidate) {
			d = 1
		}
		if d < least {
			best, least = candidate, d
		}
	}
	for _, candidate := range candidates {
		if best == "" && len(name) >= 5 && len(candidate) <= maxWord && strings.HasPrefix(candidate, name+"_") {
			best = candidate
		}
	}
	return best
}

// swapped reports whether two words differ by two letters that changed places.
func swapped(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i+1 < len(a); i++ {
		if a[i] != b[i] {
			return a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
		}
	}
	return false
}

// Mark begins the line of an excerpt in which the error is.
const Mark = "> "

// MarkedLine is the source of the line of an excerpt in which the error is, without its indentation.
func MarkedLine(excerpt string) string {
	for line := range strings.Lines(excerpt) {
		if marked, ok := strings.CutPrefix(line, Mark); ok {
			_, source, _ := strings.Cut(marked, " | ")
			return strings.TrimSpace(source)
		}
	}
	return ""
}

// excerpt shows a line with two before and after it, and a caret below the column.
func excerpt(text string, line, column int) string {
	lines := strings.Split(text, "\n")
	if n := len(lines); n > 0 && lines[n-1] == "" {
		lines = lines[:n-1]
	}
	if line > len(lines) {
		return ""
	}
	first, last := max(1, line-2), min(len(lines), line+2)
	width := len(number(last))
	var b strings.Builder
	for n := first; n <= last; n++ {
		mark := "  "
		if n == line {
			mark = Mark
		}
		shown, at := showLine(lines[n-1], column)
		b.WriteString(strings.TrimRight(mark+pad(number(n), width)+" | "+shown, " ") + "\n")
		if n == line && column > 0 && at >= 0 {
			b.WriteString("  " + strings.Repeat(" ", width) + " | " + strings.Repeat(" ", at) + "^\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// lineWidth is the most characters of a line in an excerpt.
const lineWidth = 160

// showLine makes a line fit for a terminal, and returns the place of the column in it, or -1.
func showLine(line string, column int) (shown string, at int) {
	var b []rune
	at = -1
	n := 0
	for _, r := range strings.TrimRight(line, "\r") {
		if n++; n == column {
			at = len(b)
		}
		switch {
		case r == '\t':
			b = append(b, ' ', ' ', ' ', ' ')
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 ||
			r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200b || r == 0xfeff:
			b = append(b, '·')
		default:
			b = append(b, r)
		}
	}
	if column == n+1 {
		at = len(b)
	}
	if len(b) <= lineWidth {
		return string(b), at
	}
	from := 0
	if at > lineWidth/2 {
		from = min(at-lineWidth/2, len(b)-lineWidth)
	}
	shown = string(b[from : from+lineWidth])
	if from+lineWidth < len(b) {
		shown += "…"
	}
	if from > 0 {
		shown, at = "…"+shown, at+1
	}
	if at >= 0 {
		at -= from
	}
	return shown, at
}

func pad(s string, width int) string { return strings.Repeat(" ", max(0, width-len(s))) + s }

// hasFile reports whether the user has a file of that name, in any directory.
func (c *inquiry) hasFile(name string) bool {
	return slices.ContainsFunc(c.Files, func(f string) bool { return f == name || path.Base(f) == name })
}
