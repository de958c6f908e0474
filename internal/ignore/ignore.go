// Package ignore matches paths with patterns in the syntax of .gitignore.
//
// What. [Parse] reads the patterns of one ignore file. A [Level] is the ignore file of a directory below the levels of the directories
// above it; [Level.Match] returns the decision of the last pattern that matches, of the deepest level first, as git does.
//
// Place in the flow. A leaf. The command line reads a program's directory with it.
//
// Lifecycle, concurrency. Values do not change after they are made.
//
// Limits. Ignore files belong to untrusted projects: the patterns in force at one directory have at most [MaxSize] bytes, and a match takes
// at most the product of the lengths of pattern and path. No library: those that were found translate patterns to regular expressions, or
// differ from git, or bring a whole implementation of git. Matching is by bytes and case, as git's on Linux. One documented rule of git is
// kept where its code differs: ** beside other characters (a**/b) is *. Entries below an ignored directory are the caller's to leave out.
package ignore

import (
	"fmt"
	"slices"
	"strings"
)

// Decision is the result of a match.
type Decision int

// The decisions.
const (
	None Decision = iota // no pattern matches
	Matched
	Negated // a pattern with ! matches
)

// MaxSize is how many bytes of patterns may be in force at one directory.
const MaxSize = 256 << 10

// Patterns are the patterns of one file, in its order.
type Patterns []pattern

type pattern struct {
	parts   []string // names between slashes; anyDepth is any number of directories
	keep    bool
	onlyDir bool
}

const anyDepth = "**"

// Parse reads a file. It skips lines that git skips.
func Parse(text string) Patterns {
	var all Patterns
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if line = strings.TrimSuffix(line, "\r"); !strings.HasPrefix(line, "#") {
			if p, ok := parseLine(trimSpaces(line)); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// parseLine reads one pattern.
func parseLine(line string) (p pattern, ok bool) {
	line, p.keep = strings.CutPrefix(line, "!")
	line, p.onlyDir = strings.CutSuffix(line, "/")
	if line == "" {
		return p, false
	}
	if !strings.Contains(line, "/") {
		if strings.Trim(line, "*") == "" {
			line = "*"
		}
		p.parts = []string{anyDepth, line}
		return p, true
	}
	p.parts = splitPattern(strings.TrimPrefix(line, "/"))
	p.parts = slices.CompactFunc(p.parts, func(a, b string) bool { return a == anyDepth && b == anyDepth })
	if p.parts[len(p.parts)-1] == anyDepth { // needs an entry to match
		p.parts = append(p.parts, "*")
	}
	return p, true
}

// splitPattern splits a pattern at its slashes. A slash in a set separates nothing.
func splitPattern(s string) (parts []string) {
	start := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '[':
			width, _ := matchSet(s[i:], 0)
			i += max(width, 1) - 1
		case s[i] == '/':
			parts, start = append(parts, s[start:i]), i+1
		case strings.HasPrefix(s[i:], `\/`):
			parts, start = append(parts, s[start:i]), i+2
			i++
		case s[i] == '\\':
			i++
		}
	}
	return append(parts, s[start:])
}

// trimSpaces removes spaces at the end that no backslash precedes.
func trimSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case ' ':
			continue
		}
		end = min(i+1, len(s))
	}
	return s[:end]
}

// Match returns the decision about a path, relative to the directory of the patterns.
func (all Patterns) Match(p string, isDir bool) Decision {
	names := strings.Split(p, "/")
	for _, one := range slices.Backward(all) {
		switch {
		case one.onlyDir && !isDir || !matchPath(one.parts, names):
		case one.keep:
			return Negated
		default:
			return Matched
		}
	}
	return None
}

// MayMatchBelow reports whether a pattern with a slash in it names entries below a directory.
func (all Patterns) MayMatchBelow(dir string) bool {
	names := strings.Split(dir, "/")
	return slices.ContainsFunc(all, func(p pattern) bool {
		for i, part := range p.parts {
			switch {
			case i == len(names), part == anyDepth && i > 0:
				return true
			case part == anyDepth || !matchName(part, names[i]):
				return false
			}
		}
		return false
	})
}

// Level is the patterns of one directory of a tree, below the levels of the directories above it. A nil Level has no patterns.
type Level struct {
	above    *Level
	dir      string // "." is the top
	patterns Patterns
	size     int
}

