// Package javasource finds the declarations of Java sources without compiling them.
//
// It serves pkg/executor/lang/java, which names files after their classes, and pkg/template, which fits snippets in beside a harness. It
// imports none of our packages. Scan is a pure function and may be called by several goroutines at once; its time is linear.
package javasource

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Source describes a file before its compilation.
type Source struct {
	Package  string
	Public   string            // its public class, which decides the file name
	Classes  []string          // at the top
	Mains    []string          // those of them that have a main
	Abstract []string          // those of them that are abstract classes or interfaces
	Extends  map[string]string // the simple name of the class that each of them extends
	Imports  bool              // imports other classes
	Compact  bool              // has a main outside of a class, and as many closing braces as opening ones
	Classic  bool              // every main is public, static, and takes arguments
}

// Qualified returns the full name of one of its classes.
func (s *Source) Qualified(class string) string {
	if s.Package == "" {
		return class
	}
	return s.Package + "." + class
}

// Scan reads the words of a file, and follows braces, strings and comments to find declarations at the top level. It need not
// understand a file that javac refuses.
func Scan(src string) Source {
	var (
		s      = Source{Classic: true}
		depth  int
		parens int
		recent []string  // words since the last ; { or }
		public bool      // one of recent
		static bool      // one of recent
		class  string    // the current class at the top level
		prev   [2]string // words, the last one second
		words  = tokens{rest: src}
		broken bool // a brace closes nothing
	)
	reset := func() { recent, public, static = nil, false, false }
	for {
		w := words.next()
		if w == "" {
			s.Compact = s.Compact && depth == 0 && !broken
			return s
		}
		switch w {
		case "{":
			if parens == 0 {
				if name := declaredClass(recent); name != "" && depth == 0 {
					class = name
					s.Classes = append(s.Classes, name)
					if slices.Contains(recent, "abstract") || slices.Contains(recent, "interface") {
						s.Abstract = append(s.Abstract, name)
					}
					if public {
						s.Public = name
					}
					if extended := superclass(recent); extended != "" {
						if s.Extends == nil {
							s.Extends = map[string]string{}
						}
						s.Extends[name] = extended
					}
				}
				reset()
			}
			depth++
		case "}":
			broken = broken || depth == 0
			depth = max(depth-1, 0)
			parens = 0
			reset()
			if depth == 0 {
				class = ""
			}
		case ";":
			if depth == 0 && len(recent) > 1 && recent[0] == "package" {
				s.Package = strings.Join(recent[1:], "")
			}
			s.Imports = s.Imports || depth == 0 && len(recent) > 0 && recent[0] == "import"
			if parens == 0 {
				reset()
			}
		case "(":
			// void main(…) in a class at the top, or beside all classes.
			if prev == [2]string{"void", "main"} && parens == 0 {
				// One without arguments is of the kind that only newer machines take.
				s.Classic = s.Classic && public && static && words.peek() != ")"
				switch {
				case depth == 0:
					s.Compact = true
				case depth == 1 && class != "" && (len(s.Mains) == 0 || s.Mains[len(s.Mains)-1] != class):
					s.Mains = append(s.Mains, class)
				}
			}
			parens++
			recent = append(recent, w)
		case ")":
			parens = max(parens-1, 0)
		default:
			public, static = public || w == "public", static || w == "static"
			recent = append(recent, w)
		}
		prev = [2]string{prev[1], w}
	}
}

// declaredClass returns the name after class, interface, enum or record at the start of a declaration.
func declaredClass(words []string) string {
	for i, w := range words {
		if i+1 == len(words) {
			break
		}
		switch next := words[i+1]; w {
		case "class", "interface", "enum":
			if i == 0 || words[i-1] != "." {
				return next
			}
		case "record":
			if i+2 < len(words) && (words[i+2] == "(" || words[i+2] == "<") {
				return next
			}
		}
	}
	return ""
}

// superclass returns the simple name of the class that a declaration extends; "" if it names none.
func superclass(words []string) (name string) {
	depth, after := 0, false // depth in type parameters, which have an extends of their own
	for _, w := range words {
		switch {
		case w == "<":
			depth++
		case w == ">":
			depth--
		case depth > 0 || w == ".":
		case w == "extends":
			after = true
		case after && (w == "implements" || w == "permits" || w == ","):
			return name
		case after:
			name = w
		}
	}
	return name
}

// tokens splits a source into identifiers and single characters. It leaves out comments, and a literal is one character.
type tokens struct {
	rest string
	last int // length of the last word in the source
}

// next returns the next word, or "" at the end.
func (t *tokens) next() string {
	for {
		t.rest = strings.TrimLeftFunc(t.rest, unicode.IsSpace)
		s := t.rest
		switch {
		case s == "":
			return ""
		case strings.HasPrefix(s, "//"):
			t.skip("\n", 2, false)
		case strings.HasPrefix(s, "/*"):
			t.skip("*/", 2, false)
		case strings.HasPrefix(s, `"""`):
			t.skip(`"""`, 3, true)
			t.last = len(s) - len(t.rest)
			return `"`
		case s[0] == '"' || s[0] == '\'':
			t.skip(s[:1], 1, true)
			t.last = len(s) - len(t.rest)
			return `"`
		default:
			r, n := utf8.DecodeRuneInString(s)
			if isLetter(r) {
				end := strings.IndexFunc(s, func(r rune) bool { return !isLetter(r) && !unicode.IsDigit(r) })
				if end < 0 {
					end = len(s)
				}
				n = end
			}
			t.rest, t.last = s[n:], n
			return s[:n]
		}
	}
}

// peek returns the next word without moving past it.
func (t *tokens) peek() string {
	ahead := *t
	return ahead.next()
}

func isLetter(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) }

// skip moves past the next end mark that no backslash escapes.
func (t *tokens) skip(end string, from int, escapes bool) {
	s := t.rest
	for i := from; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case escapes && len(end) == 1 && s[i] == '\n': // not a literal
			t.rest = s[i:]
			return
		case strings.HasPrefix(s[i:], end):
			t.rest = s[i+len(end):]
			return
		}
	}
	t.rest = ""
}