// Below returns the level of a directory, with the text of its ignore file.
func (l *Level) Below(dir, text string) (*Level, error) {
	below := &Level{above: l, dir: dir, patterns: Parse(text), size: len(text)}
	if l != nil {
		below.size += l.size
	}
	if below.size > MaxSize {
		return nil, fmt.Errorf("it has, with those above it, more than %d bytes of patterns", MaxSize)
	}
	return below, nil
}

// Match returns the decision about a path of the tree.
func (l *Level) Match(p string, isDir bool) Decision {
	for ; l != nil; l = l.above {
		rel := p
		if l.dir != "." {
			rel = strings.TrimPrefix(p, l.dir+"/")
		}
		if d := l.patterns.Match(rel, isDir); d != None {
			return d
		}
	}
	return None
}

// matchPath matches the names of a path. After a mismatch it continues at the last anyDepth, with one more name in it.
func matchPath(parts, names []string) bool {
	p, n, depth, from := 0, 0, -1, 0
	for n < len(names) {
		switch {
		case p < len(parts) && parts[p] == anyDepth:
			depth, from = p, n
			p++
		case p < len(parts) && matchName(parts[p], names[n]):
			p, n = p+1, n+1
		case depth >= 0:
			from++
			p, n = depth+1, from
		default:
			return false
		}
	}
	return p == len(parts)
}

// matchName matches one name, in the same way as matchPath.
func matchName(pattern, name string) bool {
	p, n, star, from := 0, 0, -1, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			star, from = p, n
			p++
			continue
		}
		if width, ok := matchByte(pattern[p:], name[n]); ok {
			p, n = p+width, n+1
			continue
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchByte matches a byte with the beginning of a pattern, and returns the length of that beginning.
func matchByte(pattern string, c byte) (width int, ok bool) {
	switch {
	case pattern == "":
		return 0, false
	case pattern[0] == '?':
		return 1, true
	case pattern[0] == '[':
		return matchSet(pattern, c)
	case pattern[0] == '\\':
		return 2, len(pattern) > 1 && pattern[1] == c
	}
	return 1, pattern[0] == c
}

// matchSet matches a byte with a set such as [a-z], [!0-9] or [[:alpha:]_]. A set without an end matches nothing.
func matchSet(pattern string, c byte) (width int, ok bool) {
	i := 1
	negated := i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^')
	if negated {
		i++
	}
	matched, before := false, byte(0) // before can begin a range
	for first := true; ; first = false {
		switch rest := pattern[min(i, len(pattern)):]; {
		case rest == "":
			return 0, false
		case rest[0] == ']' && !first:
			return i + 1, matched != negated
		case rest[0] == '-' && before != 0 && len(rest) > 1 && rest[1] != ']':
			end := strings.TrimPrefix(rest[1:], `\`)
			if end == "" {
				return 0, false
			}
			matched = matched || before <= c && c <= end[0]
			i, before = i+len(rest)-len(end)+1, 0
		case strings.HasPrefix(rest, "[:"):
			name, _, closed := strings.Cut(rest[2:], "]")
			class, isClass := strings.CutSuffix(name, ":")
			if !closed {
				return 0, false
			}
			if !isClass { // an ordinary [
				matched, before = matched || c == '[', '['
				i++
				break
			}
			in, known := inClass(class, c)
			if !known {
				return 0, false
			}
			matched, before = matched || in, 0
			i += len(name) + 3
		default:
			if rest[0] == '\\' {
				if rest = rest[1:]; rest == "" {
					return 0, false
				}
				i++
			}
			matched, before = matched || c == rest[0], rest[0]
			i++
		}
	}
}

// inClass reports whether an ASCII character is in a class of POSIX, and whether there is such a class.
func inClass(name string, c byte) (in, known bool) {
	lower, upper, digit := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
	graph := '!' <= c && c <= '~'
	switch name {
	case "alnum":
		in = lower || upper || digit
	case "alpha":
		in = lower || upper
	case "blank":
		in = c == ' ' || c == '\t'
	case "cntrl":
		in = c < ' ' || c == 0x7f
	case "digit":
		in = digit
	case "graph":
		in = graph
	case "lower":
		in = lower
	case "print":
		in = graph || c == ' '
	case "punct":
		in = graph && !lower && !upper && !digit
	case "space":
		in = c == ' ' || '\t' <= c && c <= '\r'
	case "upper":
		in = upper
	case "xdigit":
		in = digit || 'a' <= c|0x20 && c|0x20 <= 'f'
	default:
		return false, false
	}
	return in, true
}
